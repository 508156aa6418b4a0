"""`torch.compile` over the whole grid of options: one graph, few compiles, the bits of eager.

What is promised about compiles: a layer costs as many as `nn.Linear` does for the same inputs. That
is two at most over any sequence lengths and batch sizes, as long as both change from the first call
to the second and none is 1 or 0: torch compiles once with fixed sizes, once with those dynamic that
it has seen change, and again for a size of 1 or 0, whatever the module. Where both sizes are marked
as unbacked, one compile serves all. Another rank (an unbatched input) or a state where there was
none is another signature, with compiles of its own.
"""

import copy
import functools
import itertools
import pickle

import pytest
import torch
from torch import nn
from torch._dynamo.decorators import mark_unbacked
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import deepcopy_to_fake_tensor
from torch._inductor import config as inductor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.utils import parametrize
from torch.profiler import profile

import rnnpack
from helpers import GRU, KINDS, LSTM, RNN_RELU, RNN_TANH, Kind, assert_same_bits, call

each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
each_mode = pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
PROJECTED = Kind("LSTM", "lstm", (("proj_size", 3),))

INPUT_SIZES = (1, 7)
# Steps and batch: both change from the first call to the second, then each on its own.
SHAPES = ((3, 2), (11, 5), (3, 5), (11, 2))
AT_MOST = 2  # compiles


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function, backend="aot_eager", **options):
    counter = CompileCounterWithBackend(backend)
    return torch.compile(function, backend=counter, fullgraph=True, **options), counter


# --- The grid -------------------------------------------------------------------------------------


def arguments(layer, seq_len, batch, *, unbatched=False, with_hx=False):
    """Draw an input and states, if there are to be any, in the layer's layout."""
    middle = () if unbatched else (batch,)
    shape = (batch, seq_len) if layer.batch_first and not unbatched else (seq_len, *middle)
    rows = layer.num_layers * (2 if layer.bidirectional else 1)
    sizes = (layer.proj_size or layer.hidden_size, layer.hidden_size)
    states = sizes if isinstance(layer, rnnpack.LSTM) else sizes[:1]
    hx = tuple(torch.randn(rows, *middle, size) for size in states)
    return torch.randn(*shape, layer.input_size), hx if with_hx else None


def assert_compiles(layers, forms, backend="aot_eager"):
    """Check bits and compiles of layers, each called in its own form, over all `SHAPES`.

    All of them are one graph, which is compiled as often as the worst of them would be.
    """

    def run(inputs):
        return [call(layer, *given) for layer, given in zip(layers, inputs, strict=True)]

    run_compiled, counter = compiled(run, backend)
    with torch.no_grad():
        for shape in SHAPES:
            inputs = [
                arguments(layer, *shape, **form) for layer, form in zip(layers, forms, strict=True)
            ]
            assert_same_bits(run_compiled(inputs), run(inputs))
    assert counter.frame_count <= AT_MOST


@pytest.mark.parametrize("batch_first", [False, True], ids=["", "batch_first"])
@pytest.mark.parametrize("unbatched", [False, True], ids=["", "unbatched"])
@pytest.mark.parametrize("with_hx", [False, True], ids=["", "hx"])
@pytest.mark.parametrize("input_size", INPUT_SIZES)
def test_an_lstm_with_every_combination_of_options(input_size, with_hx, unbatched, batch_first):
    layers = [
        LSTM.make(input_size, *sizes, bias, batch_first, bidirectional=both)
        for *sizes, bias, both in itertools.product((5, 33), (1, 2), (True, False), (False, True))
    ]
    assert_compiles(layers, [{"with_hx": with_hx, "unbatched": unbatched}] * len(layers))


