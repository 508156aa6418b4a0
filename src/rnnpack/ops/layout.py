"""The sizes that native layouts take, for code that must know them without running an op.

The same numbers as csrc/kernels/pack/layout.h and csrc/engine/problem.h; a test compares the two.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

_PANEL = 16  # columns of a panel, and hidden units of a full block
HEADER_BYTES = 64
_CACHE_LINE = 64  # on which each part of packed weights starts
_UNITS = 4  # the last block's units are rounded up to these


class CellInfo(NamedTuple):
    """What layouts depend on: gates of the weights, slots of the gate buffer, cell state or not."""

    name: str
    ih_slots: tuple[int, ...]  # of each gate, where the input's product goes
    hh_slots: tuple[int, ...]  # and the recurrent one
    has_cell_state: bool

    @property
    def gates(self) -> int:
        return len(self.ih_slots)

    @property
    def slots(self) -> int:
        return len({*self.ih_slots, *self.hh_slots})


CELLS = (
    CellInfo("lstm", (0, 1, 2, 3), (0, 1, 2, 3), True),
    CellInfo("gru", (0, 1, 3), (0, 1, 2), False),
    CellInfo("rnn_tanh", (0,), (0,), False),
    CellInfo("rnn_relu", (0,), (0,), False),
)
SIXTEEN_BITS = (torch.bfloat16, torch.float16)
DTYPE_INDEX = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
CELL_INDEX = {cell.name: index for index, cell in enumerate(CELLS)}


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


def gate_columns(cell: int, hidden: int) -> int:
    """Floats of one row of the gate buffer."""
    full, rest = hidden // _PANEL, hidden % _PANEL  # divmod does not take symbolic sizes
    slots = CELLS[cell].slots
    return full * slots * _PANEL + _round_up(slots * _round_up(rest, _UNITS), _PANEL)


def reserve_floats(cell: int, hidden: int, output: int, *, recompute: bool) -> int:
    """Floats that training keeps for one row of one step: gates and h unless `recompute`, and c."""
    gates = 0 if recompute else gate_columns(cell, hidden) + output
    return gates + (_round_up(hidden, _PANEL) if CELLS[cell].has_cell_state else 0)


def _stored_panels(hidden: int, slots: int, used: tuple[int, ...]) -> int:
    """Panels of weight_ih or weight_hh: all but those whose slots have no gate in that matrix."""
    full, rest = hidden // _PANEL, hidden % _PANEL  # divmod does not take symbolic sizes
    units = _round_up(rest, _UNITS)  # of the last block, where it is not full
    tail = 0
    for first in range(0, _round_up(slots * units, _PANEL), _PANEL):
        tail += any(column // units in used for column in range(first, first + _PANEL))
    return full * len(used) + tail


def packed_bytes(
    cell: int, input_size: int, hidden: int, proj_size: int, dtype: torch.dtype
) -> int:
    """Bytes of the packed weights of one layer and direction, header included."""
    info = CELLS[cell]
    parts = (  # panels, and rows of each
        (_stored_panels(hidden, info.slots, info.ih_slots), input_size),
        (_stored_panels(hidden, info.slots, info.hh_slots), proj_size or hidden),
        (_round_up(proj_size, _PANEL) // _PANEL, hidden),
    )
    size = HEADER_BYTES + 4 * gate_columns(cell, hidden)
    for panels, rows in parts:
        if dtype == torch.bfloat16:
            rows = _round_up(rows, 2)  # noqa: PLW2901  # two of them in one
        size += _round_up(panels * rows * _PANEL * dtype.itemsize, _CACHE_LINE)
    return size
