"""The short way of eager calls: which ones it takes, that it changes nothing, and who sees them."""

import contextlib
import gc
import signal
import sys
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrizations, prune
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import rnnpack
from helpers import KINDS, LSTM, assert_same_bits, resident_growth
from rnnpack.ops import CELL_INDEX, calls
from spoiled import CHANGES_OF_TENSORS, Fence

each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


class Watch:
    """Counts the calls that the short way took and those that it declined."""

    def __init__(self, monkeypatch):
        self.taken = self.declined = 0
        for name in ("infer", "cell", "stream"):
            monkeypatch.setattr(calls, name, self._counted(getattr(calls, name)))

    def _counted(self, function):
        def call(*arguments):
            result = function(*arguments)
            self.taken += result is not None
            self.declined += result is None
            return result

        return call

    def took(self, call):
        """Whether `call` went the short way, once; also what it gave."""
        self.taken = self.declined = 0
        result = call()
        assert self.taken + self.declined == 1
        return self.taken == 1, result


@pytest.fixture
def watch(monkeypatch):
    return Watch(monkeypatch)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def long_way(monkeypatch, call):
    with monkeypatch.context() as patch:
        for name in ("infer", "cell", "stream"):
            patch.setattr(calls, name, lambda *_: None)
        return call()


def cell_of(kind, *sizes, **options):
    """The module of one step that goes with a kind of layer."""
    module = getattr(rnnpack, f"{kind.name}Cell")
    return module(*sizes, **dict(kind.options), **options)


def states(kind, *shape):
    one = torch.randn(shape)
    return (one, torch.randn(shape)) if kind.states == 2 else one


def test_this_build_has_the_short_way():
    assert calls.status == "by tensor handles"


# --- It changes nothing ---------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"num_layers": 3, "bidirectional": True}, {"batch_first": True}],
    ids=lambda options: "-".join(options) or "default",
)
def test_layers_give_the_bits_of_the_long_way(kind, dtype, packed, options, watch, monkeypatch):
    layer = kind.make(7, 33, **options).to(dtype)
    if packed:
        rnnpack.pack(layer)
    stacks = layer.num_layers * (2 if layer.bidirectional else 1)
    for seq_len, batch, with_hx in [(1, 1, True), (5, 3, True), (30, 2, False), (0, 2, True)]:
        shape = (batch, seq_len, 7) if layer.batch_first else (seq_len, batch, 7)
        input = torch.randn(shape).to(dtype)
        hx = states(kind, stacks, batch, 33) if with_hx else None
        if with_hx:
            hx = tuple(state.to(dtype) for state in hx) if kind.states == 2 else hx.to(dtype)
        short, result = watch.took(lambda: layer(input, hx))  # noqa: B023  # called at once
        assert short
        expected = long_way(monkeypatch, lambda: layer(input, hx))  # noqa: B023
        assert_same_bits(result, expected)


@each_kind
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
def test_cells_give_the_bits_of_the_long_way(kind, packed, bias, watch, monkeypatch):
    cell = cell_of(kind, 5, 17, bias=bias)
    if packed:
        rnnpack.pack(cell)
    for batch, with_hx in [(1, True), (3, False), (40, True), (0, True)]:
        input, hx = torch.randn(batch, 5), states(kind, batch, 17) if with_hx else None
        short, result = watch.took(lambda: cell(input, hx))  # noqa: B023  # called at once
        assert short
        assert_same_bits(result, long_way(monkeypatch, lambda: cell(input, hx)))  # noqa: B023


@each_kind
def test_streams_give_the_bits_of_the_long_way(kind, watch, monkeypatch):
    layer, input = kind.make(5, 17, 2), torch.randn(9, 3, 5)
    quick, slow = layer.stream(3), layer.stream(3)
    for call in (lambda s: s.step(input[0]), lambda s: s.run(input), lambda s: s.run(input[:0])):
        short, result = watch.took(lambda: call(quick))  # noqa: B023  # called at once
        assert short
        assert_same_bits(result, long_way(monkeypatch, lambda: call(slow)))  # noqa: B023
    assert_same_bits(quick.state, slow.state)


