"""`rnnpack::run`: `rnnpack::infer` with a gradient, for what `torch.jit.trace` records.

A trace is one graph for callers with and without gradients, so the op finds out when it runs. The
backward pass runs the layers again, as a checkpoint does, by the way of eager training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rnnpack.ops.train import gradients_through

_WEIGHTS = 3  # among the op's arguments, after input, h_0 and c_0
_TENSORS = 6  # leading arguments that are tensors, None, or the list of weights

Differentiable = Callable[..., tuple[Tensor, ...]]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    weights = inputs[_WEIGHTS]
    ctx.set_materialize_grads(False)
    ctx.weights = len(weights)
    ctx.save_for_backward(*inputs[:_WEIGHTS], *weights, *inputs[_WEIGHTS + 1 : _TENSORS])
    ctx.rest = inputs[_TENSORS:]


def register_gradient(differentiable: Differentiable) -> None:
    """Give the op the gradient of a function that takes the same arguments."""

    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        tensors = ctx.saved_tensors
        last = _WEIGHTS + ctx.weights
        arguments = (*tensors[:_WEIGHTS], list(tensors[_WEIGHTS:last]), *tensors[last:], *ctx.rest)
        asked = [t if t is not None and t.requires_grad else None for t in tensors[:last]]
        again = torch.is_grad_enabled()  # create_graph: to be differentiated once more
        with torch.enable_grad():
            results = differentiable(*arguments)
            gradients = gradients_through(results, grads, asked, create_graph=again)
        nothing = (None,) * (_TENSORS - _WEIGHTS - 1 + len(ctx.rest))
        return (*gradients[:_WEIGHTS], list(gradients[_WEIGHTS:]), *nothing)

    torch.library.register_autograd("rnnpack::run", backward, setup_context=_save)
