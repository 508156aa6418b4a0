"""The cases, the float64 truth and the bound that the tests share.

A result is a dict of named tensors ("output", "h_n", "c_n", gradients as "d_<name>"), so that
values and gradients of ours, of torch's and of the truth are compared by one function.
"""

import itertools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import rnnpack
from rnnpack import reference

Result = dict[str, Tensor]


@dataclass(frozen=True)
class Kind:
    """One recurrent class in both libraries, with the option that makes it a cell of its own."""

    name: str
    cell: str
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return self.cell

    @property
    def ours(self) -> type[nn.Module]:
        return getattr(rnnpack, self.name)

    @property
    def torchs(self) -> type[nn.Module]:
        return getattr(nn, self.name)

    @property
    def states(self) -> int:
        return 2 if self.cell == "lstm" else 1

    def make(self, *args: Any, **kwargs: Any) -> nn.Module:
        return self.ours(*args, **dict(self.options), **kwargs)

    def make_torchs(self, *args: Any, **kwargs: Any) -> nn.Module:
        return self.torchs(*args, **dict(self.options), **kwargs)

    def pair(self, *args: Any, **kwargs: Any) -> tuple[nn.Module, nn.Module]:
        """Build ours and torch's with the same weights."""
        ours, torchs = self.make(*args, **kwargs), self.make_torchs(*args, **kwargs)
        torchs.load_state_dict(ours.state_dict())
        return ours, torchs


LSTM = Kind("LSTM", "lstm")
GRU = Kind("GRU", "gru")
RNN_TANH = Kind("RNN", "rnn_tanh", (("nonlinearity", "tanh"),))
RNN_RELU = Kind("RNN", "rnn_relu", (("nonlinearity", "relu"),))
KINDS = (LSTM, GRU, RNN_TANH, RNN_RELU)