def test_a_projected_layer_goes_the_short_way(watch, monkeypatch):
    layer, input = rnnpack.LSTM(7, 33, 2, proj_size=9), torch.randn(11, 3, 7)
    short, result = watch.took(lambda: layer(input))
    assert short
    assert_same_bits(result, long_way(monkeypatch, lambda: layer(input)))


def test_inputs_that_are_not_contiguous(watch):
    layer, wide = LSTM.make(6, 9), torch.randn(4, 6, 22)
    for input in (wide.transpose(0, 1)[..., :6], wide[..., ::3][..., :6], wide.permute(2, 0, 1)):
        short, result = watch.took(lambda: layer(input))  # noqa: B023  # called at once
        assert short
        assert_same_bits(result, layer(input.contiguous()))


def test_weights_that_something_computes(watch, monkeypatch):
    pruned, weight_normed = LSTM.make(6, 9), LSTM.make(6, 9)
    prune.l1_unstructured(pruned, "weight_hh_l0", 0.5)
    parametrizations.weight_norm(weight_normed, "weight_ih_l0")
    for layer in (pruned, weight_normed):
        input = torch.randn(5, 2, 6)
        short, result = watch.took(lambda: layer(input))  # noqa: B023  # called at once
        assert short
        assert_same_bits(result, long_way(monkeypatch, lambda: layer(input)))  # noqa: B023


def test_a_changed_weight_is_seen_at_once():
    cell, input = rnnpack.GRUCell(3, 4), torch.randn(2, 3)
    before = cell(input)
    cell.weight_ih.mul_(2)
    assert not torch.equal(cell(input), before)
    cell.weight_ih = nn.Parameter(cell.weight_ih / 2)
    assert_same_bits(cell(input), before)


def test_numbers_that_stand_for_their_negation(monkeypatch):
    """The imaginary part of a conjugate is lazily negated; memory holds the other sign."""
    layer = LSTM.make(6, 9)
    one_by_one = rnnpack.RNN(1, 1)
    one_by_one.weight_ih_l0 = nn.Parameter(torch.randn(1, 1, dtype=torch.cfloat).conj().imag)
    for module, width in ((layer, 6), (one_by_one, 1)):
        negated = torch.randn(5, 2, width, dtype=torch.cfloat).conj().imag
        assert negated.is_neg()
        for input in (negated, negated[:1, :1, :1].expand(3, 2, width), negated[:1, :1]):
            expected = long_way(monkeypatch, lambda: module(input.resolve_neg()))  # noqa: B023
            assert_same_bits(module(input), expected)
    assert one_by_one.weight_ih_l0.is_neg()


def test_results_belong_to_the_caller():
    cell, input = rnnpack.LSTMCell(3, 4), torch.randn(2, 3)
    h, c = cell(input)
    assert h.data_ptr() != c.data_ptr() and h.is_contiguous() and h._version == 0
    kept = h.clone()
    cell(input, (h, c))
    assert_same_bits(h, kept)
    with torch.inference_mode():
        assert cell(input)[0].is_inference()
    assert not cell(input)[0].is_inference()


def test_grad_mode_alone_is_no_reason_for_the_long_way(watch):
    frozen, input = LSTM.make(3, 4).requires_grad_(False), torch.randn(5, 2, 3)
    packed = LSTM.make(3, 4)
    rnnpack.pack(packed)
    with torch.enable_grad():
        for layer in (frozen, packed):
            short, (output, _) = watch.took(lambda: layer(input))  # noqa: B023  # called at once
            assert short and not output.requires_grad


# --- Who is let see the op, or needs another path -------------------------------------------------


