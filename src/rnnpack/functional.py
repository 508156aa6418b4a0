"""Chooses the path of a call, and runs stacks of layers where one op does not.

The paths, best first:

  infer      the whole stack in one native op, no gradient
  train      one native op per layer and direction, with its native gradient
  torch      torch's own kernels: other devices, float64, or no native library
  reference  plain torch operations: transforms, forward AD, and what torch's kernels lack
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch._C import _functorch
from torch.autograd import forward_ad

from rnnpack import ops
from rnnpack.ops import CELL_INDEX, CELLS, TrainInputs, is_direct, library_status, reference_train

_NATIVE = library_status().loaded
_NATIVE_DEVICES = ("cpu", "meta")
_LOW_PRECISION = (torch.bfloat16, torch.float16)
_NATIVE_DTYPES = (torch.float32, *_LOW_PRECISION)
_PLAIN_TENSORS = (Tensor, torch.nn.Parameter)


@dataclass(frozen=True)
class Path:
    """The path of a call and the reason for it.

    kind: "infer", "infer-direct" (plain weights, nothing packed), "packed", "train", "torch" or
    "reference".
    """

    kind: str
    reason: str

    @property
    def native(self) -> bool:
        """Whether the native engine does the work."""
        return self.kind in ("infer", "infer-direct", "packed", "train")


class Stack(NamedTuple):
    """What a call is, beside its tensors."""

    cell: str
    num_layers: int
    hidden_size: int
    proj_size: int
    bidirectional: bool
    batch_first: bool
    dropout: float  # between layers; 0 when not training
    recompute: bool


Weights: TypeAlias = list[Tensor]  # per layer and direction: ih, hh [, bias ih, bias hh] [, hr]
Results: TypeAlias = tuple[Tensor, Tensor, Tensor]  # output, h_n, c_n (empty without a cell state)
LayerFunction: TypeAlias = Callable[
    [Stack, Tensor, Tensor | None, Tensor | None, Weights, Tensor | None, Tensor | None], Results
]


def run(
    stack: Stack,
    input: Tensor,
    h_0: Tensor | None,
    c_0: Tensor | None,
    weights: Weights,
    lengths: Tensor | None = None,
    batch_sizes: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Run a stack of layers; arguments are checked by the caller.

    Args:
        stack: the layers.
        input: [L, N, H_in], [N, L, H_in] if `stack.batch_first`, or [sum(batch_sizes), H_in].
        h_0, c_0: [directions * layers, N, .]; None: zero.
        weights: see `Weights`.
        lengths: int64 [N] or None; excludes `batch_sizes`.
        batch_sizes: int64 [L] of a packed sequence, or None.
    Returns:
        `(output, h_n, c_n)`; c_n is None for cells without a cell state.
    """
    path = choose(stack, input, h_0, c_0, weights, lengths, batch_sizes)
    run_path = _PATHS[path]
    compute, result = _precision(input)
    if compute is None:
        output, h_n, c_n = run_path(stack, input, h_0, c_0, weights, lengths, batch_sizes)
    else:
        with torch.autocast("cpu", enabled=False):
            output, h_n, c_n = run_path(
                stack,
                input.to(compute),
                None if h_0 is None else h_0.to(compute),
                None if c_0 is None else c_0.to(compute),
                [
                    weight.to(compute) if weight.is_floating_point() else weight
                    for weight in weights
                ],
                lengths,
                batch_sizes,
            )
        output, h_n, c_n = output.to(result), h_n.to(result), c_n.to(result)
    return output, h_n, c_n if CELLS[CELL_INDEX[stack.cell]].has_cell_state else None


def _precision(input: Tensor) -> tuple[torch.dtype | None, torch.dtype]:
    """The dtype to compute in (None: the input's own, nothing to cast) and that of the results.

    16-bit tensors and autocast regions are computed in float32: the results differ from it by one
    rounding. On other devices torch's kernels have rules of their own.
    """
    device = input.device.type
    if device not in _NATIVE_DEVICES or not _NATIVE:
        return None, input.dtype
    if torch.is_autocast_enabled("cpu") and input.dtype in _NATIVE_DTYPES:
        return torch.float32, torch.get_autocast_dtype("cpu")
    if input.dtype in _LOW_PRECISION:
        return torch.float32, input.dtype
    return None, input.dtype


