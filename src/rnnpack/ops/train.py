"""`rnnpack::train`: its fake kernels and its gradient.

The backward pass is native as a whole, products with the weights included: sums in a fixed order
give the same bits for any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnpack.ops.layout import CELLS, reserve_floats
from rnnpack.reference import LayerWeights, layer, pack_rows, unpack_rows


class TrainInputs(NamedTuple):
    """The op's arguments; states are [N, .].

    input: time-major, a packed sequence's rows, or [N, H_in] without batch_sizes: one step.

    dtype: in which weights are multiplied, rounded to it if need be; None: their own. All else is
    float32.
    """

    input: Tensor
    h_0: Tensor | None
    c_0: Tensor | None
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None
    weight_hr: Tensor | None
    lengths: Tensor | None
    batch_sizes: Tensor | None
    cell: int
    reverse: bool
    recompute: bool
    dtype: torch.dtype | None = None


_STEP_DIM = 2  # dimensions of the input of one step
_TENSORS = 10  # leading fields of TrainInputs that are tensors or None
_DIFFERENTIABLE = 8  # of those, the ones that have a gradient


def _train(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    a = TrainInputs(*arguments)
    info = CELLS[a.cell]
    hidden, out = a.weight_hh.size(0) // info.gates, a.weight_hh.size(1)
    batch: int | torch.SymInt
    if a.batch_sizes is None:
        batch = a.input.size(-2)
    elif a.h_0 is not None:
        batch = a.h_0.size(0)
    else:
        batch = torch.library.get_ctx().new_dynamic_size()
    rows = math.prod(a.input.shape[:-1])
    output = a.input.new_empty((*a.input.shape[:-1], out))
    h_n = a.input.new_empty((batch, out))
    c_n = a.input.new_empty((batch, hidden) if info.has_cell_state else (0,))
    kept = rows * reserve_floats(a.cell, hidden, out, recompute=a.recompute)
    reserve = a.input.new_empty((kept,))
    return output, h_n, c_n, reserve


def _train_backward(
    grad_output: Tensor | None,
    grad_h_n: Tensor | None,
    grad_c_n: Tensor | None,
    input: Tensor,
    h_0: Tensor | None,
    c_0: Tensor | None,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None,
    bias_hh: Tensor | None,
    weight_hr: Tensor | None,
    lengths: Tensor | None,
    batch_sizes: Tensor | None,
    output: Tensor | None,
    reserve: Tensor,
    cell: int,
    reverse: bool,
    recompute: bool,
    wanted: int,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, ...]:
    info = CELLS[cell]
    gate_rows, out = weight_hh.shape
    hidden = gate_rows // info.gates
    sizes: list[tuple[Tensor, tuple[int, ...]]] = [
        (input, input.shape),
        (input, h_0.shape if h_0 is not None else (0,)),
        (input, c_0.shape if c_0 is not None else (0,)),
        (weight_ih, weight_ih.shape),
        (weight_ih, weight_hh.shape),
        (weight_ih, (gate_rows,)),
        (weight_ih, (gate_rows,)),
        (weight_ih, (out, hidden)),
    ]
    return tuple(
        like.new_empty(size if wanted >> i & 1 else (0,)) for i, (like, size) in enumerate(sizes)
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    a = TrainInputs(*inputs)
    out, _h_n, _c_n, reserve = output
    ctx.mark_non_differentiable(reserve)
    ctx.set_materialize_grads(False)
    # The output only where it is needed: what is saved the user may not change in place.
    ctx.save_for_backward(*inputs[:_TENSORS], out if a.recompute else None, reserve)
    ctx.flags = (a.cell, a.reverse, a.recompute, a.dtype)


def _backward(
    ctx: Any,
    grad_output: Tensor | None,
    grad_h_n: Tensor | None,
    grad_c_n: Tensor | None,
    _grad_reserve: Tensor | None,
) -> tuple[Tensor | None, ...]:
    *tensors, output, reserve = ctx.saved_tensors
    a = TrainInputs(*tensors, *ctx.flags)
    nothing = (None,) * (len(TrainInputs._fields) - _DIFFERENTIABLE)
    wanted = ctx.needs_input_grad[:_DIFFERENTIABLE]
    if not CELLS[a.cell].has_cell_state:
        grad_c_n = None
    grads = (grad_output, grad_h_n, grad_c_n)
    if all(grad is None for grad in grads):
        return (None,) * len(TrainInputs._fields)
    if torch.is_grad_enabled():  # create_graph: these gradients are to be differentiated again
        return (*_differentiable_gradients(a, grads, wanted), *nothing)
    return (*_gradients(a, output, reserve, grads, wanted), *nothing)


def _gradients(
    a: TrainInputs,
    output: Tensor | None,
    reserve: Tensor,
    grads: tuple[Tensor | None, Tensor | None, Tensor | None],
    wanted: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """Gradients of the first eight inputs, those that are wanted."""
    bits = sum(want << i for i, want in enumerate(wanted))
    found = torch.ops.rnnpack.train_backward(
        *grads, *a[:_TENSORS], output, reserve, a.cell, a.reverse, a.recompute, bits, a.dtype
    )
    return tuple(gradient if want else None for gradient, want in zip(found, wanted, strict=True))


def _differentiable_gradients(
    a: TrainInputs, grads: tuple[Tensor | None, ...], wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The same gradients through the reference, whose operations can be differentiated again."""
    asked = [
        value if want and isinstance(value, Tensor) else None  # only a tensor can be wanted
        for value, want in zip(a[:_DIFFERENTIABLE], wanted, strict=True)
    ]
    return gradients_through(reference_train(a), grads, asked, create_graph=True)


