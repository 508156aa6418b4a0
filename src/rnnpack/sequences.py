"""Checks of `lengths`."""

from __future__ import annotations

import torch
from torch import Tensor


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
    if torch.compiler.is_compiling() or type(lengths) is not Tensor or lengths.is_meta:
        return  # traced: the values are not known, the op checks them when it runs
    for row, length in enumerate(lengths.tolist()):
        if not 0 <= length <= seq_len:
            raise RuntimeError(
                f"lengths[{row}] must be from 0 to seq_len = {seq_len}, got {length}"
            )
