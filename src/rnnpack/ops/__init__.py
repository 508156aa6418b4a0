"""The only door to `torch.ops.rnnpack`: loads the library and registers the ops' Python halves."""

from __future__ import annotations

from typing import Any

import torch

from rnnpack.ops import infer as _infer
from rnnpack.ops import train as _train
from rnnpack.ops.infer import layer_weights, pack_weights
from rnnpack.ops.layout import CELL_INDEX, CELLS, DTYPE_INDEX, SIXTEEN_BITS
from rnnpack.ops.library import LibraryStatus, is_direct, library_status
from rnnpack.ops.train import TrainInputs, reference_train, train

__all__ = [
    "CELLS",
    "CELL_INDEX",
    "DTYPE_INDEX",
    "SIXTEEN_BITS",
    "LibraryStatus",
    "TrainInputs",
    "cell_at_once",
    "check_packed",
    "infer",
    "infer_at_once",
    "is_direct",
    "layer_weights",
    "library_status",
    "pack_weights",
    "reference_train",
    "train",
]

infer: Any = None
check_packed: Any = None
# The ops below their Python wrapper, which costs 0.5 us and only looks for tensor subclasses.
infer_at_once: Any = None
cell_at_once: Any = None

if library_status().loaded:
    _infer.register()
    _train.register()
    infer = torch.ops.rnnpack.infer.default
    check_packed = torch.ops.rnnpack.check_packed.default
    infer_at_once = infer._op
    cell_at_once = torch.ops.rnnpack.cell.default._op
