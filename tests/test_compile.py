"""`torch.compile`: one graph, at most two compiles over lengths and batches, the eager numbers."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import rnnpack
from helpers import KINDS

each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
SHAPES = ((5, 3), (9, 4), (2, 7), (13, 2))


class Model(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.layer = kind.make(5, 9, 2, **options)
        self.head = nn.Linear(18 if options.get("bidirectional") else 9, 3)

    def forward(self, input, lengths=None):
        output, _ = self.layer(input) if lengths is None else self.layer(input, lengths=lengths)
        return self.head(output.data if isinstance(output, PackedSequence) else output)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


def compiled(model, backend="aot_eager"):
    counter = CompileCounterWithBackend(backend)
    return torch.compile(model, backend=counter, fullgraph=True), counter


@each_kind
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "batch_first": True}], ids=str)
def test_inference_compiles_twice_at_most(kind, options):
    model = Model(kind, **options).eval()
    run, counter = compiled(model)
    with torch.no_grad():
        for shape in SHAPES:
            input = torch.randn(*shape, 5)
            torch.testing.assert_close(run(input), model(input))
    assert counter.frame_count <= 2


@each_kind
def test_training_compiles_twice_at_most(kind):
    model = Model(kind, dropout=0.0)
    run, counter = compiled(model)
    for shape in SHAPES:
        input = torch.randn(*shape, 5, requires_grad=True)
        inputs = [input, *model.parameters()]
        ours = torch.autograd.grad(run(input).pow(2).sum(), inputs)
        eager = torch.autograd.grad(model(input).pow(2).sum(), inputs)
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)
    assert counter.frame_count <= 2


@each_kind
def test_lengths_compile_twice_at_most(kind):
    model = Model(kind).eval()
    run, counter = compiled(model)
    with torch.no_grad():
        for steps, batch in SHAPES:
            input, lengths = torch.randn(steps, batch, 5), torch.randint(0, steps + 1, (batch,))
            torch.testing.assert_close(run(input, lengths), model(input, lengths))
    assert counter.frame_count <= 2


@each_kind
def test_packed_sequences_compile(kind):
    model = Model(kind).eval()
    run, _ = compiled(model)
    with torch.no_grad():
        for steps, batch in SHAPES:
            lengths = torch.randint(1, steps + 1, (batch,))
            input = pack_padded_sequence(
                torch.randn(steps, batch, 5), lengths, enforce_sorted=False
            )
            torch.testing.assert_close(run(input), model(input))


@each_kind
def test_autocast_compiles(kind):
    model = Model(kind).eval()
    run, counter = compiled(model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for shape in SHAPES:
            input = torch.randn(*shape, 5)
            output = run(input)
            assert output.dtype == torch.bfloat16
            torch.testing.assert_close(output, model(input), rtol=0.02, atol=0.02)
    assert counter.frame_count <= 2


@each_kind
def test_packed_layers_compile(kind):
    model = Model(kind).eval()
    rnnpack.pack(model)
    run, counter = compiled(model)
    with torch.no_grad():
        for shape in SHAPES:
            input = torch.randn(*shape, 5)
            torch.testing.assert_close(run(input), model(input))
    assert counter.frame_count <= 2


@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell", "RNNCell"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_cells_compile(name, training):
    cell = getattr(rnnpack, name)(5, 9)
    run, counter = compiled(cell)
    with torch.set_grad_enabled(training):
        for batch in (1, 4, 7):
            input = torch.randn(batch, 5)
            torch.testing.assert_close(run(input), cell(input))
    assert counter.frame_count <= 2


@each_kind
def test_the_default_compiler_runs_it(kind):
    model = Model(kind).eval()
    run, _ = compiled(model, "inductor")
    with torch.no_grad():
        for shape in SHAPES[:2]:
            input = torch.randn(*shape, 5)
            torch.testing.assert_close(run(input), model(input))


@each_kind
def test_compiled_models_are_copied_and_compiled_again(kind):
    model, input = Model(kind).eval(), torch.randn(5, 3, 5)
    with torch.no_grad():
        compiled(model)[0](input)
        twin = copy.deepcopy(model)
        twin.layer.weight_hh_l0.mul_(2)
        for each in (twin, model):
            torch.testing.assert_close(compiled(each)[0](input), each(input))
        assert not torch.equal(twin(input), model(input))
