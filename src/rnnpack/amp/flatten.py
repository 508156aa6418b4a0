"""`flatten_weights`: many weights copied into one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor


def flatten_weights(weights: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    """Copy weights one after the other into one buffer, cast to `dtype`.

    Weight k begins at the sum of the element counts of those before it, without gaps. Nothing is
    read from addresses or strides, so the sources may lie anywhere: in one storage in any order,
    overlapping, expanded, transposed, or each in its own.

    Args:
        weights: tensors of any shapes, on one device; may be empty.
        dtype: of the buffer.
    Returns:
        `(buffer, views)`: `buffer` [total elements], contiguous, and a contiguous view into it in
        the shape of each weight. They hold values only: no gradient flows back to the weights. An
        empty list gives a buffer without elements on the CPU.
    Raises:
        ValueError: the weights are on more than one device.
    """
    devices = {weight.device for weight in weights}
    if len(devices) > 1:
        listed = ", ".join(sorted(map(str, devices)))
        raise ValueError(
            f"expected weights on one device, got {listed}: move them to one device first"
        )
    sizes = [weight.numel() for weight in weights]
    buffer = torch.empty(sum(sizes), dtype=dtype, device=devices.pop() if devices else "cpu")
    starts = accumulate(sizes, initial=0)
    views = [
        buffer[start : start + size].view(weight.shape)
        for weight, start, size in zip(weights, starts, sizes, strict=False)
    ]
    with torch.no_grad():
        for view, weight in zip(views, weights, strict=True):
            view.copy_(weight)
    return buffer, views
