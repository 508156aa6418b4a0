"""One layer and direction as ONNX's `Scan` over the equations of its cell."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from rnnpack.reference import CELLS, LayerWeights

_State = tuple[Tensor, ...]


def scan_layer(
    cell: str,
    input: Tensor,
    hx: _State,
    weights: LayerWeights,
    *,
    reverse: bool,
    lengths: Tensor | None,
) -> tuple[Tensor, _State]:
    """Trace one layer and direction; arguments and results as in `rnnpack.reference.layer`."""
    # Not above: a prototype of torch's, without which all else must still be importable.
    from torch._higher_order_ops.scan import scan

    step = CELLS[cell]
    steps_in = [linear(input, weights.weight_ih, weights.bias_ih)]
    if lengths is not None:
        steps = torch.arange(input.size(0), device=input.device)
        steps_in.append((steps.unsqueeze(1) < lengths).unsqueeze(-1))  # whether the row is live

    def combine(state: _State, step_in: list[Tensor]) -> tuple[_State, Tensor]:
        stepped = step(step_in[0], state, weights)
        if lengths is None:
            return stepped, stepped[0].clone()  # results may not share memory
        live = step_in[1]
        kept = tuple(torch.where(live, new, old) for new, old in zip(stepped, state, strict=True))
        return kept, torch.where(live, stepped[0], 0)

    state, output = scan(combine, hx, steps_in, reverse=reverse)
    return output, state
