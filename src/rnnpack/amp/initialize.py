"""`initialize`: models and optimizers made ready for an opt level."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from rnnpack.amp import session as sessions
from rnnpack.amp.casting import cast_weights, is_batchnorm
from rnnpack.amp.forward import Casts, Forward, install
from rnnpack.amp.masters import keep_in_state_dicts, make_masters
from rnnpack.amp.options import Options, resolve
from rnnpack.amp.registry import patch_functions
from rnnpack.amp.scaler import LossScaler
from rnnpack.amp.session import Session
from rnnpack.amp.stepping import Stepper, has_stepper
from rnnpack.convert import convert

T = TypeVar("T")

_PARALLEL = (DataParallel, DistributedDataParallel)


def initialize(
    models: Any,
    optimizers: Any = None,
    enabled: bool = True,
    opt_level: str = "O1",
    cast_model_type: torch.dtype | None = None,
    patch_torch_functions: bool | None = None,
    keep_batchnorm_fp32: bool | str | None = None,
    master_weights: bool | None = None,
    loss_scale: float | str | None = None,
    cast_model_outputs: torch.dtype | None = None,
    num_losses: int = 1,
    verbosity: int = 1,
    min_loss_scale: float | None = None,
    max_loss_scale: float = 2.0**24,
) -> Any:
    """Make models and optimizers ready for an opt level, in place. Call it once.

    Recurrent layers of torch.nn become rnnpack's, as `rnnpack.convert` does it. What each level
    does: docs/amp.md.

    Args:
        models: a module, or a list of them, in float32, on its device, not yet wrapped for
            several devices or processes.
        optimizers: an optimizer, or a list of them; None: no training.
        enabled: False: this and all other functions of amp do nothing.
        opt_level: "O0" float32, "O1" autocast, "O2" 16-bit weights with float32 masters, "O3"
            16-bit weights.
        cast_model_type, patch_torch_functions, keep_batchnorm_fp32, master_weights, loss_scale,
            cast_model_outputs: override what the level says; see docs/amp.md. loss_scale: a number,
            its text, or "dynamic".
        num_losses: how many losses there are, each with a scale of its own: see `scale_loss`.
        verbosity: 0: print nothing.
        min_loss_scale, max_loss_scale: limits of a dynamic scale; None: no limit.
    Returns:
        Models, or (models, optimizers) where optimizers were given: the same objects, lists where
        lists came.
    Raises:
        RuntimeError: called a second time (see `reset`); overrides that contradict the level; a
            model that is not in float32 or is wrapped already; a model or an optimizer that comes
            twice, or came to an earlier call.
        TypeError: models, optimizers or overrides of the wrong kind.
        ValueError: values of overrides, num_losses, limits.
    """
    given = models, optimizers
    if sessions.enabled():
        raise RuntimeError(
            "amp.initialize was called before: expected one call with all models and optimizers "
            "in lists; amp.reset() begins anew"
        )
    model_list = _listed("models", models, nn.Module)
    optimizer_list = [] if optimizers is None else _listed("optimizers", optimizers, Optimizer)
    if enabled:
        options = resolve(
            opt_level,
            cast_model_type=cast_model_type,
            patch_torch_functions=patch_torch_functions,
            keep_batchnorm_fp32=keep_batchnorm_fp32,
            master_weights=master_weights,
            loss_scale=loss_scale,
            cast_model_outputs=cast_model_outputs,
        )
        scalers = _scalers(options, num_losses, min_loss_scale, max_loss_scale)
        _check(model_list, optimizer_list, options)
        device_types = {_device_type(model) for model in model_list}
        session = Session(options, device_types, scalers, quiet=verbosity == 0)
        _set_up(session, options, model_list, optimizer_list)
    else:
        session = Session()
    sessions.begin(session)
    return given if optimizers is not None else models


def _set_up(
    session: Session, options: Options, models: list[nn.Module], optimizers: list[Optimizer]
) -> None:
    for model in models:
        for name, why in convert(model).left.items():
            session.say(f"amp: {name or 'the model'} stays as it is: {why}")
    masters = bool(options.master_weights)
    if options.opt_level == "O1":
        for model in models:
            device_type = _device_type(model)
            region = (device_type, options.dtype_on(device_type))
            autocast = region if options.patch_torch_functions else None
            install(model, Casts(autocast, outputs=options.cast_model_outputs))
    else:
        _cast(options, models, _parameters_of(optimizers) if masters else set())
    for optimizer in optimizers:
        Stepper(optimizer, dynamic=options.loss_scale is None, masters=masters)
    patch_functions(session)
    session.say(f"amp: {_description(options, {_device_type(model) for model in models})}")


def _cast(options: Options, models: list[nn.Module], mastered: set[Tensor]) -> None:
    """Cast weights, inputs and outputs; `mastered` are the parameters that get masters before."""
    done: set[nn.Module] = set()
    for model in models:
        dtype = options.dtype_on(_device_type(model))
        for module in model.modules():
            if module in done or dtype is torch.float32:
                continue
            done.add(module)
            if options.keep_batchnorm_fp32 and is_batchnorm(module):
                continue
            own = [p for p in module._parameters.values() if p in mastered and p is not None]
            make_masters([p for p in own if p.dtype is torch.float32])
            cast_weights(module, dtype)
            if options.master_weights:
                keep_in_state_dicts(module)
        install(model, Casts(inputs=dtype, outputs=options.cast_model_outputs or torch.float32))


def _parameters_of(optimizers: list[Optimizer]) -> set[Tensor]:
    return {
        parameter
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def _listed(name: str, given: Any, kind: type[T]) -> list[T]:
    """What was given as a list, each of the right kind."""
    listed = given if isinstance(given, list) else [given]
    for one in listed:
        if not isinstance(one, kind):
            raise TypeError(
                f"{name}: expected a torch {kind.__name__} or a list of them, got "
                f"{type(one).__name__}"
            )
    return listed


def _scalers(
    options: Options, num_losses: int, minimum: float | None, maximum: float
) -> list[LossScaler]:
    if num_losses < 1:
        raise ValueError(f"num_losses: expected at least 1, got {num_losses}")
    if not 0 < (maximum if minimum is None else minimum) <= maximum:
        raise ValueError(
            f"expected 0 < min_loss_scale <= max_loss_scale, got {minimum} and {maximum}"
        )
    return [LossScaler(options.loss_scale, minimum, maximum) for _ in range(num_losses)]


def _check(models: list[nn.Module], optimizers: list[Optimizer], options: Options) -> None:
    """Raise where models or optimizers are not ready, before anything is changed."""
    for model in models:
        if isinstance(model, _PARALLEL):
            raise RuntimeError(
                f"expected a model before it is wrapped, got {type(model).__name__}: call "
                "amp.initialize first"
            )
        if isinstance(model, torch.jit.ScriptModule):
            raise RuntimeError(
                "expected a model in Python, got a script module: give the one that it was "
                "scripted from"
            )
        if isinstance(vars(model).get("forward"), Forward):
            raise RuntimeError(
                f"expected a new {type(model).__name__}, got one that amp.initialize made ready "
                "before: make another"
            )
        for name, module in model.named_modules():
            if options.opt_level in ("O2", "O3") and hasattr(module, "packed_from"):
                raise RuntimeError(
                    f"{name or 'the model'} is packed, its weights cannot be cast: call "
                    "amp.initialize before rnnpack.pack, or choose opt_level 'O1'"
                )
        for name, parameter in model.named_parameters():
            if parameter.is_floating_point() and parameter.dtype is not torch.float32:
                raise RuntimeError(
                    f"expected a model in float32, got parameter {name} in {parameter.dtype}: "
                    "amp.initialize does the casts, so call model.float() before"
                )
    if len(set(models)) < len(models) or len(set(optimizers)) < len(optimizers):
        raise RuntimeError("expected each model and each optimizer once, got one twice")
    for optimizer in optimizers:
        if has_stepper(optimizer):
            raise RuntimeError(
                f"expected a new {type(optimizer).__name__}, got one that amp.initialize made "
                "ready before: make another"
            )


def _device_type(model: nn.Module) -> str:
    first = next(model.parameters(), None)
    return "cpu" if first is None else first.device.type


def _description(options: Options, device_types: set[str]) -> str:
    values = {one.name: getattr(options, one.name) for one in fields(options)}
    types = sorted({str(options.dtype_on(device_type)) for device_type in device_types})
    values["cast_model_type"] = " and ".join(types)
    values["loss_scale"] = options.loss_scale or "dynamic"
    return ", ".join(f"{name} {value}" for name, value in values.items())
