"""Weights that are computed from others: by hooks (pruning, norms) or by parametrizations."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

_WEIGHT_HOOKS = (BasePruningMethod, SpectralNorm, WeightNorm)


def plain_class(module: nn.Module) -> type[nn.Module]:
    """The class of a module; of a parametrized one, which has a class made for it, the base's."""
    kind = type(module)
    return kind.__mro__[1] if parametrize.is_parametrized(module) else kind


def refresh(module: nn.Module) -> None:
    """Let hooks compute the module's weights now, as they do before each call."""
    for hook in list(module._forward_pre_hooks.values()):
        if isinstance(hook, _WEIGHT_HOOKS):
            hook(module, ())


def drop(module: nn.Module) -> None:
    """Take away what computes weights, where they are not needed any more."""
    for key, hook in list(module._forward_pre_hooks.items()):
        if isinstance(hook, _WEIGHT_HOOKS):
            del module._forward_pre_hooks[key]
    module._modules.pop("parametrizations", None)


def copyable_state(module: nn.Module, names: Iterable[str]) -> dict[str, Any]:
    """What a module is made of, for a copy or a pickle; `names`: of its weights.

    A weight that a hook computed, and will compute again, cannot be copied with its history.
    """
    state = module.__dict__.copy()
    for name in names:
        if isinstance(state.get(name), Tensor):
            state[name] = state[name].detach()
    return state


def deep_copy(module: nn.Module, names: Iterable[str], memo: dict[int, Any]) -> Any:
    """A deep copy of the copyable state; a parametrized class has a `__getstate__` that raises."""
    copied = type(module).__new__(type(module))
    memo[id(module)] = copied
    copied.__dict__ = copy.deepcopy(copyable_state(module, names), memo)
    return copied
