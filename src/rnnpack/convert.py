"""`convert` and `revert`: torch.nn's recurrent layers into rnnpack's and back, in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from rnnpack.cells import GRUCell, LSTMCell, RNNCell
from rnnpack.derived import plain_class
from rnnpack.layers import GRU, LSTM, RNN, Recurrent

_TORCH_TO_OURS: Mapping[type[nn.Module], type[nn.Module]] = {
    nn.LSTM: LSTM,
    nn.GRU: GRU,
    nn.RNN: RNN,
    nn.LSTMCell: LSTMCell,
    nn.GRUCell: GRUCell,
    nn.RNNCell: RNNCell,
}
_OURS_TO_TORCH = {ours: theirs for theirs, ours in _TORCH_TO_OURS.items()}
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)


@dataclass(frozen=True)
class Conversion:
    """What `convert` or `revert` did: the model, the names swapped, those left and the reasons.

    The root module's name is "".
    """

    model: nn.Module
    swapped: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


def convert(model: nn.Module) -> Conversion:
    """Turn every LSTM, GRU, RNN and cell of `torch.nn` in `model` into rnnpack's, in place.

    Modules stay the same objects, with the same parameters, hooks, pruning and parametrizations:
    only their class changes, so optimizers, tied weights and references elsewhere stay right. The
    root module may itself be a layer.

    Args:
        model: any module.
    Returns:
        A `Conversion`. Left as they are: subclasses, which have code of their own, quantized
        layers, script modules.
    """
    return _swap(model, _TORCH_TO_OURS)


def revert(model: nn.Module) -> Conversion:
    """Turn every layer and cell of rnnpack in `model` back into that of `torch.nn`, in place."""
    return _swap(model, _OURS_TO_TORCH)


def _swap(model: nn.Module, classes: Mapping[type[nn.Module], type[nn.Module]]) -> Conversion:
    report = Conversion(model)
    for name, module in model.named_modules():
        plain = plain_class(module)
        if plain in classes:
            target = classes[plain]
            if plain is not type(module):
                body = {
                    k: v
                    for k, v in vars(type(module)).items()
                    if k not in ("__dict__", "__weakref__")
                }
                target = type(type(module).__name__, (target,), body)
            module.__class__ = target
            _settle(module)
            report.swapped.append(name)
        elif reason := _reason_to_leave(module, tuple(classes), tuple(classes.values())):
            report.left[name] = reason
    return report


def _settle(module: nn.Module) -> None:
    """Give a module whose class just changed what its new class keeps beside parameters."""
    if isinstance(module, Recurrent):
        module.__dict__.pop("_flat_weights", None)
        module.__dict__.pop("_flat_weight_refs", None)
        module.__dict__.setdefault("recompute", False)
        if isinstance(module, RNN):
            module.__dict__.setdefault("nonlinearity", module.mode.removeprefix("RNN_").lower())
    elif isinstance(module, nn.RNNBase):
        module.__dict__.pop("recompute", None)
        module._init_flat_weights()


def _reason_to_leave(
    module: nn.Module, sources: tuple[type[nn.Module], ...], targets: tuple[type[nn.Module], ...]
) -> str | None:
    """Why a recurrent module stays; None for modules of other kinds and those already there."""
    kind = type(module)
    if plain_class(module) in targets:
        return None
    if isinstance(module, torch.jit.ScriptModule):
        original = getattr(module, "original_name", "")
        recurrent = {source.__name__ for source in sources}
        return "a script module: convert before scripting" if original in recurrent else None
    if kind.__module__.startswith("torch.ao.") and any(
        source.__name__ in kind.__name__ for source in sources
    ):
        return "quantized: its weights are not floating-point parameters"
    if kind.__module__ == "rnnpack.packing":
        return "packed: it holds a snapshot, no parameters to share"
    if isinstance(module, _RECURRENT):
        return f"{kind.__name__} is a subclass with code of its own (forward or other methods)"
    return None
