"""`explain`: the path that a call takes, and why."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from rnnpack.cells import Cell
from rnnpack.functional import Path
from rnnpack.layers import Recurrent


def explain(layer: nn.Module, input: Any, hx: Any = None, *, lengths: Tensor | None = None) -> Path:
    """Say which path `layer(input, hx, lengths=lengths)` takes now, and why.

    Args:
        layer: one of rnnpack's layers or cells.
        input, hx, lengths: as in the layer's `forward`.
    Returns:
        A `Path`: `kind`, `reason`, and `native`, whether the native engine does the work.
    Raises:
        TypeError: `layer` is not one of rnnpack's.
    """
    if isinstance(layer, Recurrent):
        return layer.explain(input, hx, lengths=lengths)
    if isinstance(layer, Cell):
        return layer.explain(input, hx)
    raise TypeError(
        f"expected a layer or cell of rnnpack, got {type(layer).__name__}; "
        "use rnnpack.convert(model) first"
    )