def op_may_run_at_once(input: object) -> bool:
    """Whether a call without gradients may go to the op without looking at its arguments first.

    A CPU tensor; no gradient, transform, forward AD or autocast region; not being traced (there the
    long way is free).
    """
    return (
        type(input) is Tensor
        and input.is_cpu
        and not torch.is_grad_enabled()
        and _NATIVE
        and _functorch.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
        and not torch._C._is_any_autocast_enabled()
        and not torch.compiler.is_compiling()
    )


def states_of(hx: Any, *, has_cell_state: bool) -> tuple[Any, Any]:
    """The states in `hx` where it has the right form; else TypeError, without a reason."""
    if hx is None:
        return None, None
    if not has_cell_state:
        return hx, None
    if type(hx) not in (tuple, list) or len(hx) != 2 or hx[0] is None or hx[1] is None:
        raise TypeError
    return hx[0], hx[1]


def needs_gradient(input: Tensor, h_0: Tensor | None, c_0: Tensor | None, weights: Weights) -> bool:
    """Grad mode is on and any of input, states, weights requires a gradient."""
    if not torch.is_grad_enabled():
        return False
    if input.requires_grad or any(weight.requires_grad for weight in weights):
        return True
    return (h_0 is not None and h_0.requires_grad) or (c_0 is not None and c_0.requires_grad)


def choose(
    stack: Stack,
    input: Tensor,
    h_0: Tensor | None,
    c_0: Tensor | None,
    weights: Weights,
    lengths: Tensor | None = None,
    batch_sizes: Tensor | None = None,
) -> str:
    """The path's name; `explain` says why."""
    if _transformed(input, weights):
        return "reference"
    if not _NATIVE or input.device.type not in _NATIVE_DEVICES or input.dtype not in _NATIVE_DTYPES:
        return "torch" if _torch_can(stack, input, lengths) else "reference"
    return "train" if needs_gradient(input, h_0, c_0, weights) else "infer"


def _transformed(input: Tensor, weights: Weights) -> bool:
    """Whether a functorch transform, forward AD or a tensor subclass watches single operations."""
    if torch.compiler.is_compiling():
        return False
    if _functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return True
    if type(input) is Tensor and all(type(weight) in _PLAIN_TENSORS for weight in weights):
        return False
    return any(_watches(tensor) for tensor in (input, *weights))


def _watches(tensor: Tensor) -> bool:
    if isinstance(
        tensor, torch._subclasses.FakeTensor | torch._subclasses.functional_tensor.FunctionalTensor
    ):
        return False  # tracing: the op stays one node
    return type(tensor).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl and (
        type(tensor) not in _PLAIN_TENSORS
    )


def _torch_can(stack: Stack, input: Tensor, lengths: Tensor | None) -> bool:
    seq_len = input.size(1 if stack.batch_first else 0)
    return lengths is None and seq_len > 0


def explain(
    stack: Stack,
    input: Tensor,
    h_0: Tensor | None,
    c_0: Tensor | None,
    weights: Weights,
    lengths: Tensor | None = None,
    batch_sizes: Tensor | None = None,
) -> Path:
    """The path that `run` takes for these arguments, and why."""
    path = choose(stack, input, h_0, c_0, weights, lengths, batch_sizes)
    if path in ("torch", "reference"):
        return Path(path, _why_not_native(path, input, weights))
    if path == "train":
        return Path(
            path, "a gradient is needed: grad mode is on and input, states or weights require it"
        )
    if weights[0].dtype == torch.uint8:
        return Path("packed", "the layer holds packed weights")
    if stack.dropout > 0 and stack.num_layers > 1:
        return Path(
            "infer", "no gradient is needed; dropout between layers makes it one op a layer"
        )
    rows = input.size(0) if batch_sizes is not None else input.size(0) * input.size(1)
    if is_direct(rows):
        return Path(
            "infer-direct",
            f"no gradient is needed; {rows} rows (steps x batch) are too few to pay for packing, "
            "plain weights are used as they are and the last bits may differ from the packed "
            "product",
        )
    return Path("infer", "no gradient is needed; weights are packed within the call")


