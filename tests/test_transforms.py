"""Function transforms, compilation and export: the same values, no state left behind."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import Dim, export
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, stack_module_state, vmap
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from helpers import GRU, KINDS, LSTM, assert_same_bits, call

each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def detached(layer):
    return {name: p.detach() for name, p in layer.named_parameters()}


@each_kind
def test_jvp_of_input_states_and_parameters_agrees_with_jacrev(kind):
    ours = kind.make(2, 3, 2, bidirectional=True, dtype=torch.float64)
    input = torch.randn(4, 2, 2, dtype=torch.float64)
    hx = torch.randn(4, 2, 3, dtype=torch.float64)
    primals = (detached(ours), input, hx)

    def run(parameters, input, h_0):
        states = (h_0, torch.tanh(h_0)) if kind is LSTM else h_0
        return functional_call(ours, parameters, (input, states))[0]

    tangents = torch.utils._pytree.tree_map(torch.randn_like, primals)
    output, tangent = jvp(run, primals, tangents)
    torch.testing.assert_close(output, run(*primals))
    jacobians = jacrev(run, (0, 1, 2))(*primals)
    pairs = zip(
        torch.utils._pytree.tree_leaves(jacobians),
        torch.utils._pytree.tree_leaves(tangents),
        strict=True,
    )
    expected = sum(torch.tensordot(jacobian, v, v.dim()) for jacobian, v in pairs)
    torch.testing.assert_close(tangent, expected)


@each_kind
def test_forward_mode_in_float32(kind):
    ours, torchs = kind.pair(4, 7)
    double = copy.deepcopy(torchs).double()
    input, tangent = torch.randn(5, 3, 4), torch.randn(5, 3, 4)
    result = jvp(lambda x: ours(x)[0], (input,), (tangent,))[1]
    expected = torch.tensordot(
        jacrev(lambda x: double(x)[0])(input.double()), tangent.double(), tangent.dim()
    )
    torch.testing.assert_close(result, expected.float())


@each_kind
def test_jacfwd_agrees_with_jacrev(kind):
    ours, input = kind.make(2, 3, dtype=torch.float64), torch.randn(3, 1, 2, dtype=torch.float64)
    torch.testing.assert_close(
        jacfwd(lambda x: ours(x)[0])(input), jacrev(lambda x: ours(x)[0])(input)
    )


@each_kind
def test_an_ensemble_is_a_vmap_over_stacked_weights(kind):
    layers = [kind.make(4, 7, 2, bidirectional=True) for _ in range(3)]
    parameters, buffers = stack_module_state(layers)
    assert not buffers
    skeleton = copy.deepcopy(layers[0]).to("meta")
    input = torch.randn(5, 3, 4)

    def run(parameters, input):
        output, states = functional_call(skeleton, parameters, (input,))
        return output, (states if kind is LSTM else (states,))

    output, states = vmap(run, in_dims=(0, None))(parameters, input)
    for index, layer in enumerate(layers):
        alone, of_layer = call(layer, input)
        torch.testing.assert_close(output[index], alone)
        torch.testing.assert_close(tuple(state[index] for state in states), of_layer)
    # An input of its own for each member, and gradients of the stacked weights.
    inputs = torch.randn(3, 5, 3, 4)
    vmap(run)(parameters, inputs)[0].pow(2).sum().backward()
    for index, layer in enumerate(layers):
        layer(inputs[index])[0].pow(2).sum().backward()
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(parameters[name].grad[index], parameter.grad)


@pytest.mark.parametrize("batched", [False, True], ids=["unbatched", "batch of one"])
@each_kind
def test_gradients_per_sample(kind, batched):
    ours, parameters = kind.make(4, 7, 2), None
    parameters = detached(ours)
    samples = torch.randn(6, 5, 4)

    def loss(parameters, sample):
        sample = sample.unsqueeze(1) if batched else sample
        return functional_call(ours, parameters, (sample,))[0].pow(2).sum()

    grads = vmap(grad(loss), in_dims=(None, 0))(parameters, samples)
    for index, sample in enumerate(samples):
        ours.zero_grad()
        ours(sample)[0].pow(2).sum().backward()
        for name, parameter in ours.named_parameters():
            torch.testing.assert_close(grads[name][index], parameter.grad)


@each_kind
def test_jacobians_per_sample_are_causal_and_trainable(kind):
    ours, samples = kind.make(2, 3), torch.randn(4, 5, 2)
    jacobians = vmap(jacrev(lambda x: ours(x)[0]))(samples)
    assert jacobians.shape == (4, 5, 3, 5, 2)
    for index, sample in enumerate(samples):
        alone = torch.autograd.functional.jacobian(lambda x: ours(x)[0], sample)
        torch.testing.assert_close(jacobians[index], alone)
    for step in range(4):
        assert jacobians[:, step, :, step + 1 :].count_nonzero() == 0
    jacobians.pow(2).sum().backward()
    assert ours.weight_hh_l0.grad is not None


@each_kind
def test_vmap_with_lengths(kind):
    ours, lengths = kind.make(4, 7, bidirectional=True), torch.tensor([2, 5, 0])
    inputs = torch.randn(2, 5, 3, 4)
    output = vmap(lambda x: ours(x, lengths=lengths)[0])(inputs)
    for index, input in enumerate(inputs):
        torch.testing.assert_close(output[index], ours(input, lengths=lengths)[0])


@each_kind
def test_transforms_leave_the_layer_as_it_was(kind):
    ours, input = kind.make(4, 7, 2), torch.randn(5, 3, 4)
    before = ours(input)[0]
    jvp(lambda x: ours(x)[0], (input,), (input,))
    vmap(lambda x: ours(x)[0])(torch.stack([input, input]))
    assert_same_bits(ours(input)[0], before)
    assert_same_bits(copy.deepcopy(ours)(input)[0], before)


@pytest.fixture
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_dynamo")
@each_kind
def test_compiles_as_one_graph_whose_size_does_not_grow_with_time(kind):
    ours, linear, sizes = kind.make(4, 7, 2, bidirectional=True), nn.Linear(14, 1), []

    def run(input):
        return linear(ours(input)[0]).sum()

    for seq_len in (2, 7):
        torch._dynamo.reset()
        nodes = []

        def count(graph, example, nodes=nodes):
            nodes.append(len(graph.graph.nodes))
            return graph

        input = torch.randn(seq_len, 3, 4, requires_grad=True)
        expected = run(input)
        (slope,) = torch.autograd.grad(expected, input)
        compiled = torch.compile(run, backend=aot_autograd(fw_compiler=count), fullgraph=True)
        output = compiled(input)
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(torch.autograd.grad(output, input)[0], slope)
        assert nodes
        sizes.append(sum(nodes))
    assert sizes[0] == sizes[1]


@pytest.mark.usefixtures("fresh_dynamo")
@each_kind
def test_compiled_inference_reads_the_weights_of_now(kind):
    ours, input = kind.make(4, 7).eval(), torch.randn(5, 3, 4)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(input)[0], ours(input)[0])
        ours.weight_hh_l0.mul_(1.5)
        torch.testing.assert_close(compiled(input)[0], ours(input)[0])
        ours.weight_hh_l0 = nn.Parameter(2 * ours.weight_hh_l0)
        torch.testing.assert_close(compiled(input)[0], ours(input)[0])


class Output(nn.Module):
    """The output alone: what an exported graph returns here."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, input):
        return self.layer(input)[0]


