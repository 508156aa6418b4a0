"""Chooses the path of a call, and runs stacks of layers where one op does not.

The paths, best first:

  infer      the whole stack in one native op, no gradient
  train      one native op per layer and direction, with its native gradient
  torch      torch's own kernels: other devices, float64, or no native library
  reference  plain torch operations: transforms, forward AD, and what torch's kernels lack
  onnx       operators of ONNX, while torch.onnx.export runs
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch._C import _functorch
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from rnnpack import onnx, ops
from rnnpack.ops import (
    CELL_INDEX,
    CELLS,
    SIXTEEN_BITS,
    TrainInputs,
    is_direct,
    layer_weights,
    library_status,
    reference_train,
)

_NATIVE = library_status().loaded
_NATIVE_DEVICES = ("cpu", "meta")
_NATIVE_DTYPES = (torch.float32, *SIXTEEN_BITS)
# Paths that take float32 weights in an autocast region and round them themselves.
_ROUNDING_PATHS = ("infer", "train", "reference", "onnx")
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

_STEP_DIM = 2  # dimensions of a step's input and states
_WEIGHTS_WITH_BIAS = 4  # of one layer and direction: ih, hh, bias ih, bias hh


class Call(NamedTuple):
    """A stack and its tensors, checked by the caller.

    input: [L, N, H_in], [N, L, H_in] if `stack.batch_first`, or [sum(batch_sizes), H_in].
    h_0, c_0: [directions * layers, N, .]; None: zero. weights: see `Weights`.
    lengths: int64 [N] or None; excludes batch_sizes, int64 [L] of a packed sequence, or None.
    dtype: in which weights are multiplied, rounded to it if need be; None: their own.
    """

    stack: Stack
    input: Tensor
    h_0: Tensor | None
    c_0: Tensor | None
    weights: Weights
    lengths: Tensor | None = None
    batch_sizes: Tensor | None = None
    dtype: torch.dtype | None = None

    @property
    def directions(self) -> int:
        return 2 if self.stack.bidirectional else 1

    @property
    def has_cell_state(self) -> bool:
        return CELLS[CELL_INDEX[self.stack.cell]].has_cell_state

    def cast(self, dtype: torch.dtype, *, keep_float32_weights: bool) -> Call:
        """The same call with its floating tensors in another dtype."""

        def stays(weight: Tensor) -> bool:
            return not weight.is_floating_point() or (
                keep_float32_weights and weight.dtype == torch.float32
            )

        weights = [weight if stays(weight) else weight.to(dtype) for weight in self.weights]
        return self._with_rows(dtype)._replace(weights=weights)

    def widened(self) -> Call:
        """The same 16-bit call with input and states in float32, weights multiplied as before."""
        return self._with_rows(torch.float32)._replace(dtype=self.input.dtype)

    def _with_rows(self, dtype: torch.dtype) -> Call:
        return self._replace(
            input=self.input.to(dtype),
            h_0=None if self.h_0 is None else self.h_0.to(dtype),
            c_0=None if self.c_0 is None else self.c_0.to(dtype),
        )

    def layer(self, index: int, input: Tensor) -> Call:
        """One layer of a time-major call, without the dropout before it."""
        each = len(self.weights) // self.stack.num_layers
        states = slice(index * self.directions, (index + 1) * self.directions)
        return self._replace(
            stack=self.stack._replace(num_layers=1, batch_first=False, dropout=0.0),
            input=input,
            h_0=None if self.h_0 is None else self.h_0[states],
            c_0=None if self.c_0 is None else self.c_0[states],
            weights=self.weights[index * each : (index + 1) * each],
        )

    def as_sequence(self) -> Call:
        """A step (see `step_call`) as a sequence of one."""
        return self._replace(
            input=self.input.unsqueeze(0),
            h_0=None if self.h_0 is None else self.h_0.unsqueeze(0),
            c_0=None if self.c_0 is None else self.c_0.unsqueeze(0),
        )

    def _state_of(self, state: Tensor | None, d: int) -> Tensor | None:
        """The state of one direction: a view whose gradient is a view, too, where it is all."""
        if state is None or state.dim() == _STEP_DIM:
            return state
        return state[d] if self.directions > 1 else state.squeeze(0)

    def direction(self, d: int) -> TrainInputs:
        """One direction of a call of one layer."""
        each = len(self.weights) // self.directions
        return TrainInputs(
            self.input,
            self._state_of(self.h_0, d),
            self._state_of(self.c_0, d),
            *layer_weights(self.weights[d * each : (d + 1) * each]),
            self.lengths,
            self.batch_sizes,
            CELL_INDEX[self.stack.cell],
            d == 1,
            self.stack.recompute,
            self.dtype,
        )


def run(call: Call) -> tuple[Tensor, Tensor, Tensor | None]:
    """Run a stack of layers; returns `(output, h_n, c_n)`, c_n None without a cell state."""
    path = choose(call)
    autocast = _autocast(call.input)
    if autocast is None:
        output, h_n, c_n = _PATHS[path](call)
    else:
        device, dtype = autocast
        call = call.cast(dtype, keep_float32_weights=path in _ROUNDING_PATHS)
        with torch.autocast(device, enabled=False):
            output, h_n, c_n = _PATHS[path](call)
    return output, h_n, c_n if call.has_cell_state else None


def run_step(step: Call) -> tuple[Tensor, Tensor | None]:
    """Run one step of a cell module; returns `(h, c)`, c None without a cell state."""
    plain = step.input.dtype is torch.float32 and not is_compiling()
    if plain and choose(step) == "train" and not in_autocast(step.input):
        # As it is: four views less to record, and as many to go back through.
        h, _, c = ops.train(step.direction(0))
        return h, c if step.has_cell_state else None
    output, _, c_n = run(step.as_sequence())
    return output.squeeze(0), None if c_n is None else c_n.squeeze(0)


def _autocast(input: Tensor) -> tuple[str, torch.dtype] | None:
    """The autocast region that a call with this input runs in: its device type and dtype.

    One rule for every layer, cell and device, that of `nn.Linear`: input, states and weights (on
    the native path those that are matrices and not packed) are rounded to the region's dtype, and
    output and states come in it; a float64 input is left alone.
    """
    device = input.device.type
    if device == "meta":
        device = "cpu"  # shapes alone: those of a call on the CPU
    if input.dtype not in _NATIVE_DTYPES or not (
        device == "cpu" or torch.amp.is_autocast_available(device)
    ):
        return None
    return (device, torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else None


def in_autocast(input: Tensor) -> bool:
    """Whether a call with this input runs in an autocast region, which rounds what it is given."""
    return _autocast(input) is not None


def fits(dtype: torch.dtype, input: Tensor) -> bool:
    """Whether a tensor of this dtype goes with an input: it has the same, or the call runs in an
    autocast region that rounds both. Float64 it leaves alone, as torch's regions do.
    """
    return dtype is input.dtype or (dtype in _NATIVE_DTYPES and in_autocast(input))


def needs_gradient(call: Call) -> bool:
    """Grad mode is on and any of input, states, weights requires a gradient."""
    if not torch.is_grad_enabled():
        return False
    tensors = (call.input, call.h_0, call.c_0, *call.weights)
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _is_traced() -> bool:
    """Whether torch.jit.trace records this call, to be run with gradients or without."""
    return not is_compiling() and torch._C._get_tracing_state() is not None


def choose(call: Call) -> str:
    """The path's name; `explain` says why."""
    input = call.input
    if is_compiling() and onnx.is_exporting():
        return "onnx"
    if _transformed(input, call.weights):
        return "reference"
    if not _NATIVE or input.device.type not in _NATIVE_DEVICES or input.dtype not in _NATIVE_DTYPES:
        seq_len = input.size(1 if call.stack.batch_first else 0)
        return "torch" if call.lengths is None and seq_len > 0 else "reference"
    return "train" if needs_gradient(call) and not _is_traced() else "infer"


