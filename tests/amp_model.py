"""A model to train under `rnnpack.amp`, as a user would write it, and how it is trained."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from rnnpack import amp

LEVELS = ("O0", "O1", "O2", "O3")
SIXTEEN_BIT = (torch.bfloat16, torch.float16)

each_level = pytest.mark.parametrize("level", LEVELS)


@contextmanager
def amp_begun_anew() -> Iterator[None]:
    """Leave no session behind. One thread: a team costs more than calls as small as these."""
    amp.reset()
    torch.set_num_threads(1)
    yield
    amp.reset()


class Model(nn.Module):
    """A recurrent layer, batch norm and a head, as a user would write them."""

    def __init__(self, kind=nn.LSTM):
        super().__init__()
        self.layer = kind(5, 7, 2)
        self.norm = nn.BatchNorm1d(7)
        self.head = nn.Linear(7, 3)
        self.seen = None  # dtypes: of the layer's input, its output, and the model's output

    def forward(self, input, *, hx=None):
        output, _ = self.layer(input, hx)
        result = self.head(self.norm(output.flatten(0, 1)))
        self.seen = (input.dtype, output.dtype, result.dtype)
        return result


def prepared(level, *, kind=nn.LSTM, rate=0.05, **options):
    """A model and an optimizer, initialized quietly."""
    model = Model(kind)
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    return amp.initialize(model, optimizer, opt_level=level, verbosity=0, **options)


def train(model, optimizer, steps=1, seed=1):
    """Take steps on drawn inputs; returns the losses."""
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(4, 3, 5, generator=generator)).float().square().mean()
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def values(model):
    return [parameter.detach().clone() for parameter in model.parameters()]
