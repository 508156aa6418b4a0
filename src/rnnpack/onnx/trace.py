"""Layers and stacks of them, as the ops of rnnpack have them, traced into operators of ONNX."""

from __future__ import annotations

import torch
from torch import Tensor

from rnnpack.onnx.operator import operator_layer
from rnnpack.onnx.scan import scan_layer
from rnnpack.ops import CELLS, SIXTEEN_BITS, layer_weights
from rnnpack.reference import LayerWeights

States = tuple[Tensor, ...]


def trace_stack(
    input: Tensor,
    h_0: Tensor | None,
    c_0: Tensor | None,
    weights: list[Tensor],
    lengths: Tensor | None,
    batch_sizes: Tensor | None,
    cell: int,
    num_layers: int,
    hidden_size: int,
    proj_size: int,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Trace a stack of layers; arguments and results are those of the op `rnnpack::infer`.

    Raises:
        RuntimeError: the weights are packed, or what `trace_layer` refuses.
    """
    if weights[0].dtype == torch.uint8:
        raise RuntimeError(
            "a packed layer cannot be exported to ONNX: its weights are in the native engine's own "
            "layout; export the model before rnnpack.pack"
        )
    directions = 2 if bidirectional else 1
    each = len(weights) // (num_layers * directions)
    groups = [layer_weights(weights[k : k + each]) for k in range(0, len(weights), each)]
    output = input.transpose(0, 1) if batch_first else input
    finals: list[States] = []
    for first in range(0, len(groups), directions):
        own = slice(first, first + directions)
        hx = tuple(state[own] for state in (h_0, c_0) if state is not None)
        output, final = trace_layer(
            cell, output, hx or None, groups[own], lengths=lengths, batch_sizes=batch_sizes
        )
        finals.append(final)
    h_n, *c_n = (torch.cat(parts) for parts in zip(*finals, strict=True))
    output = output.transpose(0, 1) if batch_first else output
    return output, h_n, c_n[0] if c_n else input.new_empty((0,))


def trace_layer(
    cell: int,
    input: Tensor,
    hx: States | None,
    weights: list[LayerWeights],
    *,
    reverse: bool = False,
    lengths: Tensor | None = None,
    batch_sizes: Tensor | None = None,
) -> tuple[Tensor, States]:
    """Trace one layer; of two directions the second is the reverse one.

    Args:
        cell: an index of `rnnpack.ops.CELLS`.
        input: [L, N, H_in].
        hx: initial states [D, N, .]; None: zero.
        weights: of each of the D directions.
        reverse: with D = 1, run from the last step to the first.
        lengths: int64 [N], or None.
        batch_sizes: those of a packed sequence, which is refused; or None.
    Returns:
        `(output [L, N, D * H_out], final states [D, N, .])`.
    Raises:
        RuntimeError: the input is a packed sequence, or not on the CPU.
    """
    if batch_sizes is not None:
        raise RuntimeError(
            "ONNX has no packed sequences: expected a padded batch, got a PackedSequence; give the "
            "layer the padded batch and lengths=, the results are the same"
        )
    if input.device.type != "cpu":
        raise RuntimeError(
            f"expected the input of an export to ONNX on the CPU, got it on {input.device}; use "
            "model.cpu() and example inputs on the CPU"
        )
    dtype = input.dtype
    if dtype in SIXTEEN_BITS:
        # As the native engine, which sums in float32, too; ONNX's operators take no bfloat16 before
        # opset 22.
        output, states = trace_layer(
            cell,
            input.float(),
            None if hx is None else tuple(state.float() for state in hx),
            [_rounded(own, dtype) for own in weights],
            reverse=reverse,
            lengths=lengths,
        )
        return output.to(dtype), tuple(state.to(dtype) for state in states)
    name, has_cell_state = CELLS[cell].name, CELLS[cell].has_cell_state
    weight_hh = weights[0].weight_hh
    # ONNX's operators have no projection, and ONNX Runtime none of them in float64.
    if weights[0].weight_hr is None and input.dtype != torch.float64:
        return operator_layer(name, input, hx, weights, reverse=reverse, lengths=lengths)
    if hx is None:
        widths = (weight_hh.size(1), weight_hh.size(0) // CELLS[cell].gates)
        shapes = [(len(weights), input.size(1), width) for width in widths]
        hx = tuple(input.new_zeros(shape) for shape in shapes[: 2 if has_cell_state else 1])
    outputs, finals = [], []
    for d, own in enumerate(weights):
        start = tuple(state[d] for state in hx)
        output, final = scan_layer(
            name, input, start, own, reverse=reverse or d == 1, lengths=lengths
        )
        outputs.append(output)
        finals.append(final)
    states = tuple(torch.stack(parts) for parts in zip(*finals, strict=True))
    return torch.cat(outputs, -1), states


def _rounded(weights: LayerWeights, dtype: torch.dtype) -> LayerWeights:
    """The weights in float32, matrices rounded to `dtype`: the ops do so with float32 ones."""

    def rounded(weight: Tensor | None) -> Tensor | None:
        if weight is None or weight.dim() == 1:  # biases keep their bits
            return None if weight is None else weight.float()
        return weight.to(dtype).float()

    return LayerWeights(*map(rounded, weights))  # type: ignore[arg-type]
