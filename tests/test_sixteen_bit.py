"""bfloat16 and float16: stored in 16 bits, computed in float32; modules, autocast, packing."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._python_dispatch import TorchDispatchMode

import rnnpack
from helpers import (
    GRU,
    KINDS,
    LSTM,
    RNN_RELU,
    RNN_TANH,
    Case,
    assert_native,
    assert_same_bits,
    call,
    rows_of,
    run_all,
    state_tuple,
)

DTYPES = (torch.bfloat16, torch.float16)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["bfloat16", "float16"])
each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)

CASES = (
    Case(LSTM, 1, 1, 17, 33),
    Case(LSTM, 20, 3, 9, 150, num_layers=2, bidirectional=True),
    Case(LSTM, 20, 5, 23, 37, num_layers=2, proj_size=19, with_hx=False),
    Case(LSTM, 7, 33, 5, 64, bias=False),
    Case(GRU, 1, 3, 7, 17),
    Case(GRU, 20, 9, 13, 65, num_layers=2, bidirectional=True, with_hx=False),
    Case(GRU, 9, 1, 5, 150, bias=False),
    Case(RNN_TANH, 20, 4, 11, 129, num_layers=2),
    Case(RNN_TANH, 1, 1, 3, 7, bidirectional=True),
    Case(RNN_RELU, 9, 7, 6, 33, bidirectional=True, with_hx=False),
)


@each_dtype
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_values_and_gradients_are_as_accurate_as_torch(case, dtype, training):
    run_all(case, dtype=dtype, with_gradients=training).check()


@each_dtype
@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_are_those_of_float32_rounded_once(case, dtype):
    """The arithmetic, the cell state and what passes between steps and layers is float32."""
    low = case.kind.make(**case.layer_options(), dtype=dtype)
    wide = copy.deepcopy(low).float()
    input, hx = case.input(dtype), case.hx(dtype)
    assert_native(low, input, hx, training=False)
    with torch.no_grad():
        found = call(low, input, hx)
        wide_hx = None if hx is None else tuple(state.float() for state in hx)
        output, states = call(wide, input.float(), wide_hx)
    assert_same_bits(found, (output.to(dtype), tuple(state.to(dtype) for state in states)))


@each_dtype
@each_kind
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_same_bits_for_any_threads_and_batch(kind, dtype, training):
    case = Case(kind, 20, 9, 23, 65, num_layers=2, bidirectional=True)
    ours, input, hx = case.pair(dtype=dtype)[0], case.input(dtype), case.hx(dtype)
    with torch.set_grad_enabled(training):
        torch.set_num_threads(1)
        expected = call(ours, input, hx)
        for threads in (2, 5):
            torch.set_num_threads(threads)
            assert_same_bits(call(ours, input, hx), expected)
        for row in (0, 4, 8):
            output, states = call(ours, input[:, row : row + 1], rows_of(hx, row))
            assert_same_bits(output, expected[0][:, row : row + 1])
            assert_same_bits(states, rows_of(expected[1], row))


@each_dtype
@each_kind
def test_lengths_and_packed_sequences(kind, dtype):
    lengths = torch.tensor([19, 31, 17, 23])  # each alone is more than the direct product takes
    ours = kind.make(9, 17, 2, bidirectional=True, dtype=dtype)
    input = torch.randn(31, 4, 9).to(dtype)
    for training in (False, True):
        with torch.set_grad_enabled(training):
            output, states = call(ours, input, lengths=lengths)
            packed, packed_states = call(
                ours, pack_padded_sequence(input, lengths, enforce_sorted=False)
            )
            assert_same_bits(states, packed_states)
            for row, length in enumerate(lengths.tolist()):
                alone, of_row = call(ours, input[:length, row : row + 1])
                assert_same_bits(output[:length, row : row + 1], alone)
                assert not output[length:, row].any()
                assert_same_bits(rows_of(states, row), of_row)
            assert packed.data.dtype == dtype


@each_dtype
@each_kind
def test_recompute_gives_the_same_gradients(kind, dtype):
    """The output is rounded, so h is kept for the backward pass to rebuild the gates from."""
    kept = kind.make(13, 33, 2, dtype=dtype)
    rebuilt = copy.deepcopy(kept)
    rebuilt.recompute = True
    gradients = []
    for layer in (kept, rebuilt):
        input = torch.randn(30, 5, 13, generator=torch.Generator().manual_seed(1)).to(dtype)
        input.requires_grad_()
        output, states = call(layer, input)
        (output.float().square().sum() + states[0].float().sum()).backward()
        gradients.append([input.grad, *[parameter.grad for parameter in layer.parameters()]])
    assert_same_bits(*gradients)


@each_dtype
@each_kind
def test_second_derivatives_exist_and_are_close_to_those_of_float32(kind, dtype):
    results = []
    low = kind.make(5, 7, dtype=dtype)
    for layer in (low, copy.deepcopy(low).float()):
        input = torch.linspace(-1, 1, 30).reshape(3, 2, 5).to(layer.weight_hh_l0.dtype)
        input.requires_grad_()
        output, _ = call(layer, input)
        (first,) = torch.autograd.grad(output.float().sum(), input, create_graph=True)
        first.float().square().sum().backward()
        results.append(layer.weight_hh_l0.grad.float())
    scale = results[1].abs().max().item()
    assert (results[0] - results[1]).abs().max().item() <= 32 * torch.finfo(dtype).eps * scale


@pytest.mark.parametrize("kind", (LSTM, GRU, RNN_TANH), ids=str)
@each_dtype
def test_saturated_and_special_values(kind, dtype):
    ours = kind.make(3, 17, dtype=dtype)
    with torch.no_grad():
        big = call(ours, torch.full((4, 2, 3), 3e4).to(dtype))
        assert all(state.isfinite().all() for state in (big[0], *big[1]))
        for special in (float("nan"), float("inf") * 0):
            input = torch.zeros(4, 2, 3, dtype=dtype)
            input[2, 1] = special
            output, _ = call(ours, input)
            assert output[2:, 1].isnan().all() and output[:, 0].isfinite().all()
            assert output[:2, 1].isfinite().all()


def test_mixed_dtypes_are_refused():
    layer = rnnpack.LSTM(3, 5)
    for module, dtype in ((layer, torch.bfloat16), (copy.deepcopy(layer).half(), torch.bfloat16)):
        with torch.no_grad(), pytest.raises(ValueError, match="dtype"):
            module(torch.zeros(2, 1, 3, dtype=dtype))
    for cell in (rnnpack.GRUCell(3, 5), rnnpack.pack(rnnpack.LSTMCell(3, 5)).model):
        for dtype in (torch.bfloat16, torch.float64):
            with (
                torch.no_grad(),
                pytest.raises(RuntimeError, match=r"expected input.*use input.to"),
            ):
                cell(torch.zeros(1, 3, dtype=dtype))
    with torch.no_grad(), torch.autocast("cpu"), pytest.raises(RuntimeError, match="dtype"):
        layer(torch.zeros(2, 1, 3, dtype=torch.float64))


# --- Autocast ------------------------------------------------------------------------------------


def autocast_case(kind, **options):
    layer = kind.make(13, 33, 2, bidirectional=True, **options)
    return layer, torch.randn(9, 3, 13)


@each_dtype
@each_kind
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_autocast_gives_the_bits_of_a_cast_module(kind, dtype, training):
    """Without biases, which stay float32 under autocast."""
    layer, input = autocast_case(kind, bias=False)
    cast = copy.deepcopy(layer).to(dtype)
    with torch.set_grad_enabled(training):
        expected = call(cast, input.to(dtype))
        with torch.autocast("cpu", dtype):
            found = call(layer, input)
            given = call(layer, input, tuple(torch.zeros(4, 3, 33) for _ in range(kind.states)))
    assert_same_bits(found, expected)
    assert_same_bits(given, expected)
    if not training:
        return
    found[0].float().square().sum().backward()
    expected[0].float().square().sum().backward()
    for (name, parameter), reference in zip(
        layer.named_parameters(), cast.parameters(), strict=True
    ):
        assert parameter.grad.dtype == torch.float32, name
        assert_same_bits(parameter.grad.to(dtype), reference.grad)


@each_dtype
@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell", "RNNCell"])
def test_autocast_of_cells(name, dtype):
    cell = getattr(rnnpack, name)(7, 17, bias=False)
    cast = copy.deepcopy(cell).to(dtype)
    input = torch.randn(3, 7)
    for training in (False, True):
        with torch.set_grad_enabled(training):
            expected = state_tuple(cast(input.to(dtype)))
            with torch.autocast("cpu", dtype):
                found = state_tuple(cell(input))
                again = state_tuple(cell(input, found if len(found) > 1 else found[0]))
        assert_same_bits(found, expected)
        assert {state.dtype for state in again} == {dtype}


@each_kind
def test_autocast_regions(kind):
    """Nested, disabled, other devices; float64 is left alone, as `nn.Linear` leaves it."""
    layer, input = autocast_case(kind)
    outputs = {}
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        outputs["bfloat16"] = call(layer, input)[0]
        with torch.autocast("cpu", torch.float16):
            outputs["float16"] = call(layer, input)[0]
            with torch.autocast("cpu", enabled=False):
                outputs["float32"] = call(layer, input)[0]
        outputs["float64"] = call(copy.deepcopy(layer).double(), input.double())[0]
        # 16-bit modules and inputs take the region's dtype as well.
        assert call(copy.deepcopy(layer).half(), input.half())[0].dtype == torch.bfloat16
        assert call(layer, input.half())[0].dtype == torch.bfloat16
    for name, output in outputs.items():
        assert output.dtype == getattr(torch, name)
    with torch.no_grad():
        assert_same_bits(outputs["float32"], call(layer, input)[0])


@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no cache"])
@each_kind
def test_autocast_follows_weights_that_change_within_a_region(kind, cache):
    """torch keeps a weight's cast copy until the region ends; ours is made in each call."""
    layer, input = autocast_case(kind)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache):
        before = call(layer, input)[0]
        layer.weight_hh_l0.data.mul_(2)
        after = call(layer, input)[0]
        with torch.no_grad():
            assert_same_bits(call(layer, input)[0].float(), call(layer, input)[0].float())
    fresh = copy.deepcopy(layer)
    with torch.autocast("cpu", torch.bfloat16):
        assert_same_bits(call(fresh, input)[0], after)
    assert not torch.equal(before, after)


