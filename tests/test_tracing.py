"""`torch.jit.trace`, `torch.jit.script` and `torch.fx.symbolic_trace`.

A trace must serve with and without gradients, whichever way it was made: `torch.jit.trace` itself
runs it again under `torch.no_grad()` and compares the graphs.
"""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import rnnpack
from helpers import KINDS, LSTM, Layer, assert_same_bits

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated, and says so

INPUT, HIDDEN = 5, 9
SHAPES = ((7, 3), (1, 1), (13, 2), (4, 1), (1, 6))  # steps, rows
CELLS = ("LSTMCell", "GRUCell", "RNNCell")

each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
each_cell = pytest.mark.parametrize("name", CELLS)
each_mode = pytest.mark.parametrize("gradients", [False, True], ids=["no_grad", "grad"])


def states(kind, rows, stacks=1):
    return tuple(torch.randn(stacks, rows, HIDDEN) for _ in range(kind.states))


def arguments(kind, steps, rows):
    """Input, states of two directions, and lengths."""
    lengths = torch.randint(0, steps + 1, (rows,))
    return torch.randn(steps, rows, INPUT), states(kind, rows, 2), lengths


def traced(module, given, tmp_path, *, gradients):
    """Trace, save, load: what a user of TorchScript runs."""
    with torch.set_grad_enabled(gradients):
        torch.jit.trace(module, given).save(tmp_path / "traced.pt")
    return torch.jit.load(tmp_path / "traced.pt")


def gradients_of(module, input, hx, lengths=None):
    """Gradients of all results by input, states and parameters."""
    leaves = [tensor.clone().requires_grad_() for tensor in (input, *hx)]
    given = (leaves[0], tuple(leaves[1:]), *(() if lengths is None else (lengths,)))
    output, final = module(*given)
    loss = output.pow(2).sum() + sum(state.pow(3).sum() for state in final)
    return torch.autograd.grad(loss, [*leaves, *module.parameters()])


# --- torch.jit ------------------------------------------------------------------------------------


@each_mode
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@each_kind
def test_a_saved_trace_takes_states_and_lengths(kind, packed, gradients, tmp_path):
    module = Layer(kind.make(INPUT, HIDDEN, bidirectional=True)).eval()
    if packed:
        rnnpack.pack(module)
    run = traced(module, arguments(kind, 7, 3), tmp_path, gradients=gradients)
    with torch.no_grad():
        for shape in SHAPES:
            given = arguments(kind, *shape)
            assert_same_bits(run(*given), module(*given))


@each_kind
def test_a_trace_of_stacked_layers_with_the_batch_first(kind, tmp_path):
    layer = kind.make(INPUT, HIDDEN, 2, batch_first=True)
    run = traced(layer, (torch.randn(3, 7, INPUT),), tmp_path, gradients=True)
    for steps, rows in SHAPES:
        input = torch.randn(rows, steps, INPUT)
        assert_same_bits(run(input)[0], layer(input)[0])


@each_mode
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@each_cell
def test_a_saved_trace_of_a_cell(name, packed, gradients, tmp_path):
    cell = getattr(rnnpack, name)(INPUT, HIDDEN)
    if packed:
        rnnpack.pack(cell)
    run = traced(cell, (torch.randn(3, INPUT),), tmp_path, gradients=gradients)
    with torch.no_grad():
        for rows in (1, 2, 17):
            input = torch.randn(rows, INPUT)
            assert_same_bits(run(input), cell(input))


@each_mode
@each_kind
def test_a_trace_is_differentiated_as_the_layer_is(kind, gradients, tmp_path):
    module = Layer(kind.make(INPUT, HIDDEN, 2, bidirectional=True))
    given = (torch.randn(7, 3, INPUT), states(kind, 3, 4), torch.tensor([7, 0, 4]))
    run = traced(module, given, tmp_path, gradients=gradients)
    for steps, rows in SHAPES:
        lengths = torch.randint(0, steps + 1, (rows,))
        others = (torch.randn(steps, rows, INPUT), states(kind, rows, 4), lengths)
        assert_same_bits(gradients_of(run, *others), gradients_of(module, *others))


def test_a_trace_of_a_projected_layer_and_of_one_in_bfloat16(tmp_path):
    for options, dtype in (({"proj_size": 4}, torch.float32), ({}, torch.bfloat16)):
        layer = LSTM.make(INPUT, HIDDEN, dtype=dtype, **options)
        input = torch.randn(7, 3, INPUT, dtype=dtype)
        run = traced(layer, (input,), tmp_path, gradients=True)
        given = torch.randn(4, 2, INPUT, dtype=dtype)
        asked = [grad_of(module, given) for module in (run, layer)]
        assert_same_bits(*asked)


