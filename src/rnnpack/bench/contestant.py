"""What a runner of a case is: a call to time, and a way to read its values."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Values = dict[str, Tensor]


class Absent(Exception):
    """A contestant cannot run a case; the message says why."""


@dataclass(frozen=True)
class Contestant:
    """One runner of a case.

    call: does the work of the case once; this is what is timed.
    values: from what `call` returned, the tensors to compare, by name: output, h_n, c_n,
    grad.<parameter>.
    refusal: why a speed must not be reported (the path was not the native one), else None.
    """

    call: Callable[[], Any]
    values: Callable[[Any], Values]
    path: str = ""
    refusal: str | None = None


def require(package: str) -> Any:
    """An optional package, or `Absent`."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise Absent(f"{package} is not installed ({error})") from None