def _transformed(input: Tensor, weights: Weights) -> bool:
    """Whether a functorch transform, forward AD or a tensor subclass watches single operations."""
    if is_compiling():
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


def explain(call: Call) -> Path:
    """The path that `run` takes, and why."""
    path = choose(call)
    if path in ("torch", "reference"):
        return Path(path, _why_not_native(path, call.input, call.weights))
    if path == "train":
        return Path(
            path, "a gradient is needed: grad mode is on and input, states or weights require it"
        )
    if call.weights[0].dtype == torch.uint8:
        return Path("packed", "the layer holds packed weights")
    if call.stack.dropout > 0 and call.stack.num_layers > 1:
        return Path(
            "infer", "no gradient is needed; dropout between layers makes it one op a layer"
        )
    rows = math.prod(call.input.shape[:-1])
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


def _infer(call: Call) -> Results:
    if is_compiling() and _weights_will_be_frozen(call):
        stacks = call.stack.num_layers * call.directions
        packed = ops.pack_weights(call.stack.cell, call.weights, stacks, call.input.dtype)
        call = call._replace(weights=packed)
    traced = _is_traced() and call.weights[0].dtype != torch.uint8  # packed ones have no gradient
    return _in_one_op(ops.run if traced else ops.infer, call)


def _weights_will_be_frozen(call: Call) -> bool:
    """Whether Inductor is about to fold what is computed from weights alone into constants.

    Then packing has a node of its own, which it folds; else it stays within the call's op, as
    weights may change.
    """
    return (
        _inductor_freezes()
        and not torch.is_grad_enabled()
        and not torch.compiler.is_exporting()
        and call.weights[0].dtype != torch.uint8
    )


def _inductor_freezes() -> bool:
    config = sys.modules.get("torch._inductor.config")
    return config is not None and bool(config.freezing)


# Asked while tracing and not traced: a module's settings are no part of the graph.
_inductor_freezes._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _onnx(call: Call) -> Results:
    return _in_one_op(onnx.trace_stack, call)


