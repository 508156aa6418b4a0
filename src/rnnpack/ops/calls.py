"""Eager calls past torch's dispatcher: `infer`, `cell` and `stream`, or None where they decline.

They decline, and the long way is taken, unless the call is of plain tensors, needs no gradient, and
nobody waits to see the op: no mode, transform, tracer, profiler or autocast region. They make the
op's own checks and refuse what it refuses. Without the compiled module they decline every call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch.autograd import forward_ad

from rnnpack.ops.library import library_status, native

__all__ = ["cell", "infer", "status", "stream"]


def _in_forward_ad() -> bool:
    return forward_ad._current_level >= 0


def _declines(*_: Any) -> Any:
    return None


def _connect() -> str:
    """Set the functions below; returns what came of it."""
    global infer, cell, stream  # set once, at import
    if not library_status().loaded:
        return "no native library"
    try:
        from rnnpack.ops import _calls
    except ImportError:
        return "through torch's dispatcher: built without Python's headers (Python.h)"
    aoti = torch._C._aoti
    try:
        to_handle = aoti.unsafe_alloc_void_ptr_from_tensor
        from_handles = aoti.alloc_tensors_by_stealing_from_void_ptrs
        watchers = (
            _functorch.peek_interpreter_stack,
            torch._C._is_any_autocast_enabled,
            torch._C._len_torch_dispatch_stack,
            torch._C._len_torch_function_stack,
            torch._C._get_tracing_state,
            torch._C._autograd._profiler_enabled,
            _in_forward_ad,
        )
    except AttributeError as error:
        return f"through torch's dispatcher: torch {torch.__version__} lacks {error.name}"
    _calls.connect(
        native().rnnpack_calls(),
        Tensor,
        torch.nn.Parameter,
        to_handle,
        from_handles,
        Tensor.is_neg,
        torch.is_grad_enabled,
        watchers,
    )
    infer, cell, stream = _calls.infer, _calls.cell, _calls.stream
    return "by tensor handles"


infer: Any = _declines
cell: Any = _declines
stream: Any = _declines
status = _connect()
