"""The equations of one step, one function a cell.

A cell takes the input's share of the gates, already multiplied, and the state; it returns the next
state, whose first entry is the step's output. Names and gate orders are those of `torch.nn`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import linear

State: TypeAlias = tuple[Tensor, ...]


class LayerWeights(NamedTuple):
    """The weights of one layer and direction, gates stacked along dimension 0 in the cell's order.

    Shapes, with G gates (lstm 4, gru 3, rnn 1): `weight_ih` [G*hidden, H_in], `weight_hh`
    [G*hidden, H_out], `bias_ih` and `bias_hh` [G*hidden], `weight_hr` [proj_size, hidden], which
    only the lstm has. H_out is proj_size where there is a projection, else hidden.
    """

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None = None
    bias_hh: Tensor | None = None
    weight_hr: Tensor | None = None


Cell: TypeAlias = Callable[[Tensor, State, LayerWeights], State]


def lstm(gates_ih: Tensor, hx: State, weights: LayerWeights) -> State:
    """Take one LSTM step; gates in order i, f, g, o.

    c' = f * c + i * g and h' = o * tanh(c'), with i, f, o through sigmoid and g through tanh; with
    a projection, h' = weight_hr (o * tanh(c')).

    Source: Hochreiter & Schmidhuber 1997; projection: Sak et al. 2014.
    """
    h, c = hx
    i, f, g, o = (gates_ih + linear(h, weights.weight_hh, weights.bias_hh)).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    if weights.weight_hr is not None:
        h = linear(h, weights.weight_hr)
    return h, c


def gru(gates_ih: Tensor, hx: State, weights: LayerWeights) -> State:
    """Take one GRU step; gates in order r, z, n.

    n = tanh(W_in x + b_in + r * (W_hn h + b_hn)) and h' = (1 - z) * n + z * h, with r, z through
    sigmoid. The reset gate multiplies after the linear part, so `b_hn` stands inside its product.

    Source: Cho et al. 2014, in the variant that cuDNN and torch share.
    """
    (h,) = hx
    r_ih, z_ih, n_ih = gates_ih.chunk(3, -1)
    r_hh, z_hh, n_hh = linear(h, weights.weight_hh, weights.bias_hh).chunk(3, -1)
    r = torch.sigmoid(r_ih + r_hh)
    z = torch.sigmoid(z_ih + z_hh)
    n = torch.tanh(n_ih + r * n_hh)
    return ((1 - z) * n + z * h,)


def rnn_tanh(gates_ih: Tensor, hx: State, weights: LayerWeights) -> State:
    """Take one step of an Elman network: h' = tanh(W_ih x + b_ih + W_hh h + b_hh).

    Source: Elman 1990.
    """
    (h,) = hx
    return (torch.tanh(gates_ih + linear(h, weights.weight_hh, weights.bias_hh)),)


def rnn_relu(gates_ih: Tensor, hx: State, weights: LayerWeights) -> State:
    """Take one step of an Elman network with relu: h' = relu(W_ih x + b_ih + W_hh h + b_hh).

    Source: Le et al. 2015.
    """
    (h,) = hx
    return (torch.relu(gates_ih + linear(h, weights.weight_hh, weights.bias_hh)),)


CELLS: Mapping[str, Cell] = MappingProxyType(
    {"lstm": lstm, "gru": gru, "rnn_tanh": rnn_tanh, "rnn_relu": rnn_relu}
)
