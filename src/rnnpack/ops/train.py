"""`rnnpack::train`: its fake kernels and its gradient.

The native backward pass turns gradients of the states into gradients of the pre-gates; the large
products that are left (gradients of weights and input) are torch's own matmul.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnpack.ops.layout import CELLS, reserve_floats
from rnnpack.reference import LayerWeights, layer


class TrainInputs(NamedTuple):
    """The op's arguments. States are [N, .]; input is time-major or the rows of a packed sequence."""

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


_TENSORS = 10  # leading fields of TrainInputs that are tensors or None
_DIFFERENTIABLE = 8  # of those, the ones that have a gradient


def _train(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    a = TrainInputs(*arguments)
    info = CELLS[a.cell]
    hidden, out = a.weight_hh.size(0) // info.gates, a.weight_hh.size(1)
    batch: int | torch.SymInt
    if a.batch_sizes is None:
        batch = a.input.size(1)
    elif a.h_0 is not None:
        batch = a.h_0.size(0)
    else:
        batch = torch.library.get_ctx().new_dynamic_size()
    rows = a.input.size(0) if a.batch_sizes is not None else a.input.size(0) * a.input.size(1)
    output = a.input.new_empty((*a.input.shape[:-1], out))
    h_n = a.input.new_empty((batch, out))
    c_n = a.input.new_empty((batch, hidden) if info.has_cell_state else (0,))
    reserve = a.input.new_empty((rows * reserve_floats(a.cell, hidden, recompute=a.recompute),))
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
    output: Tensor,
    reserve: Tensor,
    cell: int,
    reverse: bool,
    recompute: bool,
    batch: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    info = CELLS[cell]
    hidden, out = weight_hh.size(0) // info.gates, weight_hh.size(1)
    leading = input.shape[:-1]
    nothing = (0,)
    return (
        input.new_empty((*leading, info.slots * hidden)),
        input.new_empty((batch, out)),
        input.new_empty((batch, hidden) if info.has_cell_state else nothing),
        input.new_empty((*leading, out) if weight_hr is not None else nothing),
        input.new_empty((*leading, hidden) if weight_hr is not None else nothing),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    a = TrainInputs(*inputs)
    out, h_n, c_n, reserve = output
    ctx.mark_non_differentiable(reserve)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:_TENSORS], out, reserve)
    ctx.batch = h_n.size(0)
    ctx.flags = (a.cell, a.reverse, a.recompute)


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
    return (*_gradients(a, output, reserve, grads, wanted, ctx.batch), *nothing)


def _gradients(
    a: TrainInputs,
    output: Tensor,
    reserve: Tensor,
    grads: tuple[Tensor | None, Tensor | None, Tensor | None],
    wanted: tuple[bool, ...],
    batch: int,
) -> tuple[Tensor | None, ...]:
    """Gradients of the first eight inputs, those that are wanted."""
    info = CELLS[a.cell]
    need = TrainInputs(*wanted, *(None,) * (len(TrainInputs._fields) - _DIFFERENTIABLE))
    dgates, grad_h_0, grad_c_0, dh_total, hidden = torch.ops.rnnpack.train_backward(
        *grads, *a[:_TENSORS], output, reserve, a.cell, a.reverse, a.recompute, batch
    )
    size = a.weight_hh.size(0) // info.gates
    gates = info.gates * size
    dgates = dgates.reshape(-1, info.slots * size)
    # The recurrent product's slots come first; the input's are the same but for GRU's n gate, whose
    # recurrent part (slot 2) and input part (slot 3) have gradients of their own.
    if info.slots == info.gates:
        input_slots = [(slice(0, gates), slice(0, gates))]
    else:
        input_slots = [
            (slice(0, 2 * size), slice(0, 2 * size)),
            (slice(3 * size, 4 * size), slice(2 * size, 3 * size)),
        ]

    grad_input = grad_weight_ih = grad_weight_hh = grad_weight_hr = None
    if need.input:
        products = [dgates[:, slots] @ a.weight_ih[rows] for slots, rows in input_slots]
        grad_input = sum(products[1:], products[0]).view(a.input.shape)
    if need.weight_ih:
        rows_in = _valid_input(a).reshape(-1, a.input.size(-1))
        grad_weight_ih = _join([dgates[:, slots].t() @ rows_in for slots, _ in input_slots])
    if need.weight_hh:
        grad_weight_hh = _recurrent_weight_gradient(a, output, dgates[:, :gates], batch)
    if need.weight_hr:
        grad_weight_hr = dh_total.reshape(-1, dh_total.size(-1)).t() @ hidden.reshape(-1, size)

    grad_bias_ih = grad_bias_hh = None
    if need.bias_ih or need.bias_hh:
        sums = dgates.sum(0)
        grad_bias_ih = _join([sums[slots] for slots, _ in input_slots]) if need.bias_ih else None
        grad_bias_hh = sums[:gates].clone() if need.bias_hh else None
    return (
        grad_input,
        grad_h_0 if need.h_0 else None,
        grad_c_0 if need.c_0 else None,
        grad_weight_ih,
        grad_weight_hh,
        grad_bias_ih,
        grad_bias_hh,
        grad_weight_hr,
    )


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _valid_input(a: TrainInputs) -> Tensor:
    """The input without what lies past each row's end: 0 times NaN is NaN."""
    if a.lengths is None:
        return a.input
    times = torch.arange(a.input.size(0)).unsqueeze(1)
    return a.input.masked_fill((times >= a.lengths).unsqueeze(2), 0)


