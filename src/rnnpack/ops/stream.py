"""The native stream by address: `ctypes`, because a dispatched call costs more than a step."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from rnnpack.ops.layout import DTYPE_INDEX
from rnnpack.ops.library import native


class NativeStream:
    """A stack of unidirectional layers with packed weights, and its state, for a fixed batch.

    dtype: of input and output. Keeps the tensors whose memory the native side uses: packed weights,
    and in float32 h [layers, N, H_out] and c [layers, N, hidden] or None. address: for
    `calls.stream`; valid as long as this object lives.
    """

    def __init__(
        self,
        cell: int,
        dtype: torch.dtype,
        sizes: tuple[int, int, int],
        batch: int,
        packed: list[Tensor],
        h: Tensor,
        c: Tensor | None,
    ) -> None:
        self._kept = (packed, h, c)
        library = native()
        addresses = (ctypes.c_void_p * len(packed))(*[weights.data_ptr() for weights in packed])
        state_c = None if c is None else c.data_ptr()
        self.address = library.rnnpack_stream_new(
            cell,
            DTYPE_INDEX[dtype],
            len(packed),
            *sizes,
            batch,
            addresses,
            h.data_ptr(),
            state_c,
        )
        if not self.address:
            raise MemoryError("no memory for a stream")
        self._run = library.rnnpack_stream_run
        self._delete = library.rnnpack_stream_delete

    def run(self, steps: int, input_address: int, output_address: int) -> None:
        """Run `steps` steps: dense [steps, N, H_in] to dense [steps, N, H_out], of the dtype."""
        if self._run(self.address, steps, input_address, output_address):
            raise MemoryError(f"no memory for the scratch of {steps} steps; run shorter chunks")

    def __del__(self) -> None:
        if getattr(self, "address", None):
            self._delete(self.address)
