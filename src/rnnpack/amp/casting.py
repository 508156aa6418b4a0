"""Casts of what a call is given, and of the weights of a model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.rnn import PackedSequence


def map_tensors(
    function: Callable[[Tensor], Tensor], tree: Any, otherwise: Callable[[Any], Any] = lambda x: x
) -> Any:
    """The same tuples, lists, dicts and packed sequences with `function` of each tensor.

    Of anything else it gives `otherwise`.
    """
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, PackedSequence):
        return tree._replace(data=function(tree.data))
    if isinstance(tree, tuple | list):
        values = [map_tensors(function, value, otherwise) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    if type(tree) is dict:
        return {key: map_tensors(function, value, otherwise) for key, value in tree.items()}
    if isinstance(tree, dict):
        mapped = copy.copy(tree)  # an ordered one, a model's output with attributes
        for key, value in tree.items():
            mapped[key] = map_tensors(function, value, otherwise)
        return mapped
    return otherwise(tree)


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """The tensors in tuples, lists, dicts and packed sequences."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, PackedSequence):
        yield tree.data
    elif isinstance(tree, tuple | list | dict):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors_in(value)


def cast_floats(tree: Any, dtype: torch.dtype) -> Any:
    """Cast the floating tensors of arguments or results; of a user's class, what its `to` does."""

    def cast(value: Tensor) -> Tensor:
        return value.to(dtype) if value.is_floating_point() else value

    def cast_other(value: Any) -> Any:
        return (
            value.to(dtype) if hasattr(value, "to") and not isinstance(value, nn.Module) else value
        )

    return map_tensors(cast, tree, cast_other)


def cast_weights(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast the float32 parameters and buffers of one module, not of those within it.

    Parameters stay the same objects, so optimizers, ties and pruning keep them.
    """
    for parameter in module._parameters.values():
        if parameter is not None and parameter.dtype is torch.float32:
            parameter.data = parameter.data.to(dtype)
            if parameter.grad is not None:
                parameter.grad = parameter.grad.to(dtype)
    for name, buffer in module._buffers.items():
        if buffer is not None and buffer.dtype is torch.float32:
            module._buffers[name] = buffer.to(dtype)
    if isinstance(module, nn.RNNBase):
        # A subclass with code of its own was not converted, and keeps one buffer for its weights.
        module.flatten_parameters()


def is_batchnorm(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm)