class SeesOps(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.seen.append(str(op))
        return op(*args, **(kwargs or {}))


class SeesFunctions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [SeesOps, SeesFunctions])
def test_modes_see_the_op(mode, watch):
    layer, input = LSTM.make(3, 4), torch.randn(5, 2, 3)
    with mode() as watching:
        short, _ = watch.took(lambda: layer(input))
    assert not short and any("rnnpack" in op and "infer" in op for op in watching.seen)


def test_profilers_see_the_op(watch):
    cell, input = rnnpack.GRUCell(3, 4), torch.randn(2, 3)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        short, _ = watch.took(lambda: cell(input))
    assert not short
    assert "rnnpack::infer" in {event.key for event in profiler.key_averages()}


def test_autocast_rounds(watch):
    layer, input = LSTM.make(3, 4), torch.randn(5, 2, 3)
    with torch.autocast("cpu", torch.bfloat16):
        short, (output, _) = watch.took(lambda: layer(input))
    assert not short and output.dtype == torch.bfloat16


def test_transforms_see_operations(watch):
    layer, input = LSTM.make(3, 4), torch.randn(6, 5, 2, 3)
    output = torch.vmap(lambda one: layer(one)[0])(input)
    assert watch.taken == 0
    torch.testing.assert_close(output[2], layer(input[2])[0])


def test_forward_mode_sees_operations(watch):
    layer, input = LSTM.make(3, 4), torch.randn(5, 2, 3)
    with torch.enable_grad(), forward_ad.dual_level():
        dual = forward_ad.make_dual(input, torch.ones_like(input))
        short, (output, _) = watch.took(lambda: layer(dual))
        assert not short and forward_ad.unpack_dual(output).tangent is not None


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_tracers_record_the_op(watch):
    layer, input = LSTM.make(3, 4).requires_grad_(False), torch.randn(5, 2, 3)
    graph = torch.jit.trace(lambda one: layer(one)[0], input, check_trace=False).graph
    assert watch.taken == 0 and "rnnpack::run" in str(graph)


def test_tensor_subclasses_are_left_to_the_long_way(watch):
    class Named(torch.Tensor):
        pass

    layer, input = LSTM.make(3, 4), torch.randn(5, 2, 3)
    short, _ = watch.took(lambda: layer(input.as_subclass(Named)))
    assert not short


@pytest.mark.parametrize(
    "convert",
    [
        lambda input: input.to_sparse(),
        lambda input: input.to_mkldnn(),
        lambda input: torch.nested.as_nested_tensor([input[0]]),
        lambda input: input.to("meta"),
        lambda input: input.double(),
        lambda input: torch.quantize_per_tensor(input, 0.1, 0, torch.qint8),
    ],
    ids=["sparse", "mkldnn", "nested", "meta", "float64", "quantized"],
)
def test_tensors_of_other_kinds_are_left_to_the_long_way(convert, watch, capfd):
    layer, cell, input = LSTM.make(3, 4), rnnpack.GRUCell(3, 4), convert(torch.randn(5, 2, 3))
    state = convert(torch.randn(1, 2, 4))
    for call in (
        lambda: layer(input),
        lambda: cell(input),
        lambda: cell(torch.randn(2, 3), state),
        lambda: layer.stream(2).run(input),
    ):
        with contextlib.suppress(RuntimeError, TypeError, ValueError):
            call()
    assert watch.taken == 0 and watch.declined == 4
    if not input.is_nested:  # torch's own functions report those
        assert capfd.readouterr().err == ""


def test_weights_are_computed_once():
    """Spectral norm changes its estimate at every look, in training."""
    ours, torchs = LSTM.pair(3, 4)
    for layer in (ours, torchs):
        torch.manual_seed(0)
        parametrizations.spectral_norm(layer, "weight_hh_l0")
    input = torch.randn(5, 2, 3)
    for recorded in (True, False, True):
        with torch.set_grad_enabled(recorded):
            torch.testing.assert_close(ours(input)[0], torchs(input)[0])