class Copies(TorchDispatchMode):
    """Counts the elements that pass through dtype conversions of torch."""

    def __init__(self):
        super().__init__()
        self.elements = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            self.elements.append(args[0].numel())
        return function(*args, **(kwargs or {}))


@each_kind
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_autocast_makes_no_cast_copy_of_a_weight(kind, training):
    layer = kind.make(31, 64)
    with torch.set_grad_enabled(training), torch.autocast("cpu", torch.bfloat16), Copies() as seen:
        call(layer, torch.randn(3, 2, 31))
    smallest = min(parameter.numel() for parameter in layer.parameters() if parameter.dim() > 1)
    assert 3 * 2 * 31 in seen.elements  # the input
    assert max(seen.elements) < smallest


@each_kind
def test_a_gradient_scaler_finds_overflow(kind):
    layer, input = autocast_case(kind)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)

    def step(factor):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = call(layer, input)[0].float().mean() * factor
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return torch.cat([parameter.detach().flatten() for parameter in layer.parameters()])

    before = torch.cat([parameter.detach().flatten() for parameter in layer.parameters()])
    trained = step(1.0)
    assert trained.isfinite().all() and not torch.equal(trained, before)
    assert_same_bits(step(float("inf")), trained)
    assert scaler.get_scale() == 2.0**7


