"""A case made concrete: the torch.nn module that defines it, its input, states and gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rnnpack.bench.cases import Case

_CLASS = {
    "lstm": "LSTM",
    "gru": "GRU",
    "rnn_tanh": "RNN",
    "rnn_relu": "RNN",
    "lstm_cell": "LSTMCell",
    "gru_cell": "GRUCell",
    "rnn_tanh_cell": "RNNCell",
}


@dataclass(frozen=True)
class Problem:
    """What every contestant of a case gets.

    layer: the torch.nn module; all contestants use its weights.
    input: `[seq_len, batch, input_size]`; it requires a gradient if the case trains.
    states: `(h_0, c_0)` or `(h_0,)`, each `[directions * layers, batch, features]`; empty if the
    case gives none.
    grad: gradient of the output, of its shape, for training.
    """

    case: Case
    layer: nn.Module
    input: Tensor
    states: tuple[Tensor, ...]
    grad: Tensor

    @property
    def is_cell(self) -> bool:
        """Whether the module is a cell: it takes one step, without the leading axis."""
        return self.case.cell.endswith("_cell")


def class_name(case: Case) -> str:
    """The name that torch.nn and rnnpack both give to the module of a case."""
    return _CLASS[case.cell]


def build_layer(module_class: Any, case: Case, **options: Any) -> nn.Module:
    """A module of the given class, in torch.nn's signature, for a case."""
    if case.cell.endswith("_cell"):
        layer = module_class(case.input_size, case.hidden_size, **options)
    else:
        if case.proj_size:
            options["proj_size"] = case.proj_size
        if case.cell.startswith("rnn"):
            options["nonlinearity"] = case.cell.removeprefix("rnn_")
        layer = module_class(
            case.input_size,
            case.hidden_size,
            case.layers,
            bidirectional=case.bidirectional,
            **options,
        )
    assert isinstance(layer, nn.Module)
    return layer


def build_problem(case: Case) -> Problem:
    """The problem of a case; the same numbers at every call."""
    torch.manual_seed(0)
    layer = build_layer(getattr(torch.nn, class_name(case)), case)
    layer.train(case.mode == "train")
    input = torch.randn(case.seq_len, case.batch, case.input_size)
    grad = torch.randn(case.seq_len, case.batch, case.directions * case.output_size)
    states: tuple[Tensor, ...] = ()
    if case.states or case.mode == "stream":
        rows = (case.directions * case.layers, case.batch)
        states = tuple(torch.randn(*rows, size) for size in case.state_sizes)
    return Problem(case, layer, input.requires_grad_(case.mode == "train"), states, grad)