@pytest.mark.parametrize("kind", [GRU, RNN_TANH, RNN_RELU, PROJECTED], ids=repr)
def test_other_layers_with_every_combination_of_three_options(kind):
    # Of the 256 combinations of eight options those 16 in which any three options take all their
    # eight combinations: four options are free, each of the others is the parity of three of them.
    layers, forms = [], []
    for a, b, c, d in itertools.product((0, 1), repeat=4):
        bias, batch_first, with_hx, unbatched = b ^ c ^ d, a ^ c ^ d, a ^ b ^ c, a ^ b ^ d
        sizes = INPUT_SIZES[a], (5, 33)[b], 1 + c
        layers.append(
            kind.make(*sizes, bias=bool(bias), batch_first=bool(batch_first), bidirectional=bool(d))
        )
        forms.append({"with_hx": bool(with_hx), "unbatched": bool(unbatched)})
    assert_compiles(layers, forms)


@pytest.mark.parametrize(
    ("kind", "options", "form"),
    [
        (LSTM, {"num_layers": 2, "bidirectional": True}, {"with_hx": True}),
        (GRU, {"batch_first": True, "bias": False}, {}),
        (RNN_TANH, {"bidirectional": True}, {"unbatched": True}),
    ],
    ids=repr,
)
def test_a_sample_of_the_grid_with_the_default_compiler(kind, options, form):
    assert_compiles([kind.make(7, 33, **options)], [form], "inductor")


@pytest.mark.parametrize("kind", [LSTM, GRU], ids=str)
def test_one_compiled_function_serves_layers_of_several_input_sizes(kind):
    layers = [kind.make(input_size, 9, 2) for input_size in (1, 6, 13)]
    run, counter = compiled(call)
    with torch.no_grad():
        for shape in SHAPES:
            for layer in layers:
                given = arguments(layer, *shape, with_hx=True)
                assert_same_bits(run(layer, *given), call(layer, *given))
    assert counter.frame_count <= AT_MOST * len(layers)


@each_kind
def test_an_input_of_another_size_fails_in_a_compiled_call_too(kind):
    layer = kind.make(6, 9)
    run, _ = compiled(layer)
    with torch.no_grad():
        expected = run(torch.ones(3, 2, 6))
        with pytest.raises(Exception, match="Expected 6, got 7"):
            run(torch.ones(3, 2, 7))
        assert_same_bits(run(torch.ones(3, 2, 6)), expected)


# --- How many compiles ----------------------------------------------------------------------------

# Each size changes on its own; both together, then sizes of one and of none.
ALONE = ((3, 2), (3, 4), (11, 4), (6, 9))
TOGETHER = ((3, 2), (11, 4), (6, 9))
WITH_ONES = (*TOGETHER, (1, 4), (11, 1), (1, 1), (1, 9))
WITH_ZEROS = (*TOGETHER, (0, 4), (11, 0))


def compiles(module, shapes, training, prepare=None, **options):
    """Call a compiled module with inputs of these shapes; give the compiles after each call."""
    torch._dynamo.reset()
    run, counter = compiled(module, **options)
    counts = []
    with torch.set_grad_enabled(training):
        for shape in shapes:
            input = torch.randn(*shape, 5)
            if prepare is not None:
                prepare(input)
            output, expected = run(input), module(input)
            if isinstance(output, tuple):
                assert_same_bits(output[0], expected[0])
            counts.append(counter.frame_count)
    return counts


@functools.cache
def compiles_of_a_linear_layer(shapes, training, **options):
    return compiles(nn.Linear(5, 9), shapes, training, **options)


@pytest.mark.parametrize(
    ("shapes", "training"),
    [(ALONE, False), (ALONE, True), (WITH_ONES, False), (WITH_ONES, True), (WITH_ZEROS, False)],
    ids=["alone", "alone, training", "ones", "ones, training", "zeros"],
)
@pytest.mark.parametrize("kind", [LSTM, GRU], ids=str)
def test_a_layer_compiles_as_often_as_a_linear_one(kind, shapes, training):
    ours = compiles(kind.make(5, 9), shapes, training)
    assert ours == compiles_of_a_linear_layer(shapes, training)
    assert shapes is ALONE or ours[len(TOGETHER) - 1] <= AT_MOST