# --- Packed weights and streams ------------------------------------------------------------------


def rounded_weights(layer, dtype):
    """The layer in float32 with its matrices, but not its biases, rounded to `dtype`."""
    copied = copy.deepcopy(layer)
    with torch.no_grad():
        for parameter in copied.parameters():
            if parameter.dim() > 1:
                parameter.copy_(parameter.to(dtype))
    return copied


@each_dtype
@each_kind
def test_weights_packed_in_sixteen_bits(kind, dtype):
    layer = kind.make(13, 65, 2, bidirectional=True)
    expected = rounded_weights(layer, dtype)
    full = rnnpack.pack(copy.deepcopy(layer)).model
    half = rnnpack.pack(copy.deepcopy(layer), dtype=dtype).model
    sizes = [sum(buffer.nbytes for buffer in model.buffers()) for model in (full, half)]
    assert sizes[1] < 0.55 * sizes[0]
    input = torch.randn(30, 3, 13)
    with torch.no_grad():
        assert_same_bits(call(half, input), call(expected, input))
        assert_same_bits(call(half, input[:, :1])[0], call(half, input)[0][:, :1])
        with torch.autocast("cpu", torch.bfloat16):
            assert call(half, input)[0].dtype == torch.bfloat16

    file = io.BytesIO()
    torch.save(half.state_dict(), file)
    file.seek(0)
    loaded = rnnpack.pack(kind.make(13, 65, 2, bidirectional=True), dtype=dtype).model
    loaded.load_state_dict(torch.load(file, weights_only=True))
    with torch.no_grad():
        assert_same_bits(call(loaded, input), call(half, input))
    with pytest.raises(RuntimeError, match="size mismatch"):
        full.load_state_dict(half.state_dict())