def _recurrent_weight_gradient(
    a: TrainInputs, output: Tensor, dgates: Tensor, batch: int
) -> Tensor:
    """Sum over steps of dgates(t)^T h before t."""
    if a.batch_sizes is not None:
        before = _states_before(a.batch_sizes, output, a.h_0, batch, reverse=a.reverse)
        return dgates.t() @ before
    seq_len = a.input.size(0)
    steps = dgates.unflatten(0, (seq_len, batch))
    later, earlier = (steps[:-1], output[1:]) if a.reverse else (steps[1:], output[:-1])
    # A row's output is zero past its end, so the reverse direction's first step adds nothing here.
    gradient = later.flatten(0, 1).t() @ earlier.flatten(0, 1)
    if a.h_0 is None:
        return gradient
    first = steps[0]
    if a.reverse and a.lengths is None:
        first = steps[-1]
    elif a.reverse and a.lengths is not None:
        first = steps[(a.lengths - 1).clamp(min=0), torch.arange(batch)]
    return torch.addmm(gradient, first.t(), a.h_0)


def _states_before(
    batch_sizes: Tensor, output: Tensor, h_0: Tensor | None, batch: int, *, reverse: bool
) -> Tensor:
    """For each row of a packed sequence, h of the step before it in the direction's order."""
    total = output.size(0)
    starts = batch_sizes.cumsum(0) - batch_sizes
    time = torch.repeat_interleave(
        torch.arange(batch_sizes.size(0)), batch_sizes, output_size=total
    )
    row = torch.arange(total) - starts[time]
    if reverse:
        following = torch.cat([batch_sizes[1:], batch_sizes.new_zeros(1)])
        has_before = row < following[time]
        before = starts[(time + 1).clamp(max=batch_sizes.size(0) - 1)] + row
    else:
        has_before = time > 0
        before = starts[(time - 1).clamp(min=0)] + row
    initial = h_0 if h_0 is not None else output.new_zeros((batch, output.size(1)))
    index = torch.where(has_before, before, total + row)
    return torch.cat([output, initial])[index]


def _differentiable_gradients(
    a: TrainInputs, grads: tuple[Tensor | None, ...], wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The same gradients through the reference, whose operations can be differentiated again."""
    outputs = reference_train(a)
    pairs = [
        (value, grad)
        for value, grad in zip(outputs, grads, strict=False)
        if grad is not None and value.requires_grad
    ]
    asked = [value for value, want in zip(a[:_DIFFERENTIABLE], wanted, strict=True) if want]
    found = iter(
        torch.autograd.grad(
            [value for value, _ in pairs],
            asked,
            [grad for _, grad in pairs],
            create_graph=True,
            allow_unused=True,
        )
    )
    return tuple(next(found) if want else None for want in wanted)


def reference_train(a: TrainInputs) -> tuple[Tensor, ...]:
    """Output and final states by `rnnpack.reference`, in the layout of the op."""
    from rnnpack.sequences import pack_rows, unpack_rows

    weights = LayerWeights(a.weight_ih, a.weight_hh, a.bias_ih, a.bias_hh, a.weight_hr)
    input, lengths = a.input, a.lengths
    if a.batch_sizes is not None:
        input, lengths = unpack_rows(a.input, a.batch_sizes)
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


def register() -> None:
    """Register fakes and gradient; the library must be loaded."""
    torch.library.register_fake("rnnpack::train", _train)
    torch.library.register_fake("rnnpack::train_backward", _train_backward)
    torch.library.register_autograd("rnnpack::train", _backward, setup_context=_save)