EXPORTS = [(kind, {}) for kind in KINDS] + [
    (GRU, {"num_layers": 2}),
    (LSTM, {"bidirectional": True}),
    (LSTM, {"proj_size": 3}),
]


@pytest.mark.parametrize(("kind", "options"), EXPORTS, ids=str)
def test_export_keeps_batch_and_time_symbolic(kind, options):
    module = Output(kind.make(4, 7, batch_first=True, **options)).eval()
    program = export(
        module,
        (torch.randn(2, 5, 4),),
        dynamic_shapes={"input": {0: Dim("batch"), 1: Dim("time", min=2, max=4096)}},
    )
    for exported in (program, program.run_decompositions()):
        for batch, seq_len in ((1, 2), (3, 9)):
            input = torch.randn(batch, seq_len, 4)
            torch.testing.assert_close(exported.module()(input), module(input))


@each_kind
def test_export_with_states_keeps_batch_and_time_symbolic(kind):
    class WithStates(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = kind.make(4, 7)

        def forward(self, input, hx):
            return call(self.layer, input, tuple(hx))

    module, batch, time = WithStates().eval(), Dim("batch"), Dim("time", min=2, max=4096)

    def arguments(seq_len, rows):
        return torch.randn(seq_len, rows, 4), [torch.randn(1, rows, 7) for _ in range(kind.states)]

    program = export(
        module,
        arguments(5, 2),
        dynamic_shapes={"input": {0: time, 1: batch}, "hx": [{1: batch}] * kind.states},
    )
    given = arguments(9, 3)
    torch.testing.assert_close(program.module()(*given), module(*given))


@each_kind
def test_export_takes_lengths_as_an_input(kind):
    class WithLengths(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = kind.make(4, 7, batch_first=True, bidirectional=True)

        def forward(self, input, lengths):
            return self.layer(input, lengths=lengths)[0]

    module, batch, time = WithLengths().eval(), Dim("batch"), Dim("time", min=2, max=4096)
    program = export(
        module,
        (torch.randn(3, 5, 4), torch.tensor([2, 5, 0])),
        dynamic_shapes={"input": {0: batch, 1: time}, "lengths": {0: batch}},
    )
    input, lengths = torch.randn(4, 9, 4), torch.tensor([9, 1, 4, 6])
    packed = pack_padded_sequence(input, lengths, batch_first=True, enforce_sorted=False)
    expected = pad_packed_sequence(module.layer(packed)[0], batch_first=True)[0]
    torch.testing.assert_close(program.module()(input, lengths), expected)


@each_kind
def test_export_in_training_keeps_the_dropout(kind):
    module = Output(kind.make(4, 7, 2, dropout=0.9)).train()
    input = torch.randn(5, 3, 4)
    exported = export(module, (input,)).run_decompositions().module()
    assert exported(input).ne(exported(input)).any()


@pytest.mark.usefixtures("fresh_dynamo")
@each_kind
def test_tracing_leaves_the_layer_usable_and_without_fake_tensors(kind):
    ours, input = kind.make(4, 7, 2).eval(), torch.randn(5, 3, 4)
    expected = ours(input)[0]
    module = Output(ours)
    export(module, (input,))
    torch.compile(module, backend="aot_eager")(input)

    def fakes(value):
        if isinstance(value, FakeTensor):
            return [value]
        if not isinstance(value, list | tuple | dict):
            return []
        items = value.values() if isinstance(value, dict) else value
        return [fake for item in items for fake in fakes(item)]

    assert not fakes(ours.__dict__)
    for layer in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), ours):
        torch.testing.assert_close(layer(input)[0], expected)
    ours(input)[0].sum().backward()
    assert ours.weight_ih_l0.grad is not None
