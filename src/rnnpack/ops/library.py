"""Loads the native library once and says what came of it."""

from __future__ import annotations

import ctypes
import functools
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch

_NAME = "rnnpack_native"
# An editable install has the package in two places, one of them with the library.
_PACKAGE = __name__.partition(".")[0]


@dataclass(frozen=True)
class LibraryStatus:
    """Whether the native library runs here, and which instruction set it chose."""

    loaded: bool
    path: str | None = None
    reason: str | None = None  # why not, if not
    isa: str = "none"
    features: list[str] = field(default_factory=list)  # of this processor, among those that matter


def _candidates() -> list[Path]:
    suffix = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
    return [Path(place) / "lib" / f"{_NAME}{suffix}" for place in sys.modules[_PACKAGE].__path__]


@functools.cache
def library_status() -> LibraryStatus:
    """Load the library at the first call; later calls return the same answer."""
    found = [path for path in _candidates() if path.exists()]
    if not found:
        return LibraryStatus(
            False,
            reason="the native library was not built: install a C++20 compiler, then "
            "`pip install --no-build-isolation rnnpack`; layers run on torch's kernels until then",
        )
    path = str(found[0])
    try:
        torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    except OSError as error:
        return LibraryStatus(
            False,
            path=path,
            reason=f"built for another torch or platform than torch {torch.__version__}: {error}; "
            "reinstall rnnpack with this torch; layers run on torch's kernels until then",
        )
    library = _declare(ctypes.CDLL(path))
    features = []
    index = 0
    while name := library.rnnpack_cpu_feature_name(index):
        if library.rnnpack_cpu_feature(index):
            features.append(name.decode())
        index += 1
    return LibraryStatus(True, path, isa=library.rnnpack_isa().decode(), features=features)


@functools.cache
def native() -> ctypes.CDLL:
    """The library's C functions; it must be loaded."""
    return _declare(ctypes.CDLL(library_status().path or ""))


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    integer, address = ctypes.c_int64, ctypes.c_void_p
    library.rnnpack_isa.restype = ctypes.c_char_p
    library.rnnpack_cpu_feature_name.restype = ctypes.c_char_p
    library.rnnpack_is_direct.argtypes = [integer]
    library.rnnpack_calls.restype = address
    library.rnnpack_stream_new.restype = address
    library.rnnpack_stream_new.argtypes = [
        *[ctypes.c_int32] * 2,
        *[integer] * 5,
        *[address] * 3,
    ]
    library.rnnpack_stream_run.argtypes = [address, integer, address, address]
    library.rnnpack_stream_delete.restype = None
    library.rnnpack_stream_delete.argtypes = [address]
    return library


def is_direct(rows: int) -> bool:
    """Whether a call of so many rows (steps times batch) multiplies with the plain weights."""
    return bool(native().rnnpack_is_direct(rows))
