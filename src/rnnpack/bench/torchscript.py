"""A projected LSTM as a TorchScript module: what people write to have one that is faster."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn


class _Direction(nn.Module):
    """One direction: a loop over steps, gates from two products, outputs collected in a list."""

    def __init__(self, layer: nn.Module, suffix: str) -> None:
        super().__init__()
        parameters = dict(layer.named_parameters())
        self.reverse = suffix.endswith("_reverse")
        self.weight_ih = parameters["weight_ih" + suffix]
        self.weight_hh = parameters["weight_hh" + suffix]
        self.weight_hr = parameters["weight_hr" + suffix]
        self.bias_ih = parameters["bias_ih" + suffix]
        self.bias_hh = parameters["bias_hh" + suffix]

    def forward(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = torch.zeros(input.size(1), self.weight_hr.size(0))
        c = torch.zeros(input.size(1), self.weight_hr.size(1))
        steps = input.unbind(0)
        outputs: list[Tensor] = []
        for k in range(len(steps)):
            x = steps[len(steps) - 1 - k] if self.reverse else steps[k]
            gates = torch.mm(x, self.weight_ih.t()) + self.bias_ih
            gates = gates + torch.mm(h, self.weight_hh.t()) + self.bias_hh
            i, f, g, o = gates.chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.mm(torch.sigmoid(o) * torch.tanh(c), self.weight_hr.t())
            outputs.append(h)
        if self.reverse:
            outputs.reverse()
        return torch.stack(outputs), h, c


class _Layer(nn.Module):
    """One layer of one or two directions, with the call and the result of torch.nn.LSTM."""

    def __init__(self, layer: nn.LSTM) -> None:
        super().__init__()
        suffixes = ("_l0", "_l0_reverse") if layer.bidirectional else ("_l0",)
        self.directions = nn.ModuleList([_Direction(layer, suffix) for suffix in suffixes])

    def forward(self, input: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        outputs: list[Tensor] = []
        h_n: list[Tensor] = []
        c_n: list[Tensor] = []
        for direction in self.directions:
            output, h, c = direction(input)
            outputs.append(output)
            h_n.append(h)
            c_n.append(c)
        return torch.cat(outputs, 2), (torch.stack(h_n), torch.stack(c_n))


class Scripted(nn.Module):
    """The scripted layer, with the parameters of `layer` under their own names."""

    def __init__(self, layer: nn.LSTM) -> None:
        super().__init__()
        for name, parameter in layer.named_parameters():
            self.register_parameter(name, parameter)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            # The method alone: as a submodule it would show every parameter a second time.
            self._call: Any = torch.jit.script(_Layer(layer)).forward

    def forward(self, input: Tensor) -> Any:
        return self._call(input)


def scripted(layer: nn.Module) -> nn.Module:
    """A TorchScript module of a one-layer projected `torch.nn.LSTM`, sharing its parameters."""
    assert isinstance(layer, nn.LSTM) and layer.num_layers == 1 and layer.proj_size
    return Scripted(layer)