def _why_not_native(path: str, input: Tensor, weights: Weights) -> str:
    """Why a call takes the path "torch" or "reference"."""
    if _transformed(input, weights):
        return "a function transform, forward AD or a tensor subclass watches single operations"
    if not _NATIVE:
        why = f"no native library: {library_status().reason}"
    elif input.device.type not in _NATIVE_DEVICES:
        why = f"the native engine runs on the CPU, the input is on {input.device}"
    else:
        why = f"the native engine takes float32, bfloat16 and float16, the input is {input.dtype}"
    if path == "reference":
        why += "; torch's kernels have neither lengths nor empty sequences"
    return why


def _infer(
    stack: Stack,
    input: Tensor,
    h_0: Tensor | None,
    c_0: Tensor | None,
    weights: Weights,
    lengths: Tensor | None,
    batch_sizes: Tensor | None,
) -> Results:
    if stack.dropout > 0 and stack.num_layers > 1:
        return _layer_by_layer(_infer, stack, input, h_0, c_0, weights, lengths, batch_sizes)
    return ops.infer(  # type: ignore[no-any-return]
        input,
        h_0,
        c_0,
        weights,
        lengths,
        batch_sizes,
        CELL_INDEX[stack.cell],
        stack.num_layers,
        stack.hidden_size,
        stack.proj_size,
        stack.bidirectional,
        stack.batch_first,
    )


def _train(
    stack: Stack,
    input: Tensor,
    h_0: Tensor | None,
    c_0: Tensor | None,
    weights: Weights,
    lengths: Tensor | None,
    batch_sizes: Tensor | None,
) -> Results:
    layer = _each_direction(ops.train)
    return _layer_by_layer(layer, stack, input, h_0, c_0, weights, lengths, batch_sizes)


def _reference(
    stack: Stack,
    input: Tensor,
    h_0: Tensor | None,
    c_0: Tensor | None,
    weights: Weights,
    lengths: Tensor | None,
    batch_sizes: Tensor | None,
) -> Results:
    layer = _each_direction(reference_train)
    return _layer_by_layer(layer, stack, input, h_0, c_0, weights, lengths, batch_sizes)


def _torch(
    stack: Stack,
    input: Tensor,
    h_0: Tensor | None,
    c_0: Tensor | None,
    weights: Weights,
    lengths: Tensor | None,
    batch_sizes: Tensor | None,
) -> Results:
    """Torch's own kernel, weights handed over as they are."""
    directions = 2 if stack.bidirectional else 1
    stacks = stack.num_layers * directions
    each = len(weights) // stacks
    if batch_sizes is not None:
        batch = int(batch_sizes[0])
    else:
        batch = input.size(0 if stack.batch_first else 1)
    if h_0 is None:
        h_0 = input.new_zeros((stacks, batch, stack.proj_size or stack.hidden_size))
    has_cell_state = CELLS[CELL_INDEX[stack.cell]].has_cell_state
    if c_0 is None and has_cell_state:
        c_0 = input.new_zeros((stacks, batch, stack.hidden_size))
    hx = [h_0, c_0] if has_cell_state else h_0
    kernel = getattr(torch._VF, stack.cell)
    options = (each >= _WEIGHTS_WITH_BIAS, stack.num_layers, stack.dropout, stack.dropout > 0)
    if batch_sizes is not None:
        result = kernel(input, batch_sizes, hx, weights, *options, stack.bidirectional)
    else:
        result = kernel(input, hx, weights, *options, stack.bidirectional, stack.batch_first)
    return result if has_cell_state else (*result, input.new_empty((0,)))


_PATHS: dict[str, LayerFunction] = {
    "infer": _infer,
    "train": _train,
    "torch": _torch,
    "reference": _reference,
}
_WEIGHTS_WITH_BIAS = 4  # of one layer and direction: ih, hh, bias ih, bias hh


