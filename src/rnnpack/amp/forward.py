"""The forward of a model that `initialize` was given: its casts around the model's own."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rnnpack.amp.casting import cast_floats
from rnnpack.amp.session import casts_disabled


@dataclass(frozen=True)
class Casts:
    """What happens around a forward.

    Attributes:
        autocast: device type and dtype of an autocast region; None: no region.
        inputs: what arguments are cast to; None: they are not.
        outputs: what results are cast to; None: they are not.
    """

    autocast: tuple[str, torch.dtype] | None = None
    inputs: torch.dtype | None = None
    outputs: torch.dtype | None = None


class Forward:
    """Takes the place of `model.forward`.

    An object that names its model, not a closure: a deep copy or an unpickled model then has one
    that names the copy.
    """

    def __init__(self, model: nn.Module, casts: Casts) -> None:
        self.model = model
        self.casts = casts
        self.patched = vars(model).get("forward")  # where someone has set one on this object

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        casts = self.casts
        if casts.inputs is not None:
            args, kwargs = cast_floats((args, kwargs), casts.inputs)
        if casts.autocast is None or casts_disabled():
            output = self._run(args, kwargs)
        else:
            device_type, dtype = casts.autocast
            with torch.autocast(device_type, dtype=dtype):
                output = self._run(args, kwargs)
        return output if casts.outputs is None else cast_floats(output, casts.outputs)

    def _run(self, args: Any, kwargs: Any) -> Any:
        return self._own()(*args, **kwargs)

    def _own(self) -> Any:
        """The model's own forward."""
        if self.patched is not None:
            return self.patched
        # The class is asked at every call: convert, pack and parametrizations change it.
        return type(self.model).forward.__get__(self.model)

    # What torch.export asks of a method: where it is written, and the names of its arguments.

    @property
    def __code__(self) -> Any:
        return self._own().__code__

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._own())

    def replicate(self) -> nn.Module:
        """A replica for `torch.nn.DataParallel`, with a forward of its own."""
        kind = type(self.model)
        replica: nn.Module = kind._replicate_for_data_parallel(self.model)  # type: ignore[no-untyped-call]
        if self.patched is None:
            del replica.__dict__["forward"]
            install(replica, self.casts)
        return replica


def install(model: nn.Module, casts: Casts) -> None:
    """Put casts around a model's forward."""
    forward = Forward(model, casts)
    model.forward = forward
    model._replicate_for_data_parallel = forward.replicate  # type: ignore[method-assign]
