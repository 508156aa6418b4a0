"""Master weights: float32 copies of 16-bit parameters, which optimizers update.

What the model computes with is the parameter. Where somebody writes to it past the optimizer
(pruning made permanent, clipping, a new initialization), the master takes over what they wrote.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

_SIXTEEN_BIT = (torch.float16, torch.bfloat16)

# The master of each parameter, as long as the parameter lives.
_masters = WeakTensorKeyDictionary()


def make_masters(parameters: list[Tensor]) -> None:
    """Make masters of float32 parameters, before they are cast."""
    for parameter in parameters:
        if parameter not in _masters:
            master = parameter.detach().clone().requires_grad_(parameter.requires_grad)
            _masters[parameter] = master


def master_of(parameter: Tensor) -> Tensor | None:
    """The master of a parameter, made now if it is in 16 bits and has none."""
    if parameter.dtype not in _SIXTEEN_BIT:
        return None
    if parameter not in _masters:
        master = parameter.detach().float().requires_grad_(parameter.requires_grad)
        _masters[parameter] = master
    return _masters[parameter]  # type: ignore[no-any-return]


@torch.no_grad()
def catch_up(master: Tensor, parameter: Tensor) -> None:
    """Take over elements that were written to the parameter since the master's last step.

    Elements that still are the master's, rounded, keep all its bits. Values are compared, since no
    version counter sees every write.
    """
    written = parameter != master.to(parameter.dtype)
    torch.where(written, parameter.float(), master, out=master)


@torch.no_grad()
def write_back(master: Tensor, parameter: Tensor) -> None:
    """Round a master's values to its parameter."""
    parameter.copy_(master)


def keep_in_state_dicts(module: nn.Module) -> None:
    """Let the state dict of a module hold float32: its masters, and its buffers."""
    module.register_state_dict_post_hook(_save)  # type: ignore[no-untyped-call]
    module.register_load_state_dict_pre_hook(_load)  # type: ignore[no-untyped-call]


def _save(module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    for name, parameter in module._parameters.items():
        if parameter is not None and parameter in _masters and prefix + name in state:
            master = _masters[parameter]
            catch_up(master, parameter)
            state[prefix + name] = master.detach()
    for name in (*module._parameters, *module._buffers):
        value = state.get(prefix + name)
        if isinstance(value, Tensor) and value.dtype in _SIXTEEN_BIT:
            state[prefix + name] = value.float()


def _load(
    module: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any], *_: Any
) -> None:
    for name, parameter in module._parameters.items():
        value = state.get(prefix + name)
        if parameter not in _masters or value is None:
            continue
        master = _masters[parameter]
        if metadata.get("assign_to_params_buffers", False):
            raise RuntimeError(
                f"{prefix + name}: load_state_dict(assign=True) would replace a parameter whose "
                "master weight an optimizer holds: load it with assign=False"
            )
        if value.shape == master.shape:  # else torch says what is wrong
            with torch.no_grad():
                master.copy_(value)
