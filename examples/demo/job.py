"""What a model hands to the demo: its network, its input cut in units of work, its meaning."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Finding:
    """Whether an output means what it should, and that in words."""

    good: bool
    text: str


@dataclass(frozen=True)
class Job:
    """A pretrained model at its real work.

    Attributes:
        name: what it is, in a few words.
        layers: its recurrent part, in a few words.
        unit: what one step of `units` processes, in a few words.
        model: the network with its published weights, float32, layers of torch.nn.
        units: runs a network like `model`, in the dtype of its parameters, over the whole input;
            yields the output of each unit of work in turn.
        judge: says what the output, all units joined along dimension 0, means.
        published: the output of the publisher's own program on the same input, if it is run too.
    """

    name: str
    layers: str
    unit: str
    model: nn.Module
    units: Callable[[nn.Module], Iterator[Tensor]]
    judge: Callable[[Tensor], Finding]
    published: Tensor | None = None


def dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype of the parameters, which is that of the input and the states too."""
    return next(model.parameters()).dtype
