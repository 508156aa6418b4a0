"""Rows of packed sequences to padded batches and back, and checks of `lengths`."""

from __future__ import annotations

import torch
from torch import Tensor


def unpack_rows(data: Tensor, batch_sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [sum(batch_sizes), F] as a padded batch [L, N, F] with zeros, and its lengths [N]."""
    seq_len, batch = batch_sizes.size(0), int(batch_sizes[0])
    live = torch.arange(batch) < batch_sizes.unsqueeze(1)  # [L, N]
    places = live.flatten().nonzero().squeeze(1)
    padded = data.new_zeros((seq_len * batch, data.size(1))).index_copy(0, places, data)
    return padded.reshape((seq_len, batch, data.size(1))), live.sum(0)


def pack_rows(padded: Tensor, batch_sizes: Tensor) -> Tensor:
    """A padded batch [L, N, F] as rows [sum(batch_sizes), F]; undoes `unpack_rows`."""
    live = torch.arange(padded.size(1)) < batch_sizes.unsqueeze(1)
    return padded.flatten(0, 1)[live.flatten().nonzero().squeeze(1)]


def check_lengths(lengths: Tensor, seq_len: int, batch: int) -> None:
    """Raise if `lengths` is not int64 [batch] on the CPU with values from 0 to `seq_len`."""
    if not isinstance(lengths, Tensor):
        raise TypeError(
            f"lengths must be an int64 tensor of shape [batch], got {type(lengths).__name__}; "
            "use torch.tensor(lengths)"
        )
    if lengths.dtype != torch.int64 or lengths.device.type not in ("cpu", "meta"):
        raise RuntimeError(
            f"lengths must be an int64 tensor on the CPU, got {lengths.dtype} on {lengths.device}; "
            "use lengths.to('cpu', torch.int64)"
        )
    if lengths.shape != (batch,):
        raise RuntimeError(f"lengths must have shape [{batch}], got {list(lengths.shape)}")
    if torch.compiler.is_compiling() or lengths.is_meta:
        return
    for row, length in enumerate(lengths.tolist()):
        if not 0 <= length <= seq_len:
            raise RuntimeError(
                f"lengths[{row}] must be from 0 to seq_len = {seq_len}, got {length}"
            )
