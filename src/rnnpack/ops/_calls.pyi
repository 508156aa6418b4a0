"""Modules' eager calls by tensor handles (csrc/python/calls.cpp). Import it from `calls` alone."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

def connect(
    calls: int,
    tensor: type,
    parameter: type,
    to_handle: Callable[[Tensor], Any],
    from_handles: Callable[[list[Any]], list[Tensor]],
    is_negated: Callable[[Tensor], bool],
    grad_mode: Callable[[], bool],
    watchers: tuple[Callable[[], Any], ...],
) -> None:
    """Say where things are; once, before the first call.

    Args:
        calls: address of the native library's table of functions.
        tensor, parameter: the two classes of plain tensors.
        to_handle: from a tensor to a capsule with a new handle.
        from_handles: from capsules to tensors, which take the handles over.
        is_negated, grad_mode: of torch.
        watchers: each true while somebody waits to see the op.
    """

def infer(
    module: Any,
    home: dict[str, Any],
    names: Sequence[str],
    input: object,
    hx: object,
    cell: int,
    num_layers: int,
    hidden_size: int,
    proj_size: int,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Any] | None:
    """A layer's call: `(output, state)`, or None where the long way must be taken.

    Args:
        module, home, names: weights are `home[name]`, or else attributes of `module`.
        input, hx: as the layer got them.
        cell, ...: as for the op `infer`.
    """

def cell(
    module: Any,
    home: dict[str, Any],
    names: Sequence[str],
    input: object,
    hx: object,
    cell: int,
) -> Any:
    """A cell's call: h, or (h, c), or None where the long way must be taken."""

def stream(stream: int, input: object, dim: int) -> Tensor | None:
    """Feed the stream at this address one step (dim 2) or several (3).

    None where the input has another number of dimensions or is otherwise not what it takes.
    """