def test_gradients_are_left_to_the_long_way(watch):
    layer, input = LSTM.make(3, 4), torch.randn(5, 2, 3)
    with torch.enable_grad():
        short, (output, _) = watch.took(lambda: layer(input))
        assert not short and output.requires_grad
        layer.requires_grad_(False)
        short, (output, _) = watch.took(lambda: layer(input.clone().requires_grad_()))
        assert not short and output.requires_grad


def test_dropout_between_layers_is_left_to_the_long_way(monkeypatch):
    layer = LSTM.make(3, 4, 2, dropout=0.5)
    monkeypatch.setattr(calls, "infer", lambda *_: pytest.fail("asked for a call with dropout"))
    layer(torch.randn(5, 2, 3))


# --- Refusals -------------------------------------------------------------------------------------


def test_a_refused_call_keeps_and_frees_everything(watch):
    layer, cell = LSTM.make(3, 4), rnnpack.LSTMCell(3, 4)
    stream = layer.stream(2)
    good, wrong = torch.randn(5, 2, 3), torch.randn(5, 2, 7)
    counted = [good, wrong, layer.weight_ih_l0, cell.weight_hh, cell.bias_ih]
    before = [sys.getrefcount(tensor) for tensor in counted]
    for _ in range(3):
        for call in (
            lambda: layer(wrong),
            lambda: layer(good, (good, good)),
            lambda: layer(good, (good, None)),
            lambda: layer(good, wrong),
            lambda: layer(good.double()),
            lambda: layer(None),
            lambda: cell(wrong[0]),
            lambda: cell(good[0], (good[0], wrong[0])),
            lambda: cell("three"),
            lambda: stream.step(wrong[0]),
            lambda: stream.run(good.double()),
        ):
            with pytest.raises((RuntimeError, TypeError, ValueError)):
                call()
    assert watch.taken == 0
    assert [sys.getrefcount(tensor) for tensor in counted] == before


def test_tensors_of_a_call_are_freed():
    layer, cell = LSTM.make(3, 4), rnnpack.GRUCell(3, 4)
    for call in (layer, lambda input: cell(input[0]), lambda input: layer.stream(2).run(input)):
        input = torch.randn(5, 2, 3)
        result = call(input)
        watched = weakref.ref(input), weakref.ref(result[0] if type(result) is tuple else result)
        del input, result
        gc.collect()
        assert [ref() for ref in watched] == [None, None]


def each_spoiled(kind, change, input, *shape):
    """Input, h, c, hx and weights of a call, with one of the tensors spoiled, then another."""
    has_c = kind.states == 2
    tensors = dict(kind.make(4, 6).named_parameters()) | {"input": input, "h": torch.randn(shape)}
    tensors |= {"c": torch.randn(shape)} if has_c else {}
    for name, tensor in tensors.items():
        spoiled = tensors | {name: CHANGES_OF_TENSORS[change](tensor.detach())}
        input, h, c = spoiled.pop("input"), spoiled.pop("h"), spoiled.pop("c", None)
        yield input, h, c, (h, c) if has_c else h, spoiled


@each_kind
@pytest.mark.parametrize("change", CHANGES_OF_TENSORS)
def test_a_spoiled_tensor_is_declined_or_makes_no_difference(kind, change):
    """Whatever the native side accepts by handle, it accepts as an op, with the same bits."""
    op, stack = torch.ops.rnnpack.infer.default, (CELL_INDEX[kind.cell], 1, 6, 0, False, False)

    def by_op(input, h, c, weights):
        output, h, c = op(input, h, c, list(weights.values()), None, None, *stack)
        return output, (h, c) if kind.states == 2 else h

    for input, h, c, hx, weights in each_spoiled(kind, change, torch.randn(5, 3, 4), 1, 3, 6):
        short = calls.infer(None, weights, list(weights), input, hx, *stack)
        if short is not None:
            assert_same_bits(short, by_op(input, h, c, weights))

    # A cell takes the same without a dimension for steps.
    for input, h, c, hx, weights in each_spoiled(kind, change, torch.randn(3, 4), 3, 6):
        short = calls.cell(None, weights, list(weights), input, hx, stack[0])
        if short is not None:
            one, *states = (None if t is None else t.unsqueeze(0) for t in (input, h, c))
            _, state = by_op(one, *states, weights)
            assert_same_bits(short, tuple(t[0] for t in state) if kind.states == 2 else state[0])


