"""One layer as ONNX's operator `LSTM`, `GRU` or `RNN`."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnpack.reference import LayerWeights


class _Operator(NamedTuple):
    """An operator of ONNX; `gates` are its gates in its order, as places in torch's order."""

    name: str
    gates: tuple[int, ...]
    activation: str = ""  # "": the operator's default, which is torch's


_OPERATORS = {
    "lstm": _Operator("LSTM", (0, 3, 1, 2)),  # i, o, f, c of i, f, g, o
    "gru": _Operator("GRU", (1, 0, 2)),  # z, r, h of r, z, n
    "rnn_tanh": _Operator("RNN", (0,), "Tanh"),
    "rnn_relu": _Operator("RNN", (0,), "Relu"),
}
_DIRECTIONS = ("forward", "reverse", "bidirectional")


def operator_layer(
    cell: str,
    input: Tensor,
    hx: tuple[Tensor, ...] | None,
    weights: list[LayerWeights],
    *,
    reverse: bool,
    lengths: Tensor | None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Trace one layer as one node.

    Args:
        cell: a name in `rnnpack.reference.CELLS`.
        input: [L, N, H_in].
        hx: initial states, [D, N, hidden] each; None: zero.
        weights: of each of the D directions, without a projection.
        reverse: with D = 1, run from the last step to the first.
        lengths: int64 [N], or None.
    Returns:
        `(output [L, N, D * hidden], final states)`.

    Source: operators LSTM, GRU and RNN of the ONNX specification, layout 0.
    """
    operator = _OPERATORS[cell]
    directions, hidden = len(weights), weights[0].weight_hh.size(1)
    attributes: dict[str, Any] = {
        "hidden_size": hidden,
        "direction": _DIRECTIONS[2 if directions > 1 else int(reverse)],
    }
    if operator.name == "GRU":
        attributes["linear_before_reset"] = 1
    if operator.activation:
        attributes["activations"] = [operator.activation] * directions
    bias = None
    if weights[0].bias_ih is not None:
        bias = _stacked([b for own in weights for b in (own.bias_ih, own.bias_hh)], operator)
        bias = bias.reshape(directions, -1)
    inputs = [
        input,
        _stacked([own.weight_ih for own in weights], operator),
        _stacked([own.weight_hh for own in weights], operator),
        bias,
        None if lengths is None else lengths.to(torch.int32),  # the only type that ONNX takes
        *(hx or ()),
    ]
    seq_len, batch = input.size(0), input.size(1)
    state_shape = (directions, batch, hidden)
    states = 2 if cell == "lstm" else 1
    split, *finals = torch.onnx.ops.symbolic_multi_out(
        operator.name,
        inputs,
        attributes,
        dtypes=[input.dtype] * (1 + states),
        shapes=[(seq_len, directions, batch, hidden), *[state_shape] * states],
    )
    output = torch.cat([split[:, d] for d in range(directions)], -1)
    if lengths is not None and hx is not None:
        # What ONNX leaves open: ONNX Runtime gives zero as the final state of a row of no steps.
        empty = (lengths == 0).unsqueeze(-1)
        finals = [torch.where(empty, h, final) for h, final in zip(hx, finals, strict=True)]
    return output, tuple(finals)


def _stacked(weights: list[Any], operator: _Operator) -> Tensor:
    """One kind of weight of every direction, stacked, its gates in ONNX's order."""
    stacked = torch.stack(weights)
    if len(operator.gates) == 1:
        return stacked
    hidden = stacked.size(1) // len(operator.gates)
    # Slices: a tensor of indices would be a constant, which a decomposition may not create.
    return torch.cat([stacked[:, g * hidden : (g + 1) * hidden] for g in operator.gates], 1)
