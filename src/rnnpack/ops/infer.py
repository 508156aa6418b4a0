"""The ops `infer`, `run` and `pack`: wrapper and fake kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from rnnpack.ops.layout import CELL_INDEX, CELLS, DTYPE_INDEX, packed_bytes
from rnnpack.reference import LayerWeights

_WITH_BIAS = 4  # weights of one layer and direction, at least


def layer_weights(own: list[Tensor]) -> LayerWeights:
    """The weights of one layer and direction, given in `torch.nn`'s order."""
    bias_ih, bias_hh = own[2:4] if len(own) >= _WITH_BIAS else (None, None)
    return LayerWeights(own[0], own[1], bias_ih, bias_hh, own[-1] if len(own) % 2 else None)


def pack_weights(
    cell: str, weights: list[Tensor], stacks: int, dtype: torch.dtype | None = None
) -> list[Tensor]:
    """Pack the weights of each layer and direction, given in `torch.nn`'s order.

    dtype: that in which they are kept; None: their own.

    Raises:
        TypeError: a weight is not float32, bfloat16 or float16 on the CPU, or cannot be kept in
            `dtype`.
    """
    for weight in weights:
        if weight.dtype not in DTYPE_INDEX or weight.device.type != "cpu":
            raise TypeError(
                "only float32, bfloat16 and float16 weights on the CPU can be packed, "
                f"got {weight.dtype} on {weight.device}; use model.float().cpu()"
            )
        if dtype is not None and (
            dtype not in DTYPE_INDEX or weight.dtype not in (torch.float32, dtype)
        ):
            raise TypeError(
                "packed weights are kept in their own dtype, or float32 ones in bfloat16 or "
                f"float16; got weights of {weight.dtype} to keep in {dtype}: use model.float() "
                "before, or another dtype"
            )
    each = len(weights) // stacks
    packed = []
    for first in range(0, len(weights), each):
        own = layer_weights([weight.detach() for weight in weights[first : first + each]])
        packed.append(torch.ops.rnnpack.pack(CELL_INDEX[cell], *own, dtype))
    return packed


def _infer(
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
    directions = 2 if bidirectional else 1
    out = proj_size or hidden_size
    batch: int | torch.SymInt
    if batch_sizes is None:
        batch = input.size(0 if batch_first else 1)
    elif h_0 is not None:
        batch = h_0.size(1)
    else:
        batch = torch.library.get_ctx().new_dynamic_size()  # batch_sizes[0], known when it runs
    stacks = num_layers * directions
    output = input.new_empty((*input.shape[:-1], directions * out))
    h_n = input.new_empty((stacks, batch, out))
    c_n = input.new_empty((stacks, batch, hidden_size) if CELLS[cell].has_cell_state else (0,))
    return output, h_n, c_n


def _pack(
    cell: int,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None,
    bias_hh: Tensor | None,
    weight_hr: Tensor | None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    hidden = weight_hh.size(0) // CELLS[cell].gates
    proj_size = 0 if weight_hr is None else weight_hr.size(0)
    size = packed_bytes(cell, weight_ih.size(1), hidden, proj_size, dtype or weight_ih.dtype)
    return weight_ih.new_empty((size,), dtype=torch.uint8)


def register() -> None:
    """Register the fake kernels; the library must be loaded."""
    torch.library.register_fake("rnnpack::infer", _infer)
    torch.library.register_fake("rnnpack::run", _infer)
    torch.library.register_fake("rnnpack::pack", _pack)
