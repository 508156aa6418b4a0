"""The native library in a process of its own: every instruction set, and what comes with it.

The library reads its environment once, when it is loaded, so each setting needs a fresh process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from helpers import LSTM, assert_as_accurate, stack
from rnnpack.ops import CELL_INDEX, library_status

TESTS = Path(__file__).parent

# What `rnnpack.ops.library_status().features` must list for each.
NEEDED = {
    "baseline": set(),
    "neon": {"neon"},
    "avx2": {"avx2", "fma"},
    "avx512": {"avx512f", "avx512vl", "avx512bw", "avx512dq"},
}

native = pytest.mark.skipif(
    not library_status().loaded, reason=f"no native library: {library_status().reason}"
)


def run_python(code: str, *arguments: str, **environment: str) -> str:
    """Run `code` in a fresh process; it finds the tests' modules. Returns what it printed."""
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    inherited = {key: value for key, value in os.environ.items() if key != "RNNPACK_ISA"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=inherited | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- Instruction sets -----------------------------------------------------------------------------

SAME_EVERYWHERE = """
import sys
import torch
import rnnpack.ops
from helpers import KINDS, LSTM, Case, run_all

torch.manual_seed(0)
for kind in KINDS:
    for steps, rows, hidden in ((1, 1, 17), (2, 3, 7), (9, 5, 33), (20, 1, 150)):
        case = Case(kind, steps, rows, input_size=hidden + 2, hidden_size=hidden, num_layers=2,
                    bidirectional=rows > 1)
        run_all(case).check()
    run_all(Case(kind, 7, 3, input_size=5, hidden_size=19), with_gradients=True).check()
run_all(Case(LSTM, 7, 3, 5, 19, proj_size=6), with_gradients=True).check()

saved = torch.load(sys.argv[1])
assert torch.ops.rnnpack.check_packed(saved["packed"], saved["cell"]) == tuple(saved["sizes"])
results = torch.ops.rnnpack.infer(saved["input"], None, None, [saved["packed"]], None, None,
                                  saved["cell"], 1, *saved["sizes"][1:], False, False)
torch.save(results, sys.argv[2])
print(rnnpack.ops.library_status().isa)
"""


@native
@pytest.mark.parametrize("isa", NEEDED)
def test_every_instruction_set_is_as_accurate_as_torch(isa: str, tmp_path: Path) -> None:
    """Values and gradients of a few layers, and weights that were packed on another one."""
    if not NEEDED[isa] <= set(library_status().features):
        pytest.skip(f"this processor has no {isa}")
    ours, torchs = LSTM.pair(6, 35, proj_size=11)
    packed = torch.ops.rnnpack.pack(
        CELL_INDEX["lstm"], *(parameter.detach() for parameter in ours.parameters())
    )
    input = torch.randn(9, 3, 6)
    torch.save(
        {"packed": packed, "cell": CELL_INDEX["lstm"], "sizes": [6, 35, 11], "input": input},
        tmp_path / "packed.pt",
    )

    printed = run_python(
        SAME_EVERYWHERE,
        str(tmp_path / "packed.pt"),
        str(tmp_path / "results.pt"),
        RNNPACK_ISA=isa,
    )

    assert printed.strip() == isa
    names = ("output", "h_n", "c_n")
    exact = {name: parameter.detach().double() for name, parameter in ours.named_parameters()}
    output, states = stack(ours, exact, input.double())
    with torch.no_grad():
        torch_output, torch_states = torchs(input)
    assert_as_accurate(
        dict(zip(names, torch.load(tmp_path / "results.pt"), strict=True)),
        dict(zip(names, (torch_output, *torch_states), strict=True)),
        dict(zip(names, (output, *states), strict=True)),
    )


WHICH = "import rnnpack.ops; print(rnnpack.ops.library_status().isa)"


@native
@pytest.mark.parametrize("asked", ["", "avx1024"])
def test_a_name_that_is_no_instruction_set_here_leaves_the_best(asked: str) -> None:
    assert run_python(WHICH, RNNPACK_ISA=asked) == run_python(WHICH)


# --- What a process gets --------------------------------------------------------------------------

LOADED = """
import json
import sys
import torch
before = set(sys.modules)
import rnnpack
print(json.dumps(sorted(set(sys.modules) - before)))
"""

# Each of these costs from tens of milliseconds to seconds, and no layer needs it.
HEAVY = {
    "IPython", "hypothesis", "jax", "matplotlib", "onnx", "onnxruntime", "openvino", "pandas",
    "pytest", "rich", "safetensors", "scipy", "sympy",
    "torch._dynamo", "torch._inductor", "torch.export", "torch.fx.experimental.symbolic_shapes",
    "torch.onnx", "torch.testing", "torch.utils.tensorboard",
    "rnnpack.bench", "rnnpack.cli",
}  # fmt: skip


def test_import_brings_nothing_heavy() -> None:
    """`import rnnpack` must add little to `import torch`."""
    added = json.loads(run_python(LOADED))
    assert "rnnpack.layers" in added
    heavy = {name for name in added if any(f"{name}.".startswith(f"{one}.") for one in HEAVY)}
    assert not heavy, f"import rnnpack also imports {sorted(heavy)}"


ONE_TEAM = """
import torch
import rnnpack
torch.set_num_threads(2)
with torch.no_grad():
    rnnpack.LSTM(64, 64)(torch.randn(50, 32, 64))
torch.randn(500, 500) @ torch.randn(500, 500)
paths = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
print(*(path for path in sorted(paths) if "omp" in path.rsplit("/", 1)[1]), sep="\\n")
"""


@native
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_threads_are_the_ones_that_torch_has() -> None:
    """One libgomp: a second one would bring a second set of threads, and both would spin."""
    runtimes = run_python(ONE_TEAM).split()
    assert len(runtimes) == 1, runtimes