@pytest.mark.skipif(sys.platform != "linux", reason="protects pages with mprotect")
@each_kind
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_cells_read_nothing_past_their_tensors(kind, packed, watch):
    fence = Fence()
    for hidden, batch in [(1, 1), (6, 3), (17, 20), (35, 2)]:
        cell = cell_of(kind, 5, hidden)
        if packed:
            rnnpack.pack(cell)
        for home in (cell._parameters, cell._buffers):
            for name, tensor in home.items():
                moved = fence.before(tensor.detach())
                home[name] = moved if packed else nn.Parameter(moved)
        hx = states(kind, batch, hidden)
        hx = tuple(map(fence.before, hx)) if kind.states == 2 else fence.before(hx)
        short, _ = watch.took(lambda: cell(fence.before(torch.randn(batch, 5)), hx))  # noqa: B023
        assert short


def test_memory_stays_flat():
    assert max(resident_growth("handles")) < 2**20


def test_many_threads_call_one_layer():
    """Small calls keep Python's lock, large ones give it up; neither mixes its tensors up."""
    small, large = rnnpack.GRU(5, 9), rnnpack.GRU(5, 200)
    inputs = [torch.randn(7, 3, 5) for _ in range(4)]
    expected = [(small(input)[0], large(input)[0]) for input in inputs]
    wrong = []

    def run(index):
        with torch.no_grad():
            for _ in range(50):
                got = small(inputs[index])[0], large(inputs[index])[0]
                if not all(map(torch.equal, got, expected[index])):
                    wrong.append(index)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("infer", ()),
        ("cell", (None,) * 7),
        ("stream", (1,)),
        ("connect", (0,) * 8),
        ("connect", (0,) * 3),
    ],
)
def test_a_wrong_number_of_arguments_is_an_error(name, arguments):
    from rnnpack.ops import _calls

    with pytest.raises(TypeError, match=name):
        getattr(_calls, name)(*arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        (None, None, None, None, None, None),
        (None, {}, (), torch.zeros(1, 3), None, 0),
        (None, {"w": None}, ("w",), torch.zeros(1, 3), None, 0),
        (None, {}, 3, torch.zeros(1, 3), None, 0),
        (None, {}, ("w",), torch.zeros(1, 3), None, 9),
        (None, {}, ("w",), torch.zeros(1, 3), None, 2**70),
        (None, {"w": torch.zeros(4)}, ("w",) * 100, torch.zeros(1, 3), None, 0),
        (None, {"w": torch.zeros(4)}, ("w",) * 3, torch.zeros(1, 3), None, 0),
        (None, {"w": torch.zeros(4, 3)}, ("w",) * 2, torch.zeros(()), None, 0),
    ],
)
def test_whatever_is_wrong_is_declined(arguments):
    from rnnpack.ops import _calls

    assert _calls.cell(*arguments) is None
    assert _calls.infer(*arguments, 1, 1, 0, False, False) is None
    assert _calls.infer(*arguments, 2**70, "x", None, False, False) is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_an_error_of_a_signals_handler_reaches_the_caller(error):
    raised = 0

    def handle(*_):
        nonlocal raised
        raised += 1
        raise error

    layer, input, before = LSTM.make(9, 17), torch.randn(2, 1, 9), signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, handle)
    try:
        with torch.no_grad():
            for expected in range(1, 100):
                with pytest.raises(error):
                    signal.setitimer(signal.ITIMER_REAL, 0.001)
                    while raised < expected:
                        layer(input)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
