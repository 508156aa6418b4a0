"""The only door to `torch.ops.rnnpack`: the library is loaded and its Python halves registered here."""

from __future__ import annotations

from rnnpack.ops import infer as _infer
from rnnpack.ops import train as _train
from rnnpack.ops.layout import CELL_INDEX, CELLS
from rnnpack.ops.library import LibraryStatus, is_direct, library_status

__all__ = ["CELLS", "CELL_INDEX", "LibraryStatus", "is_direct", "library_status"]

if library_status().loaded:
    _infer.register()
    _train.register()