@each_mode
@each_kind
def test_one_compile_serves_all_sizes_that_are_marked_as_unbacked(kind, training):
    def mark(input):
        mark_unbacked(input, 0)
        mark_unbacked(input, 1)

    assert compiles(kind.make(5, 9), (*WITH_ONES, *ALONE), training, mark)[-1] == 1


@each_mode
@pytest.mark.parametrize("kind", [LSTM, GRU], ids=str)
def test_dynamic_from_the_start_compiles_as_often_as_a_linear_layer(kind, training):
    # torch makes a dynamic value of a float attribute that is read, and compiles again where that
    # decides something. In training the dropout between several layers is such a one.
    layer = kind.make(5, 9, 1 if training else 2).train(training)
    ours = compiles(layer, ALONE, training, dynamic=True)
    assert ours == compiles_of_a_linear_layer(ALONE, training, dynamic=True)


# --- Freezing -------------------------------------------------------------------------------------


def compiled_graph(module, input, *, freezing):
    """Compile a module by the default compiler; give it, and what its last graph runs of ours.

    That is the name of the op, and for each of its weights whether it is a constant and its dtype.
    """
    ours = []

    def look(graph):
        ours.clear()
        for node in graph.nodes:
            if str(node.target).startswith("rnnpack."):
                weights = node.args[3] if "infer" in str(node.target) else ()
                kinds = [(weight.op, weight.meta["val"].dtype) for weight in weights]
                ours.append((str(node.target), kinds))

    with inductor.patch(freezing=freezing, post_grad_custom_post_pass=look):
        run = torch.compile(module, fullgraph=True)
        run(input)
    return run, ours


def ops_of(function, *args):
    with profile() as recorded:
        function(*args)
    return [event.name for event in recorded.events() if event.name.startswith("rnnpack::")]


def bidirectional(kind):
    return kind.make(5, 9, 2, bidirectional=True)


class Halved(nn.Module):
    def forward(self, weight):
        return 0.5 * weight


def parametrized(kind):
    layer = kind.make(5, 9)
    parametrize.register_parametrization(layer, "weight_hh_l0", Halved())
    return layer


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (LSTM, bidirectional),
        (PROJECTED, parametrized),
        (GRU, bidirectional),
        (RNN_RELU, parametrized),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_freezing_packs_when_it_compiles_and_never_again(kind, make):
    layer, input = make(kind).eval(), torch.randn(3, 2, 5)
    stacks = layer.num_layers * (2 if layer.bidirectional else 1)
    packed = copy.deepcopy(layer)
    rnnpack.pack(packed)
    with torch.no_grad():
        run, graph = compiled_graph(layer, input, freezing=True)
        assert graph == [("rnnpack.infer.default", [("get_attr", torch.uint8)] * stacks)]
        assert ops_of(run, input) == ["rnnpack::infer"]
        assert_same_bits(run(input), packed(input))


def test_freezing_packs_the_weights_of_cells():
    layer, input = rnnpack.LSTMCell(5, 9).eval(), torch.randn(3, 5)
    with torch.no_grad():
        run, graph = compiled_graph(layer, input, freezing=True)
        assert graph == [("rnnpack.infer.default", [("get_attr", torch.uint8)])]
        assert ops_of(run, input) == ["rnnpack::infer"]
        torch.testing.assert_close(run(input), layer(input))


