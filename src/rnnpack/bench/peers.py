"""Who runs a case: rnnpack and its peers, each made ready to be called again and again."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import rnnpack
from rnnpack.bench.cases import Case
from rnnpack.bench.contestant import Absent, Contestant, Values
from rnnpack.bench.jax_peer import jax_contestant
from rnnpack.bench.problem import Problem, build_layer, class_name
from rnnpack.bench.runtimes import onnxruntime_contestant, openvino_contestant
from rnnpack.bench.torchscript import scripted


def torch_nn(problem: Problem, threads: int) -> Contestant:
    """torch.nn's own module, eager; it also says what the right values are."""
    # Each projected layer says so once; here it is the reason for the case, and no news.
    warnings.filterwarnings("ignore", message="LSTM with projections is not supported")
    return _module(problem.layer, problem)


def torchscript(problem: Problem, threads: int) -> Contestant:
    """A custom layer in TorchScript."""
    return _module(scripted(problem.layer), problem)


def ours(problem: Problem, threads: int) -> Contestant:
    """rnnpack, with `torch.nn`'s weights and the path that `explain` names."""
    layer, problem = _our_layer(problem), _in_our_dtype(problem)
    case = problem.case
    path = rnnpack.explain(layer, *_arguments(problem))
    refusal = None if path.native else f"the path was {path.kind}, not native: {path.reason}"
    text = f"{path.kind}: {path.reason}"
    if case.mode != "stream":
        run = _module(layer, problem)
        return Contestant(run.call, run.values, text, refusal)
    make_stream: Any = getattr(layer, "stream", None)
    if make_stream is None:
        raise Absent(f"rnnpack.{class_name(case)} has no stream() yet")
    stream = make_stream(batch_size=case.batch)
    stream.state = problem.states if len(problem.states) > 1 else problem.states[0]
    row = problem.input[0]
    return Contestant(lambda: stream.step(row), lambda y: {"output": y}, text, refusal)


def packed(problem: Problem, threads: int) -> Contestant:
    """rnnpack after `rnnpack.pack`: weights packed beforehand, as the runtimes have them."""
    layer = rnnpack.pack(_our_layer(problem)).model
    return _module(layer, _in_our_dtype(problem))


def _our_layer(problem: Problem) -> nn.Module:
    case = problem.case
    module_class = getattr(rnnpack, class_name(case), None)
    if module_class is None:
        raise Absent(f"rnnpack has no {class_name(case)} yet")
    layer = build_layer(module_class, case, **({"recompute": True} if case.recompute else {}))
    layer.load_state_dict(problem.layer.state_dict())
    return layer.train(problem.layer.training).to(getattr(torch, case.dtype))


def _in_our_dtype(problem: Problem) -> Problem:
    """The problem with its tensors, the leaf of the input included, in the dtype of the case."""
    dtype = getattr(torch, problem.case.dtype)
    if dtype == torch.float32:
        return problem
    return dataclasses.replace(
        problem,
        input=problem.input.detach().to(dtype).requires_grad_(problem.input.requires_grad),
        states=tuple(state.to(dtype) for state in problem.states),
        grad=problem.grad.to(dtype),
    )


def _arguments(problem: Problem) -> tuple[Any, ...]:
    """What a module is called with: the input, and the states if the case gives them."""
    states = problem.states
    if problem.is_cell:
        states = tuple(state[0] for state in states)
    input = problem.input[0] if problem.is_cell else problem.input
    return (input, states if len(states) > 1 else states[0]) if states else (input,)


def _module(layer: nn.Module, problem: Problem) -> Contestant:
    """Calls of a module with torch.nn's signature, as the mode of the case says."""
    arguments = _arguments(problem)
    if problem.case.mode == "infer":
        return Contestant(lambda: layer(*arguments), lambda result: _values(result, problem))
    if problem.case.mode == "stream":
        return _carried(layer, problem)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    leaves = (problem.input, *parameters)
    grad = problem.grad[0] if problem.is_cell else problem.grad

    def train() -> list[Tensor]:
        result = layer(*arguments)
        output = result if isinstance(result, Tensor) else result[0]
        return [output, *torch.autograd.grad(output, leaves, grad)]

    keys = ("output", "grad.input", *(f"grad.{name}" for name in names))
    return Contestant(train, lambda result: dict(zip(keys, result, strict=True)))


def _carried(layer: nn.Module, problem: Problem) -> Contestant:
    input, state = _arguments(problem)

    def step() -> Any:
        nonlocal state
        result = layer(input, state)
        state = result[1]
        return result

    return Contestant(step, lambda result: _values(result, problem))


def _values(result: Any, problem: Problem) -> Values:
    """Names for what a forward returned: output and state of a layer, the state of a cell."""
    output, state = (None, result) if problem.is_cell else result
    values = {} if output is None else {"output": output}
    states = (state,) if isinstance(state, Tensor) else state
    return values | dict(zip(("h_n", "c_n"), states, strict=False))


OURS = "rnnpack"
PACKED = "rnnpack.pack"
BASELINE = "torch.nn"

CONTESTANTS: dict[str, Callable[[Problem, int], Contestant]] = {
    OURS: ours,
    BASELINE: torch_nn,
    PACKED: packed,
    "torchscript": torchscript,
    "onnxruntime": onnxruntime_contestant,
    "openvino": openvino_contestant,
    "jax": jax_contestant,
}


def takes_part(name: str, case: Case) -> bool:
    """Whether a contestant is meant for a case.

    TorchScript where people write such layers, packed weights where nothing is trained.
    """
    if name == PACKED:
        return case.mode == "infer" and case.measure == "time"
    return name != "torchscript" or (case.mode == "train" and case.proj_size > 0)