def _in_one_op(op: Callable[..., Results], call: Call) -> Results:
    stack = call.stack
    if stack.dropout > 0 and stack.num_layers > 1:
        return _layer_by_layer(partial(_in_one_op, op), call)
    return op(
        *call[1:-1],
        CELL_INDEX[stack.cell],
        stack.num_layers,
        stack.hidden_size,
        stack.proj_size,
        stack.bidirectional,
        stack.batch_first,
    )


def _train(call: Call) -> Results:
    return _in_float32(ops.train, call)


def _train_again(*arguments: Any) -> Results:
    """What `ops.run` computes for its arguments, with a gradient."""
    *tensors, cell, num_layers, hidden_size, proj_size, bidirectional, batch_first = arguments
    name = CELLS[cell].name
    return _train(
        Call(
            Stack(name, num_layers, hidden_size, proj_size, bidirectional, batch_first, 0.0, False),
            *tensors,
        )
    )


if _NATIVE:
    ops.register_gradient(_train_again)


def _reference(call: Call) -> Results:
    return _in_float32(reference_train, call)


def _in_float32(run_direction: Callable[[TrainInputs], tuple[Tensor, ...]], call: Call) -> Results:
    """Layers and directions one by one; of 16-bit tensors, weights alone are used in 16 bits."""

    def run_layer(layer: Call) -> Results:
        return _each_direction(run_direction, layer)

    dtype = call.input.dtype
    if dtype not in SIXTEEN_BITS:
        return _layer_by_layer(run_layer, call)
    output, h_n, c_n = _layer_by_layer(run_layer, call.widened())
    return output.to(dtype), h_n.to(dtype), c_n.to(dtype)


def _torch(call: Call) -> Results:
    """Torch's own kernel, weights handed over as they are."""
    stack, input, h_0, c_0, weights, _, batch_sizes, _ = call
    stacks = stack.num_layers * call.directions
    if batch_sizes is not None:
        batch = int(batch_sizes[0])
    else:
        batch = input.size(0 if stack.batch_first else 1)
    if h_0 is None:
        h_0 = input.new_zeros((stacks, batch, stack.proj_size or stack.hidden_size))
    if c_0 is None and call.has_cell_state:
        c_0 = input.new_zeros((stacks, batch, stack.hidden_size))
    hx = [h_0, c_0] if call.has_cell_state else h_0
    kernel = getattr(torch._VF, stack.cell)
    bias = len(weights) // stacks >= _WEIGHTS_WITH_BIAS
    options = (bias, stack.num_layers, stack.dropout, stack.dropout > 0, stack.bidirectional)
    if batch_sizes is not None:
        result = kernel(input, batch_sizes, hx, weights, *options)
    else:
        result = kernel(input, hx, weights, *options, stack.batch_first)
    return result if call.has_cell_state else (*result, input.new_empty((0,)))


_PATHS: dict[str, Callable[[Call], Results]] = {
    "infer": _infer,
    "train": _train,
    "torch": _torch,
    "reference": _reference,
    "onnx": _onnx,
}


def _layer_by_layer(run_layer: Callable[[Call], Results], call: Call) -> Results:
    """Each layer's output, through dropout, is the next one's input; all time-major."""
    stack = call.stack
    transposed = stack.batch_first and call.batch_sizes is None
    if stack.num_layers == 1 and not transposed:
        return run_layer(call)
    output = call.input.transpose(0, 1) if transposed else call.input
    h_n, c_n = [], []
    for index in range(stack.num_layers):
        if index > 0 and stack.dropout > 0:
            output = torch.nn.functional.dropout(output, stack.dropout)
        output, h, c = run_layer(call.layer(index, output))
        h_n.append(h)
        c_n.append(c)
    return output.transpose(0, 1) if transposed else output, _join(h_n), _join(c_n)


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _each_direction(
    run_direction: Callable[[TrainInputs], tuple[Tensor, ...]], call: Call
) -> Results:
    """A layer made of one direction, or of two whose outputs lie side by side."""
    outputs, h_n, c_n = [], [], []
    for d in range(call.directions):
        output, h, *c = run_direction(call.direction(d))
        outputs.append(output)
        h_n.append(h)
        c_n.extend(c)
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
    return output, _stacked(h_n), _stacked(c_n) if call.has_cell_state else output.new_empty((0,))


def _stacked(states: list[Tensor]) -> Tensor:
    return states[0].unsqueeze(0) if len(states) == 1 else torch.stack(states)


def step_call(
    cell: str,
    hidden_size: int,
    input: Tensor,
    h_0: Tensor | None,
    c_0: Tensor | None,
    weights: Weights,
) -> Call:
    """One step of a cell module, for `run_step`: input [N, H_in], states [N, hidden]."""
    stack = Stack(cell, 1, hidden_size, 0, False, False, 0.0, False)
    return Call(stack, input, h_0, c_0, weights)