@pytest.mark.parametrize("freezing", [False, True], ids=["", "freezing"])
def test_weights_that_are_inputs_of_the_graph_are_packed_in_each_call(freezing):
    """Within the op; with freezing by an op of its own, as for weights that are constants."""
    layer, input = bidirectional(LSTM).eval(), torch.randn(21, 3, 5)
    weights = {name: torch.randn_like(p) for name, p in layer.named_parameters()}

    def given(input):
        return torch.func.functional_call(layer, weights, (input,))

    with torch.no_grad():
        run, graph = compiled_graph(given, input, freezing=freezing)
        plain = ("rnnpack.infer.default", [("placeholder", torch.float32)] * len(weights))
        assert freezing or graph == [plain]
        packing = ["rnnpack::pack"] * (len(weights) // 4 if freezing else 0)
        assert ops_of(run, input) == [*packing, "rnnpack::infer"]
        for weight in weights.values():
            weight.mul_(1.5)
        assert_same_bits(run(input), given(input))


# --- Weights that change, modules that are copied -------------------------------------------------


def through_data(layer):
    layer.weight_hh_l0.data.mul_(1.5)


def through_numpy(layer):
    values = layer.weight_hh_l0.detach().numpy()
    values *= 1.5


def by_an_optimizer(layer):
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.Adam(layer.parameters(), lr=0.1, fused=True).step()


def new_storage(layer):
    layer.weight_hh_l0.data = 1.5 * layer.weight_hh_l0.data


def by_assigning(layer):
    state = {name: 1.5 * value for name, value in layer.state_dict().items()}
    layer.load_state_dict(state, assign=True)


@each_mode
@each_kind
def test_a_changed_weight_is_seen_by_the_next_compiled_call(kind, training):
    layer, input = kind.make(5, 9), torch.randn(21, 3, 5)
    run, counter = compiled(layer)
    routes = (through_data, through_numpy, by_an_optimizer, new_storage, by_assigning)
    with torch.set_grad_enabled(training):
        before = run(input)[0]
        for route in routes:
            route(layer)
            after = run(input)[0]
            assert after.ne(before).any()
            assert_same_bits(after, layer(input)[0])
            before = after
    # Other values cost no compile; other tensors, the last route, may cost one.
    assert counter.frame_count <= 2


def by_pickle(layer):
    return pickle.loads(pickle.dumps(layer))


@pytest.mark.parametrize("copied", [copy.deepcopy, by_pickle])
@each_kind
def test_a_layer_is_copied_after_a_compiled_call_and_compiled_again(kind, copied):
    layer, input = kind.make(5, 9, 2), torch.randn(7, 3, 5)
    expected = layer(input)
    assert_same_bits(compiled(layer)[0](input), expected)
    twin = copied(layer)
    assert_same_bits(compiled(twin)[0](input), expected)
    through_data(twin)
    assert_same_bits(compiled(twin, "eager")[0](input), twin(input))
    assert_same_bits(compiled(layer, "eager")[0](input), expected)
    assert twin(input)[0].ne(expected[0]).any()


def test_a_compiled_layer_is_compiled_again_in_any_order():
    # A list of weights beside the parameters would hold the tensors of the trace by now: the layer
    # could be neither copied nor traced again.
    layer, input = LSTM.make(5, 9), torch.randn(7, 3, 5)
    expected = layer(input)[0]

    def in_training():
        assert_same_bits(compiled(layer)[0](input)[0], expected)

    def in_inference():
        with torch.no_grad():
            assert_same_bits(compiled(layer)[0](input)[0], expected)

    def with_states():
        given = arguments(layer, 7, 3, with_hx=True)
        assert_same_bits(compiled(call)[0](layer, *given), call(layer, *given))

    def with_other_weights():
        zeros = {name: torch.zeros_like(p) for name, p in layer.named_parameters()}
        run, _ = compiled(lambda weights: torch.func.functional_call(layer, weights, (input,)))
        assert run(zeros)[0].count_nonzero() == 0

    def as_fakes():
        fakes = deepcopy_to_fake_tensor(layer, FakeTensorMode(allow_non_fake_inputs=True))
        assert {type(weight) for weight in fakes._flat_weights} == {FakeTensor}

    uses = (in_training, in_inference, with_states, with_other_weights, as_fakes)
    # Their number is a prime: walks of each stride let every use follow every other.
    for stride in range(1, len(uses)):
        for index in range(len(uses) + 1):
            uses[index * stride % len(uses)]()
            assert_same_bits(layer(input)[0], expected)
        torch._dynamo.reset()
    assert {type(weight) for weight in layer._flat_weights} == {nn.Parameter}
