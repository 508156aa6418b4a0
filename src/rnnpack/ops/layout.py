"""The sizes that native layouts take, for code that must know them without running an op.

The same numbers as csrc/kernels/pack/layout.h and csrc/engine/problem.h; a test compares the two.
"""

from __future__ import annotations

from typing import NamedTuple

_PANEL = 16  # columns of a panel, and hidden units of a full block
HEADER_BYTES = 64


class CellInfo(NamedTuple):
    """What layouts depend on: gates of the weights, slots of the gate buffer, cell state or not."""

    name: str
    gates: int
    slots: int
    has_cell_state: bool


CELLS = (
    CellInfo("lstm", 4, 4, True),
    CellInfo("gru", 3, 4, False),
    CellInfo("rnn_tanh", 1, 1, False),
    CellInfo("rnn_relu", 1, 1, False),
)
CELL_INDEX = {cell.name: index for index, cell in enumerate(CELLS)}


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


def gate_columns(cell: int, hidden: int) -> int:
    """Floats of one row of the gate buffer."""
    full, rest = divmod(hidden, _PANEL)
    slots = CELLS[cell].slots
    return full * slots * _PANEL + _round_up(slots * _round_up(rest, 4), _PANEL)


def reserve_floats(cell: int, hidden: int, *, recompute: bool) -> int:
    """Floats that training keeps for one row of one step."""
    gates = 0 if recompute else gate_columns(cell, hidden)
    return gates + (_round_up(hidden, _PANEL) if CELLS[cell].has_cell_state else 0)


def _stored_panels(cell: int, hidden: int, *, recurrent: bool) -> int:
    """Panels of weight_hh or weight_ih: all but those whose slots have no gate in that matrix."""
    gates, slots = CELLS[cell].gates, CELLS[cell].slots
    full, rest = divmod(hidden, _PANEL)
    units = _round_up(rest, 4)
    empty = slots - gates and (slots - 1 if recurrent else slots - 2)  # GRU: its one unused slot
    tail = 0
    for first in range(0, _round_up(slots * units, _PANEL), _PANEL):
        found = {column // units for column in range(first, first + _PANEL)} & set(range(slots))
        tail += bool(found - ({empty} if slots > gates else set()))
    return full * gates + tail


def packed_bytes(cell: int, input_size: int, hidden: int, proj_size: int) -> int:
    """Bytes of the packed weights of one layer and direction, header included."""
    bias = _round_up(gate_columns(cell, hidden), _PANEL)
    ih = _stored_panels(cell, hidden, recurrent=False) * input_size
    hh = _stored_panels(cell, hidden, recurrent=True) * (proj_size or hidden)
    hr = -(-proj_size // _PANEL) * hidden
    return HEADER_BYTES + 4 * (bias + _PANEL * (ih + hh + hr))
