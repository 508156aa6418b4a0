"""Functions that take part in O1: in 16 bits, in float32, or in the widest type they are given."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from rnnpack.amp.casting import map_tensors, tensors_in
from rnnpack.amp.options import DTYPES
from rnnpack.amp.session import Session, casting, enabled

P = ParamSpec("P")
R = TypeVar("R")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

# Losses are computed after the model, where autocast ends; a sum over many elements needs float32.
_IN_FLOAT32 = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "ctc_loss",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "log_softmax",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
)

_registered: list[tuple[Any, str, Decorator]] = []


def half_function(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to get its floating arguments in O1's 16-bit type.

    It applies at O1 after `initialize`, within models and outside, but not in `disable_casts`; else
    the function is as it was. float64 is left alone, as in `torch.autocast`. Within the function
    autocast is on or off as where it was called.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        options = casting()
        device_type = _device_type((args, kwargs))
        if options is None or device_type is None:
            return function(*args, **kwargs)
        args, kwargs = _cast((args, kwargs), options.dtype_on(device_type))
        return function(*args, **kwargs)

    return run


def float_function(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to get its floating arguments in float32 and to compute in it.

    Within it autocast is off. When it applies: see `half_function`.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        device_type = _device_type((args, kwargs))
        if casting() is None or device_type is None:
            return function(*args, **kwargs)
        args, kwargs = _cast((args, kwargs), torch.float32)
        with torch.autocast(device_type, enabled=False):
            return function(*args, **kwargs)

    return run


def promote_function(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to get its floating arguments in the widest type among them.

    float16 beside bfloat16 gives float32. When it applies: see `half_function`.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        dtypes = {value.dtype for value in tensors_in((args, kwargs)) if value.dtype in DTYPES}
        if casting() is None or len(dtypes) < 2:
            return function(*args, **kwargs)
        args, kwargs = _cast((args, kwargs), reduce(torch.promote_types, dtypes))
        return function(*args, **kwargs)

    return run


def register_half_function(module: Any, name: str) -> None:
    """Let `initialize` make a `half_function` of `module.name`, at O1. Call it before.

    Raises:
        RuntimeError: `initialize` has been called already.
        ValueError: `module` has no such function.
    """
    _register(module, name, half_function)


def register_float_function(module: Any, name: str) -> None:
    """Let `initialize` make a `float_function` of `module.name`; see `register_half_function`."""
    _register(module, name, float_function)


def register_promote_function(module: Any, name: str) -> None:
    """Let `initialize` make a `promote_function` of `module.name`; see `register_half_function`."""
    _register(module, name, promote_function)


def patch_functions(session: Session) -> None:
    """Patch torch's losses and the registered functions, where O1 casts, until `reset`."""
    session.undo.append(_registered.clear)
    if session.options is None or not session.options.patch_torch_functions:
        return
    losses = [(functional, name, float_function) for name in _IN_FLOAT32]
    # Of a function that comes twice the last word counts, and the user's comes last.
    chosen = {(id(module), name): (module, name, way) for module, name, way in losses + _registered}
    for module, name, decorator in chosen.values():
        _patch(session, module, name, decorator)


def _patch(session: Session, module: Any, name: str, decorator: Decorator) -> None:
    before = getattr(module, name)
    setattr(module, name, decorator(before))
    session.undo.append(lambda: setattr(module, name, before))


def _register(module: Any, name: str, decorator: Decorator) -> None:
    if enabled():
        raise RuntimeError(
            f"{name}: expected its registration before amp.initialize, which patches functions; "
            "it came after: move it up"
        )
    if not callable(getattr(module, name, None)):
        raise ValueError(
            f"expected the name of a function of {getattr(module, '__name__', module)!r}, "
            f"got {name!r}"
        )
    _registered.append((module, name, decorator))


def _device_type(arguments: Any) -> str | None:
    """That of the first tensor; None where there is none, or no autocast on its device."""
    first = next(tensors_in(arguments), None)
    if first is None or not torch.amp.is_autocast_available(first.device.type):
        return None
    return first.device.type


def _cast(arguments: Any, dtype: torch.dtype) -> Any:
    def cast(value: Tensor) -> Tensor:
        return value.to(dtype) if value.dtype in DTYPES else value

    return map_tensors(cast, arguments)
