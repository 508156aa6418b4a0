"""A model on its way out of eager Python: what a call costs each way, and what compiling costs.

Run as `python -m rnnpack.bench.deployment <suite/name> <way> <threads>`, it makes the model of that
way ready and prints the seconds that this and the first call took.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import rnnpack
from rnnpack.bench.cases import Case, select
from rnnpack.bench.contestant import Absent, Contestant, require
from rnnpack.bench.peers import BASELINE, OURS
from rnnpack.bench.problem import Problem, build_problem
from rnnpack.bench.runner import Plan, Result, admit, measure_time
from rnnpack.bench.runtimes import onnxruntime_session

_CLASSES = 10
_COMPILES = 3  # processes of which the median counts
_EXAMPLE = (7, 3)  # steps and rows of the exports' example, none of them those of the case


class Model(nn.Module):
    """A recurrent layer with a Linear behind it: [L, N, H_in] to [L, N, classes]."""

    def __init__(self, layer: nn.Module, features: int) -> None:
        super().__init__()
        self.layer = layer
        self.linear = nn.Linear(features, _CLASSES)

    def forward(self, input: Tensor) -> Tensor:
        output, _ = self.layer(input)
        scores: Tensor = self.linear(output)
        return scores


def build(case: Case) -> Problem:
    """The problem of a case with torch.nn's model in place of its layer."""
    problem = build_problem(case)
    model = Model(problem.layer, case.directions * case.output_size).eval()
    return dataclasses.replace(problem, layer=model)


def _converted(problem: Problem) -> nn.Module:
    return rnnpack.convert(copy.deepcopy(problem.layer)).model


def _packed(problem: Problem) -> nn.Module:
    return rnnpack.pack(copy.deepcopy(problem.layer)).model


def _contestant(run: Callable[[Tensor], Tensor], problem: Problem) -> Contestant:
    input = problem.input
    return Contestant(lambda: run(input), lambda output: {"output": output})


def _torch_eager(problem: Problem, threads: int) -> Contestant:
    return _contestant(problem.layer, problem)


def _eager(problem: Problem, threads: int) -> Contestant:
    model = _converted(problem)
    path = rnnpack.explain(model.get_submodule("layer"), problem.input)
    refusal = None if path.native else f"the path was {path.kind}, not native: {path.reason}"
    run = _contestant(model, problem)
    return Contestant(run.call, run.values, f"{path.kind}: {path.reason}", refusal)


def _packed_eager(problem: Problem, threads: int) -> Contestant:
    return _contestant(_packed(problem), problem)


def _torch_compiled(problem: Problem, threads: int) -> Contestant:
    """torch.nn at its best: by default torch.compile leaves a model with nn.LSTM as it is."""
    import torch._dynamo.config
    import torch._inductor.config

    run = torch.compile(copy.deepcopy(problem.layer), fullgraph=True)
    with (
        torch._dynamo.config.patch(allow_rnn=True),
        torch._inductor.config.patch(freezing=True),
    ):
        run(problem.input)
    return _contestant(run, problem)


def _compiled(problem: Problem, threads: int) -> Contestant:
    return _contestant(torch.compile(_converted(problem), fullgraph=True), problem)


def _frozen(problem: Problem, threads: int) -> Contestant:
    import torch._inductor.config

    run = torch.compile(_converted(problem), fullgraph=True)
    with torch._inductor.config.patch(freezing=True):
        run(problem.input)
    return _contestant(run, problem)


def _packed_compiled(problem: Problem, threads: int) -> Contestant:
    return _contestant(torch.compile(_packed(problem), fullgraph=True), problem)


def _export_arguments(problem: Problem) -> tuple[tuple[Tensor, ...], Any]:
    """An example of the input, and that its steps and rows may be any."""
    free = torch.export.Dim.DYNAMIC
    return (torch.randn(*_EXAMPLE, problem.input.size(-1)),), ({0: free, 1: free},)


def _aotinductor(problem: Problem, threads: int) -> Contestant:
    import torch._inductor

    example, dynamic = _export_arguments(problem)
    program = torch.export.export(_packed(problem), example, dynamic_shapes=dynamic)
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "compiled.pt2")
        torch._inductor.aoti_compile_and_package(program, package_path=file)
        return _contestant(torch._inductor.aoti_load_package(file), problem)


def _onnxruntime(problem: Problem, threads: int) -> Contestant:
    for package in ("onnx", "onnxscript"):
        require(package)
    example, dynamic = _export_arguments(problem)
    program = torch.onnx.export(
        _converted(problem), example, dynamo=True, dynamic_shapes=dynamic, verbose=False
    )
    assert program is not None
    session = onnxruntime_session(program.model_proto.SerializeToString(), threads)
    feed = {session.get_inputs()[0].name: problem.input.numpy()}
    return Contestant(
        lambda: session.run(None, feed),
        lambda results: {"output": torch.from_numpy(results[0].copy())},
    )


# The first says what the right values are; the second is what the others are compared with.
WAYS: dict[str, Callable[[Problem, int], Contestant]] = {
    BASELINE: _torch_eager,
    OURS: _eager,
    "torch.nn, compiled": _torch_compiled,
    "rnnpack, compiled": _compiled,
    "rnnpack, compiled, freezing": _frozen,
    "rnnpack, packed": _packed_eager,
    "rnnpack, packed, compiled": _packed_compiled,
    "rnnpack, AOTInductor": _aotinductor,
    "rnnpack, ONNX Runtime": _onnxruntime,
}
# Of these it is worth knowing how long they take to be ready.
COMPILED = (
    "torch.nn, compiled",
    "rnnpack, compiled",
    "rnnpack, compiled, freezing",
    "rnnpack, AOTInductor",
)


def run_case(case: Case, plan: Plan, *, tell: Callable[[str], None]) -> Result:
    """Compare every way's values with torch.nn's, time calls in turn, then compiling."""
    result = Result(case)
    torch.set_num_threads(plan.threads)
    with torch.no_grad():
        contestants = admit(build(case), WAYS, plan, result, tell)
        result.figures = measure_time(contestants, plan, tell)
    processes = min(_COMPILES, plan.blocks)
    for name in [name for name in COMPILED if name in result.figures]:
        tell(f"compiling {name}")
        try:
            seconds = [_compile_in_process(case, name, plan.threads) for _ in range(processes)]
        except Absent as reason:
            result.absent[f"{name}, until the first result"] = str(reason)
            continue
        result.compile_seconds[name] = statistics.median(seconds)
    return result


def _compile_in_process(case: Case, name: str, threads: int) -> float:
    """Seconds until the first result, in a fresh process that finds no cache of an earlier one.

    Raises:
        Absent: the process failed.
    """
    command = [sys.executable, "-m", "rnnpack.bench.deployment", case.id, name, str(threads)]
    with tempfile.TemporaryDirectory() as empty:
        caches = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_CACHE_DIR": empty}
        done = subprocess.run(
            command, capture_output=True, check=False, text=True, env=os.environ | caches
        )
    if done.returncode:
        raise Absent(f"the process that compiles failed: {done.stderr.strip()[-300:]}")
    return float(done.stdout.split()[-1])


def _seconds_to_first_result(case: Case, name: str, threads: int) -> float:
    torch.set_num_threads(threads)
    problem = build(case)
    with torch.no_grad():
        start = time.perf_counter()
        WAYS[name](problem, threads).call()
        return time.perf_counter() - start


if __name__ == "__main__":
    case_id, way, thread_count = sys.argv[1:]
    print(_seconds_to_first_result(select(pattern=case_id)[0], way, int(thread_count)))