def grad_of(module, input):
    loss = module(input)[0].float().pow(2).sum()
    return torch.autograd.grad(loss, list(module.parameters()))


def test_a_trace_is_differentiated_twice():
    layer = LSTM.make(INPUT, HIDDEN)
    input = torch.randn(4, 2, INPUT)
    run = torch.jit.trace(Layer(layer), (input,))

    def penalty(module):
        leaf = input.clone().requires_grad_()
        (first,) = torch.autograd.grad(module(leaf)[0].pow(2).sum(), leaf, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), list(layer.parameters()))

    for ours, expected in zip(penalty(run), penalty(Layer(layer)), strict=True):
        torch.testing.assert_close(ours, expected)


def test_a_trace_asks_for_no_gradient_where_none_is_needed():
    layer = Layer(LSTM.make(INPUT, HIDDEN).requires_grad_(False))
    run = torch.jit.trace(layer, (torch.randn(4, 2, INPUT),))
    assert not run(torch.randn(4, 2, INPUT))[0].requires_grad
    leaf = torch.randn(4, 2, INPUT, requires_grad=True)
    run(leaf)[0].sum().backward()
    assert leaf.grad is not None


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN", *CELLS])
def test_scripting_is_refused_with_what_to_do(name):
    module = nn.Sequential(getattr(rnnpack, name)(INPUT, HIDDEN))
    kind = type(module[0])
    with pytest.raises(
        RuntimeError, match=rf"cannot compile rnnpack's {name}: use .*rnnpack\.revert"
    ):
        torch.jit.script(module)
    assert type(module[0]) is kind
    torch.jit.script(rnnpack.revert(module).model)


# --- torch.fx -------------------------------------------------------------------------------------


class Tagger(nn.Module):
    """A model that symbolic tracing can take: no branch on what a tensor holds."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, nn.LazyLinear(3)

    def forward(self, input):
        output, _ = self.layer(input)
        return self.head(output).relu()


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@each_kind
def test_a_symbolic_trace_keeps_the_layer_as_one_node(kind, packed):
    model = Tagger(kind.make(INPUT, HIDDEN, 2, bidirectional=True)).eval()
    model(torch.randn(2, 2, INPUT))
    if packed:
        rnnpack.pack(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = torch.fx.symbolic_trace(model)
    called = [node.target for node in graph.graph.nodes if node.op == "call_module"]
    assert called == ["layer", "head"]
    for steps, rows in SHAPES:
        input = torch.randn(steps, rows, INPUT)
        assert_same_bits(graph(input), model(input))
        assert_same_bits(copy.deepcopy(graph)(input), model(input))


@each_kind
def test_a_symbolic_trace_hands_states_and_lengths_on(kind):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = kind.make(INPUT, HIDDEN)

        def forward(self, input, h_0, c_0, lengths):
            hx = (h_0, c_0) if kind.states == 2 else h_0
            return self.layer(input, hx, lengths=lengths)

    model = Model()
    graph = torch.fx.symbolic_trace(model)
    given = (torch.randn(7, 3, INPUT), *torch.randn(2, 1, 3, HIDDEN), torch.tensor([7, 2, 0]))
    assert_same_bits(graph(*given), model(*given))


@each_cell
def test_a_symbolic_trace_of_a_loop_over_a_cell(name):
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = getattr(rnnpack, name)(INPUT, HIDDEN)

        def forward(self, input):
            state = None
            for step in range(3):
                state = self.cell(input[step], state)
            return state

    loop, input = Loop(), torch.randn(3, 2, INPUT)
    assert_same_bits(torch.fx.symbolic_trace(loop)(input), loop(input))


def test_a_symbolic_trace_of_a_pruned_layer_follows_its_mask():
    model = Tagger(LSTM.make(INPUT, HIDDEN))
    input = torch.randn(4, 2, INPUT)
    model(input)
    prune.random_unstructured(model.layer, "weight_hh_l0", 0.5)
    graph = torch.fx.symbolic_trace(model)
    assert_same_bits(graph(input), model(input))
    with torch.no_grad():
        model.layer.weight_hh_l0_mask.zero_()
    assert_same_bits(graph(input), model(input))