def _layer_by_layer(
    run_layer: LayerFunction,
    stack: Stack,
    input: Tensor,
    h_0: Tensor | None,
    c_0: Tensor | None,
    weights: Weights,
    lengths: Tensor | None,
    batch_sizes: Tensor | None,
) -> Results:
    """Each layer's output, through dropout, is the next one's input; all time-major."""
    transposed = stack.batch_first and batch_sizes is None
    if transposed:
        input = input.transpose(0, 1)
    directions = 2 if stack.bidirectional else 1
    each = len(weights) // stack.num_layers
    one = stack._replace(num_layers=1, batch_first=False, dropout=0.0)
    h_n, c_n = [], []
    for index in range(stack.num_layers):
        if index > 0 and stack.dropout > 0:
            input = torch.nn.functional.dropout(input, stack.dropout)
        states = slice(index * directions, (index + 1) * directions)
        input, h, c = run_layer(
            one,
            input,
            None if h_0 is None else h_0[states],
            None if c_0 is None else c_0[states],
            weights[index * each : (index + 1) * each],
            lengths,
            batch_sizes,
        )
        h_n.append(h)
        c_n.append(c)
    return input.transpose(0, 1) if transposed else input, _join(h_n), _join(c_n)


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _each_direction(run_direction: Callable[[TrainInputs], tuple[Tensor, ...]]) -> LayerFunction:
    """A layer made of one direction, or of two whose outputs lie side by side."""

    def run_layer(
        stack: Stack,
        input: Tensor,
        h_0: Tensor | None,
        c_0: Tensor | None,
        weights: Weights,
        lengths: Tensor | None,
        batch_sizes: Tensor | None,
    ) -> Results:
        directions = 2 if stack.bidirectional else 1
        each = len(weights) // directions
        outputs, h_n, c_n = [], [], []
        for d in range(directions):
            own = weights[d * each : (d + 1) * each]
            bias_ih, bias_hh = own[2:4] if each >= _WEIGHTS_WITH_BIAS else (None, None)
            inputs = TrainInputs(
                input,
                None if h_0 is None else h_0[d],
                None if c_0 is None else c_0[d],
                own[0],
                own[1],
                bias_ih,
                bias_hh,
                own[-1] if stack.proj_size else None,
                lengths,
                batch_sizes,
                CELL_INDEX[stack.cell],
                d == 1,
                stack.recompute,
            )
            output, h, *c = run_direction(inputs)
            outputs.append(output)
            h_n.append(h)
            c_n.extend(c)
        output = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        c_all = torch.stack(c_n) if c_n else input.new_empty((0,))
        return output, torch.stack(h_n), c_all

    return run_layer


def run_cell(
    cell: str,
    hidden_size: int,
    input: Tensor,
    h_0: Tensor | None,
    c_0: Tensor | None,
    weights: Weights,
) -> tuple[Tensor, Tensor | None]:
    """One step: input [N, H_in], states [N, hidden] to h and c (None without a cell state)."""
    arguments = _cell_as_stack(cell, hidden_size, input, h_0, c_0)
    output, _, c_n = run(*arguments, weights)
    return output[0], None if c_n is None else c_n[0]


def explain_cell(
    cell: str,
    hidden_size: int,
    input: Tensor,
    h_0: Tensor | None,
    c_0: Tensor | None,
    weights: Weights,
) -> Path:
    """The path that a cell takes for these arguments, and why."""
    return explain(*_cell_as_stack(cell, hidden_size, input, h_0, c_0), weights)


def _cell_as_stack(
    cell: str, hidden_size: int, input: Tensor, h_0: Tensor | None, c_0: Tensor | None
) -> tuple[Stack, Tensor, Tensor | None, Tensor | None]:
    stack = Stack(cell, 1, hidden_size, 0, False, False, 0.0, False)
    sequence = input.unsqueeze(0)
    h_sequence = None if h_0 is None else h_0.unsqueeze(0)
    c_sequence = None if c_0 is None else c_0.unsqueeze(0)
    return stack, sequence, h_sequence, c_sequence
