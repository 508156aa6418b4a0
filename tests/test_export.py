"""`torch.export`: one graph for every length and batch, the op kept whole.

tests/test_transforms.py has the plain cases; here are both tracers of torch.export, with and
without gradients, every class, and what a graph becomes when it is decomposed, saved or loaded.
"""

import subprocess
import sys
from collections import Counter

import pytest
import torch
from torch import nn
from torch.export import Dim

import rnnpack
from helpers import KINDS, LSTM, Layer, assert_same_bits

ANY = Dim.DYNAMIC
INPUT, HIDDEN = 5, 9
SHAPES = ((7, 3), (1, 1), (13, 2), (4, 1), (1, 6))  # steps, rows

each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
strict_both_ways = pytest.mark.parametrize("strict", [True, False], ids=["strict", "non-strict"])
with_and_without_gradients = pytest.mark.parametrize(
    "gradients", [False, True], ids=["no_grad", "grad"]
)
each_cell = pytest.mark.parametrize("name", ["LSTMCell", "GRUCell", "RNNCell"])


def ops_of(program):
    """How often each op of ours stands in the graph, and how many nodes call anything else."""
    ours, others = Counter(), Counter()
    for node in program.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            mine = node.target.namespace == "rnnpack"
            (ours if mine else others)[node.target.name().partition("::")[2]] += 1
    return ours, others


def exported(module, arguments, dynamic, *, strict, gradients=False):
    with torch.set_grad_enabled(gradients):
        return torch.export.export(module, arguments, dynamic_shapes=dynamic, strict=strict)


def states(kind, rows, stacks=1):
    return tuple(torch.randn(stacks, rows, HIDDEN) for _ in range(kind.states))


# --- Layers ---------------------------------------------------------------------------------------


@with_and_without_gradients
@strict_both_ways
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True, "bias": False}], ids=str
)
@each_kind
def test_one_graph_serves_every_length_and_batch(kind, options, strict, gradients):
    module = Layer(kind.make(INPUT, HIDDEN, **options)).eval()
    program = exported(
        module,
        (torch.randn(7, 3, INPUT),),
        ({0: ANY, 1: ANY},),
        strict=strict,
        gradients=gradients,
    )
    # Without gradients the whole stack is one op; with them it is one a layer and direction.
    expected = {"train": 4 if options else 1} if gradients else {"infer": 1}
    for each in (program, program.run_decompositions()):
        assert ops_of(each)[0] == expected
        run = each.module()
        with torch.set_grad_enabled(gradients):
            for steps, rows in SHAPES:
                input = torch.randn(steps, rows, INPUT)
                assert_same_bits(run(input), module(input))


@strict_both_ways
@each_kind
def test_states_and_lengths_are_inputs_of_the_graph(kind, strict):
    module = Layer(kind.make(INPUT, HIDDEN, bidirectional=True)).eval()

    def arguments(steps, rows):
        lengths = torch.randint(0, steps + 1, (rows,))
        return torch.randn(steps, rows, INPUT), states(kind, rows, 2), lengths

    dynamic = ({0: ANY, 1: ANY}, ({1: ANY},) * kind.states, {0: ANY})
    program = exported(module, arguments(7, 3), dynamic, strict=strict)
    assert ops_of(program)[0] == {"infer": 1}
    run = program.module()
    with torch.no_grad():
        for shape in SHAPES:
            given = arguments(*shape)
            assert_same_bits(run(*given), module(*given))


@strict_both_ways
def test_a_projected_layer(strict):
    module = Layer(LSTM.make(INPUT, HIDDEN, 2, proj_size=3, batch_first=True)).eval()
    program = exported(module, (torch.randn(3, 7, INPUT),), ({0: ANY, 1: ANY},), strict=strict)
    assert ops_of(program)[0] == {"infer": 1}
    run = program.module()
    with torch.no_grad():
        for steps, rows in SHAPES:
            input = torch.randn(rows, steps, INPUT)
            assert_same_bits(run(input), module(input))


@strict_both_ways
@each_kind
def test_gradients_flow_through_an_exported_layer(kind, strict):
    module = Layer(kind.make(INPUT, HIDDEN, 2))
    program = exported(
        module, (torch.randn(7, 3, INPUT),), ({0: ANY, 1: ANY},), strict=strict, gradients=True
    )
    twin = program.module()
    twin_parameters = dict(twin.named_parameters())
    names, parameters = zip(*module.named_parameters(), strict=True)
    input = torch.randn(13, 2, INPUT)
    expected = torch.autograd.grad(module(input)[0].square().sum(), parameters)
    found = torch.autograd.grad(
        twin(input)[0].square().sum(), [twin_parameters[name] for name in names]
    )
    assert_same_bits(found, expected)


@strict_both_ways
@each_kind
def test_packed_layers_export_as_constants(kind, strict):
    module = Layer(kind.make(INPUT, HIDDEN, 2)).eval()
    rnnpack.pack(module)
    program = exported(module, (torch.randn(7, 3, INPUT),), ({0: ANY, 1: ANY},), strict=strict)
    assert ops_of(program)[0] == {"infer": 1}
    assert {name: tensor.dtype for name, tensor in program.state_dict.items()} == {
        "layer.packed_l0": torch.uint8,
        "layer.packed_l1": torch.uint8,
    }
    run = program.module()
    with torch.no_grad():
        for steps, rows in SHAPES:
            input = torch.randn(steps, rows, INPUT)
            assert_same_bits(run(input), module(input))


