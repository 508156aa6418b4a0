"""The only door to `torch.ops.rnnpack`: loads the library and registers the ops' Python halves."""

from __future__ import annotations

from typing import Any

import torch

from rnnpack.ops import calls
from rnnpack.ops import infer as _infer
from rnnpack.ops import train as _train
from rnnpack.ops.calls import status as eager_calls
from rnnpack.ops.infer import layer_weights, pack_weights
from rnnpack.ops.layout import CELL_INDEX, CELLS, DTYPE_INDEX, SIXTEEN_BITS
from rnnpack.ops.library import LibraryStatus, is_direct, library_status
from rnnpack.ops.traced import register_gradient
from rnnpack.ops.train import TrainInputs, reference_train, train

__all__ = [
    "CELLS",
    "CELL_INDEX",
    "DTYPE_INDEX",
    "SIXTEEN_BITS",
    "LibraryStatus",
    "TrainInputs",
    "calls",
    "check_packed",
    "eager_calls",
    "infer",
    "is_direct",
    "layer_weights",
    "library_status",
    "pack_weights",
    "reference_train",
    "register_gradient",
    "run",
    "train",
]

infer: Any = None
run: Any = None
check_packed: Any = None

if library_status().loaded:
    _infer.register()
    _train.register()
    infer = torch.ops.rnnpack.infer.default
    run = torch.ops.rnnpack.run.default
    check_packed = torch.ops.rnnpack.check_packed.default
