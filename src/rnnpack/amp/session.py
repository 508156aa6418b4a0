"""What one call of `initialize` set up for the process, and what is kept of it on disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import distributed

from rnnpack.amp.options import Options
from rnnpack.amp.scaler import LossScaler


@dataclass
class Session:
    """The options and loss scales that `initialize` chose.

    Attributes:
        options: None after `enabled=False`: every function then does nothing.
        device_types: those of the models.
        scalers: one for each loss.
        undo: gives back what was patched outside models and optimizers.
        quiet: whether nothing is printed.
    """

    options: Options | None = None
    device_types: set[str] = field(default_factory=set)
    scalers: list[LossScaler] = field(default_factory=list)
    undo: list[Callable[[], None]] = field(default_factory=list)
    quiet: bool = False

    def say(self, text: str) -> None:
        """Print a line, in one process of several."""
        if self.quiet:
            return
        if not (distributed.is_available() and distributed.is_initialized()) or (
            distributed.get_rank() == 0
        ):
            print(text)


class _Process:
    """The session of the process; None before `initialize`."""

    session: Session | None = None


class _Thread(threading.local):
    """Whether the thread is within `disable_casts`."""

    casts_disabled = False


_thread = _Thread()


def current(caller: str) -> Session:
    """The session. Raises RuntimeError, naming the caller, where there is none."""
    if _Process.session is None:
        raise RuntimeError(f"{caller}: expected a call of amp.initialize before, found none")
    return _Process.session


def enabled() -> bool:
    """Whether `initialize` has been called with enabled=True."""
    return _Process.session is not None and _Process.session.options is not None


def begin(session: Session) -> None:
    _Process.session = session


def casting() -> Options | None:
    """The options where O1's casts apply: at O1, outside `disable_casts`; else None."""
    session = _Process.session
    if session is None or session.options is None or _thread.casts_disabled:
        return None
    return session.options if session.options.patch_torch_functions else None


def casts_disabled() -> bool:
    """Whether the thread is within `disable_casts`."""
    return _thread.casts_disabled


@contextmanager
def disable_casts() -> Iterator[None]:
    """Leave out the casts of O1 within, in this thread.

    Neither autocast nor registered functions cast; models called within run on their float32
    weights. Models at other levels cast their inputs as before: their weights are what they are.
    """
    before = _thread.casts_disabled
    session = _Process.session
    with ExitStack() as stack:
        for device_type in () if session is None else session.device_types:
            stack.enter_context(torch.autocast(device_type, enabled=False))
        _thread.casts_disabled = True
        try:
            yield
        finally:
            _thread.casts_disabled = before


def reset() -> None:
    """Forget `initialize`, so that it may be called again: in a notebook, or between tests.

    Functions get back what O1 patched, and those registered are forgotten. Models and optimizers
    stay as `initialize` left them: make new ones.
    """
    session, _Process.session = _Process.session, None
    for undo in reversed(session.undo if session is not None else []):
        undo()


def state_dict() -> dict[str, Any]:
    """The loss scales, to be saved beside the state of model and optimizer.

    Returns:
        `{"loss_scaler0": {"loss_scale": float, "unskipped": int}, ...}`, one entry a loss; empty
        after enabled=False.
    Raises:
        RuntimeError: `initialize` has not been called.
    """
    scalers = current("amp.state_dict").scalers
    return {f"loss_scaler{index}": scaler.state_dict() for index, scaler in enumerate(scalers)}


def load_state_dict(state: dict[str, Any]) -> None:
    """Set the loss scales to those of `amp.state_dict`. Call it after `initialize`.

    Raises:
        RuntimeError: `initialize` has not been called, or the state is of another number of losses.
    """
    session = current("amp.load_state_dict")
    if session.options is None:
        return
    expected = [f"loss_scaler{index}" for index in range(len(session.scalers))]
    if sorted(state) != sorted(expected):
        raise RuntimeError(
            f"expected a state of {len(expected)} losses ({', '.join(expected)}), got "
            f"{', '.join(state) or 'an empty one'}: call amp.initialize with the num_losses that "
            "it was saved with"
        )
    for name, scaler in zip(expected, session.scalers, strict=True):
        scaler.load_state_dict(state[name])