class Inputs(torch.fx.Interpreter):
    """Runs a graph and keeps the input of every recurrent op, and its output."""

    def __init__(self, module):
        super().__init__(module)
        self.seen = []

    def call_function(self, target, args, kwargs):
        result = super().call_function(target, args, kwargs)
        if target is torch.ops.rnnpack.train.default or target is torch.ops.rnnpack.infer.default:
            self.seen.append((args[0], result[0]))
        return result


@with_and_without_gradients
@strict_both_ways
@each_kind
def test_dropout_between_layers_outlives_decomposition(kind, strict, gradients):
    p, layers = 0.25, 3
    module = Layer(kind.make(INPUT, HIDDEN, layers, dropout=p)).train()
    program = exported(
        module,
        (torch.randn(7, 3, INPUT),),
        ({0: ANY, 1: ANY},),
        strict=strict,
        gradients=gradients,
    )
    with torch.set_grad_enabled(gradients):
        for each in (program, program.run_decompositions()):
            assert ops_of(each)[0] == {"train" if gradients else "infer": layers}
            run = Inputs(each.module())
            run.run(torch.randn(50, 20, INPUT))
            assert len(run.seen) == layers
            for (_, before), (after, _) in zip(run.seen[:-1], run.seen[1:], strict=True):
                kept = after != 0
                torch.testing.assert_close(after[kept], before[kept] / (1 - p))
                # 9,000 draws (half of relu's outputs are zero by themselves): five standard
                # deviations are less than 0.04.
                dropped = (~kept & (before != 0)).sum() / (before != 0).sum()
                assert abs(dropped - p) < 0.04


@each_kind
def test_dropout_is_off_in_a_graph_of_an_evaluated_layer(kind):
    module = Layer(kind.make(INPUT, HIDDEN, 3, dropout=0.9)).eval()
    program = exported(module, (torch.randn(7, 3, INPUT),), None, strict=False)
    ours, others = ops_of(program)
    assert ours == {"infer": 1} and not others


# --- Cells ----------------------------------------------------------------------------------------


@with_and_without_gradients
@strict_both_ways
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@each_cell
def test_cells(name, packed, strict, gradients):
    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = getattr(rnnpack, name)(INPUT, HIDDEN)

        def forward(self, input, hx):
            return self.cell(input), self.cell(input, hx)

    module = Step()
    if packed:
        rnnpack.pack(module)

    def arguments(rows):
        h = torch.randn(rows, HIDDEN)
        return torch.randn(rows, INPUT), (h, torch.randn(rows, HIDDEN)) if name[0] == "L" else h

    state = ({0: ANY}, {0: ANY}) if name[0] == "L" else {0: ANY}
    program = exported(module, arguments(3), ({0: ANY}, state), strict=strict, gradients=gradients)
    expected = {"train" if gradients and not packed else "infer": 2}
    for each in (program, program.run_decompositions()):
        assert ops_of(each)[0] == expected
        run = each.module()
        for rows in (1, 2, 17):
            given = arguments(rows)
            with torch.set_grad_enabled(gradients):
                torch.testing.assert_close(run(*given), module(*given))


# --- Files ----------------------------------------------------------------------------------------

LOAD_AND_RUN = """
import sys
import torch
import rnnpack
folder = sys.argv[1]
inputs, results = torch.load(f"{folder}/inputs.pt"), []
for name in sys.argv[2:]:
    run = torch.export.load(f"{folder}/{name}").module()
    with torch.no_grad():
        results.append([run(input) for input in inputs])
torch.save(results, f"{folder}/results.pt")
"""


class Mixed(nn.Module):
    """Every layer class and a cell, one behind the other."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            [
                rnnpack.LSTM(INPUT, HIDDEN, proj_size=4),
                rnnpack.GRU(4, 7, 2, bidirectional=True),
                rnnpack.RNN(14, HIDDEN, nonlinearity="relu"),
            ]
        )
        self.cell = rnnpack.LSTMCell(HIDDEN, 6)

    def forward(self, input):
        for layer in self.layers:
            input, _ = layer(input)
        return input, *self.cell(input[-1])


def test_saved_programs_are_loaded_by_another_process(tmp_path):
    models = {"plain.pt2": Mixed().eval(), "packed.pt2": rnnpack.pack(Mixed().eval()).model}
    for name, model in models.items():
        program = exported(model, (torch.randn(7, 3, INPUT),), ({0: ANY, 1: ANY},), strict=False)
        torch.export.save(program, tmp_path / name)
    inputs = [torch.randn(*shape, INPUT) for shape in SHAPES]
    torch.save(inputs, tmp_path / "inputs.pt")
    done = subprocess.run(
        [sys.executable, "-c", LOAD_AND_RUN, str(tmp_path), *models],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        expected = [[model(input) for input in inputs] for model in models.values()]
    assert_same_bits(torch.load(tmp_path / "results.pt"), expected)