@dataclass(frozen=True)
class Case:
    """One problem: a layer's options, the sizes of its input, whether states are given."""

    kind: Kind
    seq_len: int
    batch: int
    input_size: int
    hidden_size: int
    num_layers: int = 1
    bias: bool = True
    bidirectional: bool = False
    proj_size: int = 0
    with_hx: bool = True

    def __str__(self) -> str:
        text = f"{self.kind}-{self.seq_len}x{self.batch}-{self.input_size}to{self.hidden_size}"
        text += f"-{self.num_layers}l" + ("-bi" if self.bidirectional else "")
        text += f"-proj{self.proj_size}" if self.proj_size else ""
        return text + ("" if self.bias else "-nobias") + ("" if self.with_hx else "-nohx")

    def layer_options(self) -> dict[str, Any]:
        options = dict(
            input_size=self.input_size,
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            bias=self.bias,
            bidirectional=self.bidirectional,
        )
        return options | ({"proj_size": self.proj_size} if self.proj_size else {})

    def pair(self, **kwargs: Any) -> tuple[nn.Module, nn.Module]:
        return self.kind.pair(**self.layer_options(), **kwargs)

    def input(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(self.seq_len, self.batch, self.input_size).to(dtype)

    def hx(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...] | None:
        """Draw initial states as a tuple, `(h_0, c_0)` or `(h_0,)`; None if the case has none."""
        if not self.with_hx:
            return None
        rows = self.num_layers * (2 if self.bidirectional else 1)
        sizes = (self.proj_size or self.hidden_size, self.hidden_size)[: self.kind.states]
        return tuple(torch.randn(rows, self.batch, size).to(dtype) for size in sizes)


HIDDEN = (1, 7, 8, 9, 17, 64, 150, 256)
ROWS = (1, 3, 4, 33)
STEPS = (1, 2, 50)


def cases(kind: Kind, *, every_step: bool = True) -> list[Case]:
    """List every hidden size with every number of rows (and of steps); the options take turns.

    Layers, directions, bias, projection and states turn at periods without a common factor with
    each other or with the grid's, so that each value meets every other somewhere in the list.
    """
    turns = zip(
        itertools.cycle((1, 2, 1, 3, 1)),
        itertools.cycle((False, True, False, False, True, False, True)),
        itertools.cycle((True, True, True, False, True, True, True, True, False, True, True)),
        itertools.cycle((0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0)),
        itertools.cycle((True, False, True) + (True, False) * 7),
    )
    steps = itertools.cycle(STEPS)
    listed = []
    for hidden, rows in itertools.product(HIDDEN, ROWS):
        for seq_len in STEPS if every_step else (next(steps),):
            num_layers, bidirectional, bias, projected, with_hx = next(turns)
            listed.append(
                Case(
                    kind,
                    seq_len,
                    rows,
                    # Odd, and seldom the hidden size: later layers must read their own sizes.
                    input_size=(hidden if len(listed) % 3 == 0 else hidden + 6 - len(listed) % 5),
                    hidden_size=hidden,
                    num_layers=num_layers,
                    bidirectional=bidirectional,
                    bias=bias,
                    proj_size=(hidden + 1) // 2 if projected and hidden > 1 and kind is LSTM else 0,
                    with_hx=with_hx,
                )
            )
    return listed


def state_tuple(hx: Any) -> tuple[Tensor, ...]:
    """Give the states of any kind as a tuple, the form that the reference speaks."""
    return (hx,) if isinstance(hx, Tensor) else tuple(hx)


def call(layer: nn.Module, input: Any, hx: tuple[Tensor, ...] | None = None, **kwargs: Any) -> Any:
    """Call a layer with its states as a tuple; return `(output, states as a tuple)`."""
    argument = hx[0] if hx is not None and len(hx) == 1 else hx
    output, states = layer(input, argument, **kwargs)
    return output, state_tuple(states)


class Layer(nn.Module):
    """A layer with its states as a tuple in and out, so that all kinds have one signature."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, input: Any, hx: Any = None, lengths: Tensor | None = None) -> Any:
        options = {} if lengths is None else {"lengths": lengths}
        return call(self.layer, input, hx, **options)


def layer_weights(
    parameters: dict[str, Tensor], index: int, reverse: bool
) -> reference.LayerWeights:
    suffix = f"_l{index}" + ("_reverse" if reverse else "")
    return reference.LayerWeights(
        **{name: parameters.get(name + suffix) for name in reference.LayerWeights._fields}
    )


def stack(
    layer: nn.Module,
    parameters: dict[str, Tensor],
    input: Tensor,
    hx: tuple[Tensor, ...] | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run a whole stack on the reference: [L, N, H_in] to (output, final states as a tuple).

    Options come from `layer`, weights from `parameters`, so that one loop serves float64, gradients
    and transforms. Dropout is not applied.
    """
    cell = layer.mode.lower()
    directions = 2 if layer.bidirectional else 1
    finals = []
    for index in range(layer.num_layers):
        outputs = []
        for direction in range(directions):
            weights = layer_weights(parameters, index, direction == 1)
            if hx is None:
                h = input.new_zeros(input.size(1), layer.proj_size or layer.hidden_size)
                c = input.new_zeros(input.size(1), layer.hidden_size)
                initial = (h, c) if cell == "lstm" else (h,)
            else:
                initial = tuple(state[index * directions + direction] for state in hx)
            output, final = reference.layer(
                cell, input, initial, weights, reverse=direction == 1, lengths=lengths
            )
            outputs.append(output)
            finals.append(final)
        input = torch.cat(outputs, -1)
    return input, tuple(torch.stack(states) for states in zip(*finals, strict=True))


def named(output: Tensor, states: tuple[Tensor, ...]) -> Result:
    return dict(zip(("output", "h_n", "c_n"), (output, *states), strict=False))


Forward = Callable[[Tensor, tuple[Tensor, ...] | None], tuple[Tensor, tuple[Tensor, ...]]]


def values(forward: Forward, input: Tensor, hx: tuple[Tensor, ...] | None) -> Result:
    """Run without gradients."""
    with torch.no_grad():
        return named(*forward(input, hx))


def gradients(
    forward: Forward,
    parameters: dict[str, Tensor],
    input: Tensor,
    hx: tuple[Tensor, ...] | None,
    cotangents: Result,
) -> Result:
    """Run with gradients: values, and gradients of all leaves for the given `cotangents`."""
    input = input.detach().clone().requires_grad_()
    hx = None if hx is None else tuple(state.detach().clone().requires_grad_() for state in hx)
    result = named(*forward(input, hx))
    leaves = {"input": input} | dict(zip(("h_0", "c_0"), hx or (), strict=False)) | parameters
    grads = torch.autograd.grad(
        list(result.values()),
        list(leaves.values()),
        [cotangents[name].to(tensor.dtype) for name, tensor in result.items()],
    )
    detached = {name: tensor.detach() for name, tensor in result.items()}
    return detached | {f"d_{name}": grad for name, grad in zip(leaves, grads, strict=True)}


@dataclass
class Three:
    """The same problem solved three times."""

    ours: list[Result] = field(default_factory=list)
    torchs: list[Result] = field(default_factory=list)
    truth: list[Result] = field(default_factory=list)

    def check(self) -> None:
        assert_as_accurate(joined(self.ours), joined(self.torchs), joined(self.truth))


def joined(results: list[Result]) -> Result:
    return {name: torch.cat([result[name].flatten() for result in results]) for name in results[0]}


def repeats(case: Case) -> int:
    """How many draws of a case to join.

    A bound of twice another's error says little where a result is a handful of numbers: there one
    side's rounding may happen to cancel. Joined draws give each tensor about 256 elements, in at
    most 24 draws.
    """
    elements = case.batch * min(case.hidden_size, case.proj_size or case.hidden_size)
    return max(1, min(24, 256 // elements))


def run_all(
    case: Case,
    *,
    dtype: torch.dtype = torch.float32,
    with_gradients: bool = False,
    require_native: bool = True,
) -> Three:
    """Solve a case by ours, by torch.nn in the same dtype and by the reference in float64."""
    three = Three()
    threads = torch.get_num_threads()
    for _ in range(repeats(case)):
        ours, torchs = case.pair(dtype=dtype)
        input, hx = case.input(dtype), case.hx(dtype)
        if require_native:
            assert_native(ours, input, hx, training=with_gradients)
        exact = {
            name: parameter.detach().double().requires_grad_()
            for name, parameter in ours.named_parameters()
        }

        solved = (
            (three.ours, partial(call, ours), dict(ours.named_parameters()), dtype),
            (three.torchs, partial(call, torchs), dict(torchs.named_parameters()), dtype),
            (three.truth, partial(stack, ours, exact), exact, torch.float64),
        )
        cotangents: Result = {}
        if with_gradients:
            shapes = values(partial(call, ours), input, hx)
            cotangents = {name: torch.randn_like(value) for name, value in shapes.items()}
        for results, forward, parameters, run_dtype in solved:
            # Only ours is under test with a team of threads; the yardsticks need not wait for one.
            torch.set_num_threads(threads if results is three.ours else 1)
            data = input.to(run_dtype)
            states = None if hx is None else tuple(state.to(run_dtype) for state in hx)
            if with_gradients:
                results.append(gradients(forward, parameters, data, states, cotangents))
            else:
                results.append(values(forward, data, states))
        torch.set_num_threads(threads)
    return three


def assert_as_accurate(ours: Result, torchs: Result, truth: Result) -> None:
    """Check each tensor: error at most twice torch's, plus 4 eps of the largest true value."""
    assert ours.keys() == torchs.keys() == truth.keys()
    for name, exact in truth.items():
        mine, other = ours[name], torchs[name]
        assert mine.shape == exact.shape, f"{name}: shape {tuple(mine.shape)}"
        assert mine.dtype == other.dtype, f"{name}: {mine.dtype}, torch gives {other.dtype}"
        if exact.numel() == 0:
            continue
        error = (mine.double() - exact).abs().max().item()
        torch_error = (other.double() - exact).abs().max().item()
        bound = 2 * torch_error + 4 * torch.finfo(mine.dtype).eps * exact.abs().max().item()
        # Written so that a NaN fails.
        assert error <= bound, f"{name}: error {error:.3g} > {bound:.3g}, torch's {torch_error:.3g}"


def assert_same_bits(left: Any, right: Any) -> None:
    """Compare tensors, or nested tuples and lists of them, bit by bit."""
    if isinstance(left, Tensor):
        assert left.shape == right.shape and left.dtype == right.dtype
        assert torch.equal(left, right), f"differ by up to {(left - right).abs().max().item():.3g}"
        return
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert_same_bits(one, other)


def assert_native(
    layer: nn.Module,
    input: Any,
    hx: tuple[Tensor, ...] | None = None,
    *,
    training: bool,
    **kwargs: Any,
) -> None:
    """Check that this call would be ours: comparing torch with itself says nothing."""
    argument = hx[0] if hx is not None and len(hx) == 1 else hx
    with torch.set_grad_enabled(training):
        path = rnnpack.explain(layer, input, argument, **kwargs)
    assert path.native, f"takes the path {path.kind!r}: {path.reason}"
    assert (path.kind == "train") == training, f"takes the path {path.kind!r}: {path.reason}"


def outcome(function: Callable[[], Any]) -> tuple[type[BaseException], str] | None:
    """Give the type and text of the error that `function` raises, or None."""
    try:
        function()
    except Exception as error:
        return type(error), str(error)
    return None


def twin(layer: nn.Module) -> nn.Module:
    """Build torch.nn's layer of the same class, options and current weights."""
    name = type(layer).__name__
    options = {key: getattr(layer, key) for key in ("bias", "input_size", "hidden_size")}
    if name.endswith("Cell"):
        options |= {"nonlinearity": layer.nonlinearity} if name == "RNNCell" else {}
    else:
        keys = ("num_layers", "batch_first", "dropout", "bidirectional")
        options |= {key: getattr(layer, key) for key in keys}
        options |= {"proj_size": layer.proj_size} if name == "LSTM" else {}
        options |= {"nonlinearity": layer.nonlinearity} if name == "RNN" else {}
    parameter = next(layer.parameters())
    copied = getattr(nn, name)(**options, device=parameter.device, dtype=parameter.dtype)
    copied.load_state_dict(layer.state_dict())
    return copied.train(layer.training)


def rows_of(hx: tuple[Tensor, ...] | None, row: int) -> tuple[Tensor, ...] | None:
    return None if hx is None else tuple(state[:, row : row + 1].contiguous() for state in hx)


# What torch.nn says where none of its own checks looks: texts of a kernel far inside, which name
# neither the argument nor what to do.
TEXTS_OF_KERNELS = (
    "mat1 and mat2",
    "The size of tensor a",
    "data type",
)


def assert_fails_as_in_torch(ours: Callable[[], Any], torchs: Callable[[], Any]) -> None:
    """Check for the same error type and text; for a text that helps where torch's is a kernel's."""
    mine, theirs = outcome(ours), outcome(torchs)
    assert theirs is not None, "torch accepts this"
    assert mine is not None, f"accepted; torch raises {theirs}"
    assert mine[0] is theirs[0], f"{mine}; torch raises {theirs}"
    if mine[1] != theirs[1]:
        assert any(text in theirs[1] for text in TEXTS_OF_KERNELS), f"{mine}; torch raises {theirs}"
        assert any(word in mine[1] for word in ("input", "hidden", "h_0", "hx", "state")), mine


def resident_growth(over: str) -> list[int]:
    """Bytes by which resident memory grows over many calls: see resident.py."""
    script = Path(__file__).with_name("resident.py")
    done = subprocess.run(
        [sys.executable, script, over], check=True, capture_output=True, text=True
    )
    return [int(growth) for growth in done.stdout.split()]