def gradients_through(
    outputs: tuple[Tensor, ...],
    grads: tuple[Tensor | None, ...],
    inputs: Sequence[Tensor | None],
    *,
    create_graph: bool,
) -> tuple[Tensor | None, ...]:
    """Gradients of `inputs` through what autograd recorded on the way to `outputs`.

    None: of an output, that it is not used; of an input, that its gradient is not asked for.
    """
    pairs = [
        (output, grad)
        for output, grad in zip(outputs, grads, strict=False)
        if grad is not None and output.requires_grad
    ]
    asked = [tensor for tensor in inputs if tensor is not None]
    if not pairs:
        return (None,) * len(inputs)
    found = iter(
        torch.autograd.grad(
            [output for output, _ in pairs],
            asked,
            [grad for _, grad in pairs],
            create_graph=create_graph,
            allow_unused=True,
        )
    )
    return tuple(None if tensor is None else next(found) for tensor in inputs)


def reference_train(a: TrainInputs) -> tuple[Tensor, ...]:
    """Output and final states by `rnnpack.reference`, in the layout of the op."""
    stored = [
        weight if weight is None or weight.dim() == 1 else weight.to(a.dtype or weight.dtype)
        for weight in a[3:8]
    ]
    wide: list[Any] = [None if weight is None else weight.to(a.input.dtype) for weight in stored]
    weights = LayerWeights(*wide)
    input, lengths = a.input, a.lengths
    if a.batch_sizes is not None:
        input, lengths = unpack_rows(a.input, a.batch_sizes)
    if a.batch_sizes is None and input.dim() == _STEP_DIM:
        output, *final = reference_train(a._replace(input=input.unsqueeze(0)))
        return (output.squeeze(0), *final)
    hidden, out = a.weight_hh.size(0) // CELLS[a.cell].gates, a.weight_hh.size(1)
    h_0 = a.h_0 if a.h_0 is not None else input.new_zeros((input.size(1), out))
    hx: tuple[Tensor, ...] = (h_0,)
    if CELLS[a.cell].has_cell_state:
        hx = (h_0, a.c_0 if a.c_0 is not None else input.new_zeros((input.size(1), hidden)))
    output, states = layer(
        CELLS[a.cell].name, input, hx, weights, reverse=a.reverse, lengths=lengths
    )
    if a.batch_sizes is not None:
        output = pack_rows(output, a.batch_sizes)
    return (output, *states)


class _TrainAtOnce(torch.autograd.Function):
    """The op and its gradient for eager calls: 60 us less than through torch's registry."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        # Past the op's own gradient, whose Python kernel costs 30 us: this is the gradient.
        with torch._C._AutoDispatchBelowAutograd():
            outputs: tuple[Tensor, ...] = torch.ops.rnnpack.train.default(*inputs)
        _save(ctx, inputs, outputs)
        return outputs

    backward = staticmethod(_backward)


def train(a: TrainInputs) -> tuple[Tensor, ...]:
    """Output and final states of one layer and direction, recorded for autograd."""
    if torch.compiler.is_compiling() or type(a.input) is not Tensor:
        outputs = torch.ops.rnnpack.train.default(*a)  # one node in a traced graph
    else:
        # Past Function.apply's handling of functorch, which is not active here: 8 us.
        outputs = super(torch.autograd.Function, _TrainAtOnce).apply(  # type: ignore[no-untyped-call]
            *a
        )
    return outputs[:3]  # type: ignore[no-any-return]


def register() -> None:
    """Register fakes and gradient; the library must be loaded."""
    torch.library.register_fake("rnnpack::train", _train)
    torch.library.register_fake("rnnpack::train_backward", _train_backward)
    torch.library.register_autograd("rnnpack::train", _backward, setup_context=_save)
