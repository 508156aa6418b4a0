"""`Stream`: one step, or one chunk, at a time, with the state carried along."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rnnpack.ops import calls
from rnnpack.ops.stream import NativeStream

_STEP, _CHUNK = 2, 3  # dimensions of an input
_CPU = torch.device("cpu")


class Stream:
    """A layer fed step by step; made by `layer.stream(batch_size)`.

    The state belongs to the stream, not to the layer: two streams of one layer do not meet. The
    weights are a snapshot, packed when the stream was made; later changes of the layer's parameters
    are not seen. Feeding a sequence in any chunks gives the same bits as feeding it whole. Nothing
    is recorded for autograd. A stream must not run in two threads at once.
    """

    def __init__(
        self,
        cell: int,
        dtype: torch.dtype,
        sizes: tuple[int, int, int],
        batch_size: int,
        packed: list[Tensor],
        *,
        has_cell_state: bool,
    ) -> None:
        self._input_size, hidden_size, proj_size = sizes
        self._output_size = proj_size or hidden_size
        self._batch_size = batch_size
        layers = len(packed)
        self._h = _empty(layers, batch_size, self._output_size).zero_()
        self._c = _empty(layers, batch_size, hidden_size).zero_() if has_cell_state else None
        self._dtype = dtype
        # On the CPU and of this dtype, whatever torch's defaults are.
        self._new_empty = self._h.new_empty((), dtype=dtype).new_empty
        self._native = NativeStream(cell, dtype, sizes, batch_size, packed, self._h, self._c)
        self._address = self._native.address

    def step(self, input: Tensor) -> Tensor:
        """Run one step: [N, H_in] to [N, H_out].

        Raises:
            RuntimeError: another shape.
            TypeError: another dtype than the layer's, another device than the CPU.
        """
        output = calls.stream(self._address, input, _STEP)
        return self._run_steps(1, input) if output is None else output

    def run(self, input: Tensor) -> Tensor:
        """Run several steps: [L, N, H_in] to [L, N, H_out]; L may be 0. Raises as `step` does."""
        output = calls.stream(self._address, input, _CHUNK)
        if output is None:
            steps = input.size(0) if input.dim() else 0
            return self._run_steps(steps, input, steps)
        return output  # type: ignore[no-any-return]

    def _run_steps(self, steps: int, input: Tensor, *chunk: int) -> Tensor:
        """The long way of both, with checks for people. chunk: the leading dimension, if any."""
        rows = (*chunk, self._batch_size)
        input = self._checked(input, (*rows, self._input_size))
        output = self._new_empty((*rows, self._output_size))
        if steps > 0:
            self._native.run(steps, input.data_ptr(), output.data_ptr())
        return output

    @property
    def state(self) -> Any:
        """A copy of the state in the layer's form; set it to go on from another.

        h_n, or (h_n, c_n) of an LSTM, each [layers, N, .], float32 whatever the layer's dtype: a
        16-bit layer takes it with `.to(dtype)`.

        Raises:
            RuntimeError: set to other shapes.
            TypeError: set to something else than tensors.
        """
        return self._h.clone() if self._c is None else (self._h.clone(), self._c.clone())

    @state.setter
    def state(self, value: Any) -> None:
        own = [self._h] if self._c is None else [self._h, self._c]
        new = list(value) if isinstance(value, tuple | list) else [value]
        if not all(isinstance(tensor, Tensor) for tensor in new):
            raise TypeError(
                f"expected a state of {len(own)} Tensors, got {type(value).__name__}; "
                "stream.reset() sets it to zero"
            )
        if [tuple(tensor.shape) for tensor in new] != [tuple(tensor.shape) for tensor in own]:
            raise RuntimeError(
                f"expected a state of shapes {[tuple(t.shape) for t in own]}, "
                f"got {[tuple(t.shape) for t in new]}"
            )
        for mine, tensor in zip(own, new, strict=True):
            mine.copy_(tensor.detach())

    def reset(self, rows: Any = None) -> None:
        """Set the state to zero, of all rows or of those that `rows` selects.

        Args:
            rows: an index, a list of indices or a mask; None: all.
        """
        index = slice(None) if rows is None else rows
        for tensor in (self._h, self._c):
            if tensor is not None:
                tensor[:, index] = 0

    def __reduce__(self) -> Any:
        """Refuse: the native side holds addresses."""
        raise TypeError(
            "a stream cannot be copied or pickled: make another with layer.stream(), set its state"
        )

    def _checked(self, input: Tensor, shape: tuple[int, ...]) -> Tensor:
        if tuple(input.shape) != shape:
            raise RuntimeError(f"expected an input of shape {list(shape)}, got {list(input.shape)}")
        if input.dtype != self._dtype or input.device.type != "cpu":
            raise TypeError(
                f"expected a {self._dtype} input on the CPU, got {input.dtype} on {input.device}; "
                f"use input.to('cpu', {self._dtype})"
            )
        return input.contiguous()


def _empty(*size: int) -> Tensor:
    # Whatever torch's default dtype and device are: native code writes floats there.
    return torch.empty(size, dtype=torch.float32, device=_CPU)