@each_dtype
@each_kind
def test_a_packed_sixteen_bit_module(kind, dtype):
    layer = kind.make(13, 33, 2, dtype=dtype)
    packed = rnnpack.pack(copy.deepcopy(layer)).model
    input = torch.randn(20, 3, 13).to(dtype)
    with torch.no_grad():
        assert_same_bits(call(packed, input), call(layer, input))
        with pytest.raises(ValueError, match="dtype"):
            packed(input.float())


def test_what_cannot_be_packed_in_a_dtype():
    for layer, dtype in (
        (rnnpack.LSTM(3, 5).bfloat16(), torch.float32),
        (rnnpack.LSTM(3, 5).half(), torch.bfloat16),
        (rnnpack.LSTM(3, 5), torch.float64),
        (rnnpack.LSTM(3, 5).double(), None),
    ):
        kind, names = type(layer), list(layer.state_dict())
        with pytest.raises(TypeError, match="packed"):
            rnnpack.pack(layer, dtype=dtype)
        assert type(layer) is kind and list(layer.state_dict()) == names


@each_dtype
@each_kind
def test_a_stream_gives_the_bits_of_the_whole_sequence_in_any_chunks(kind, dtype):
    layer = kind.make(9, 33, 2, dtype=dtype)
    input = torch.randn(40, 2, 9).to(dtype)
    whole = rnnpack.pack(copy.deepcopy(layer)).model
    with torch.no_grad():
        expected = call(whole, input)[0]
    for chunks in ([1] * 40, [3, 17, 20], [40]):
        stream = layer.stream(2)
        parts = []
        for part in input.split(chunks):
            parts.append(stream.step(part[0])[None] if len(part) == 1 else stream.run(part))
        assert_same_bits(torch.cat(parts), expected)
    with pytest.raises(TypeError, match=str(dtype)):
        layer.stream().step(torch.zeros(1, 9))


# --- The ops -------------------------------------------------------------------------------------


@each_dtype
def test_inference_op_passes_opcheck(dtype):
    """With weights of its dtype, and float32 ones to be rounded. Other ops: tests/test_ops.py."""
    weights = [torch.randn(64, 5), torch.randn(64, 16), torch.randn(64), torch.randn(64)]
    input = torch.randn(3, 2, 5).to(dtype)
    for given in (weights, [weight.to(dtype) for weight in weights]):
        arguments = (input, None, None, given, None, None, 0, 1, 16, 0, False, False)
        torch.library.opcheck(torch.ops.rnnpack.infer.default, arguments)


@each_dtype
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_compiled_autocast_and_sixteen_bit_modules(dtype, training):
    torch._dynamo.reset()
    for module, region in ((nn.Sequential(rnnpack.GRU(5, 17)), True), (rnnpack.LSTM(5, 17), False)):
        model = module if region else module.to(dtype)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        input = torch.randn(7, 3, 5).to(torch.float32 if region else dtype)
        with torch.set_grad_enabled(training), torch.autocast("cpu", dtype, enabled=region):
            assert_same_bits(compiled(input)[0], model(input)[0])
