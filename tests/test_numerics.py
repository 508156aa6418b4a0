"""Values of inference and of the training forward: how exact, how reproducible, which dtype."""

import math
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rnnpack
from helpers import (
    GRU,
    HIDDEN,
    KINDS,
    LSTM,
    RNN_RELU,
    RNN_TANH,
    ROWS,
    STEPS,
    Case,
    assert_as_accurate,
    assert_native,
    assert_same_bits,
    call,
    cases,
    joined,
    rows_of,
    run_all,
    stack,
)

SATURATING = (LSTM, GRU, RNN_TANH)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("hidden", HIDDEN)
def test_values_are_as_accurate_as_torch(kind, hidden):
    for case in cases(kind):
        if case.hidden_size == hidden:
            try:
                run_all(case).check()
            except AssertionError as error:
                raise AssertionError(f"{case}: {error}") from error


@st.composite
def drawn_cases(draw):
    """Draw a case, often with sizes where a kernel changes: a tile's, one less, one more."""
    kind = draw(st.sampled_from(KINDS))
    hidden = draw(st.sampled_from(HIDDEN) | st.integers(1, 70))
    projection = st.integers(0, hidden - 1) if kind is LSTM else st.just(0)
    return Case(
        kind,
        seq_len=draw(st.sampled_from(STEPS) | st.integers(1, 20)),
        batch=draw(st.sampled_from(ROWS) | st.integers(1, 20)),
        input_size=draw(st.integers(1, 70)),
        hidden_size=hidden,
        num_layers=draw(st.integers(1, 3)),
        bias=draw(st.booleans()),
        bidirectional=draw(st.booleans()),
        proj_size=draw(st.just(0) | projection),
        with_hx=draw(st.booleans()),
    )


@given(case=drawn_cases())
def test_values_are_as_accurate_as_torch_for_any_sizes(case):
    run_all(case).check()


# Above and below the direct kernel's range, more and fewer rows than a tile, layers and directions
# that may run side by side.
BIT_CASES = (
    Case(LSTM, 1, 1, 17, 64),
    Case(LSTM, 50, 33, 40, 150, num_layers=2, bidirectional=True),
    Case(LSTM, 50, 9, 64, 64, num_layers=3, proj_size=17),
    Case(GRU, 2, 3, 5, 150, num_layers=2),
    Case(GRU, 50, 33, 9, 64, bidirectional=True),
    Case(RNN_TANH, 50, 8, 17, 129, num_layers=2),
    Case(RNN_RELU, 50, 33, 17, 65, bidirectional=True),
)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("case", BIT_CASES, ids=str)
def test_same_bits_for_any_thread_count(case, training):
    ours, input, hx = case.pair()[0], case.input(), case.hx()
    assert_native(ours, input, hx, training=training)
    results = []
    for threads in (1, 2, 3, 8, 1):
        torch.set_num_threads(threads)
        with torch.set_grad_enabled(training):
            results.append(call(ours, input, hx))
    for result in results[1:]:
        assert_same_bits(results[0], result)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("hidden", [17, 64, 150])
@pytest.mark.parametrize("batch", [8, 33])
def test_same_bits_for_a_row_alone_or_inside_a_batch(kind, hidden, batch, training):
    case = Case(kind, 50, batch, 23, hidden, num_layers=2, bidirectional=True)
    ours, input, hx = case.pair()[0], case.input(), case.hx()
    assert_native(ours, input, hx, training=training)
    with torch.set_grad_enabled(training):
        output, states = call(ours, input, hx)
        for row in (0, batch // 2, batch - 1):
            alone, of_row = call(ours, input[:, row : row + 1], rows_of(hx, row))
            assert_same_bits(output[:, row : row + 1], alone)
            assert_same_bits(rows_of(states, row), of_row)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_same_bits_from_call_to_call_and_from_thread_to_thread(kind):
    ours = kind.make(16, 33, 2, bidirectional=True).eval()
    inputs = [torch.randn(1 + i % 7, 1 + i % 5, 16) for i in range(24)]
    with torch.no_grad():
        expected = [call(ours, input) for input in inputs]
    start, wrong = threading.Barrier(8), []

    def work(first):
        # Grad mode belongs to a thread.
        with torch.no_grad():
            start.wait()
            for i in range(len(inputs)):
                index = (5 * i + first) % len(inputs)
                output, states = call(ours, inputs[index])
                right, right_states = expected[index]
                same = torch.equal(output, right) and torch.equal(states[0], right_states[0])
                wrong.extend([] if same else [index])

    threads = [threading.Thread(target=work, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("scale", [1e-6, 30.0, 1e4, 1e30])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("kind", SATURATING, ids=str)
def test_large_and_tiny_inputs_saturate_as_in_float64(kind, training, scale):
    ours, torchs = kind.pair(64, 33)
    exact = {name: p.detach().double() for name, p in ours.named_parameters()}
    input = torch.randn(8, 3, 64) * scale
    with torch.set_grad_enabled(training):
        output = ours(input)[0].detach()
        theirs = torchs(input)[0].detach()
    assert output.abs().max() <= 1
    truth = stack(ours, exact, input.double())[0]
    assert_as_accurate({"output": output}, {"output": theirs}, {"output": truth})


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_nan_and_infinity_stay_in_their_row(kind, training):
    ours, torchs = kind.pair(19, 33)
    input = torch.randn(5, 7, 19)
    input[1:, 2] = float("nan")
    input[3, 4, 0] = float("inf")
    with torch.set_grad_enabled(training):
        output, theirs = ours(input)[0].detach(), torchs(input)[0].detach()
    assert output[0].isfinite().all()
    assert output[1:, 2].isnan().all()
    clean = [0, 1, 3, 5, 6]
    assert output[:, clean].isfinite().all()
    torch.testing.assert_close(output, theirs, equal_nan=True)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_an_infinite_input_of_few_rows_is_as_in_torch(kind, batch, training):
    ours, torchs = kind.pair(8, 20)  # the last block of units is not full
    input = torch.randn(64, batch, 8)
    input[40, 0, 3] = float("inf")
    with torch.set_grad_enabled(training):
        output, theirs = ours(input)[0].detach(), torchs(input)[0].detach()
    torch.testing.assert_close(output, theirs, equal_nan=True)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_gru_multiplies_the_reset_gate_after_the_hidden_bias(training):
    # With large biases, adding both up front or resetting before the product is far off.
    case = Case(GRU, 6, 2, 3, 5)
    results = []
    for _ in range(16):
        ours, torchs = case.pair()
        with torch.no_grad():
            ours.bias_ih_l0.normal_(0, 2)
            ours.bias_hh_l0.normal_(0, 2)
        torchs.load_state_dict(ours.state_dict())
        exact = {name: p.detach().double() for name, p in ours.named_parameters()}
        input = case.input()
        with torch.set_grad_enabled(training):
            results.append(
                [
                    {"output": output.detach()}
                    for output in (
                        ours(input)[0],
                        torchs(input)[0],
                        stack(ours, exact, input.double())[0],
                    )
                ]
            )
    assert_as_accurate(*(joined(list(side)) for side in zip(*results, strict=True)))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_any_chunking_with_carried_states_equals_one_pass(kind):
    ours = kind.make(9, 13, 2).eval()
    exact = {name: p.detach().double() for name, p in ours.named_parameters()}
    input = torch.randn(40, 3, 9)
    truth = stack(ours, exact, input.double())[0]
    with torch.no_grad():
        whole = ours(input)[0]
        for sizes in ([1] * 40, [7, 13, 20], [3, 37]):
            outputs, hx = [], None
            for chunk in input.split(sizes):
                output, hx = ours(chunk, hx)
                outputs.append(output)
            assert_as_accurate({"output": torch.cat(outputs)}, {"output": whole}, {"output": truth})
        # Nothing stayed behind in the module.
        assert_same_bits(ours(input)[0], whole)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_dtype_runs_and_is_as_accurate_as_torch(kind, training, dtype):
    case = Case(kind, 7, 3, 9, 17, num_layers=2, bidirectional=True)
    three = run_all(case, dtype=dtype, with_gradients=training, require_native=False)
    assert {value.dtype for value in joined(three.ours).values()} == {dtype}
    three.check()


AUTOCAST_DTYPES = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", AUTOCAST_DTYPES, ids=str)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_autocast_gives_its_dtype_on_any_processor(kind, training, dtype):
    # One rule for every class: output and states come in autocast's dtype.
    ours = kind.make(9, 17, 2, batch_first=True)
    input = torch.randn(3, 5, 9)
    exact = ours(input)[0].detach()
    with torch.set_grad_enabled(training), torch.autocast("cpu", dtype=dtype):
        output, states = call(ours, input)
        hx = tuple(torch.randn_like(state, dtype=torch.float32) for state in states)
        from_states, _ = call(ours, input, hx)
    assert {tensor.dtype for tensor in (output, *states, from_states)} == {dtype}
    # Weights, inputs and states of at most 1 rounded to 8 bits, over 5 steps of 2 layers.
    assert (output.float() - exact).abs().max() < 0.05


@pytest.mark.parametrize("dtype", AUTOCAST_DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_autocast_keeps_parameter_gradients_in_float32(kind, dtype):
    ours = kind.make(9, 17, 2)
    input = torch.randn(5, 3, 9)
    expected = torch.autograd.grad(ours(input)[0].sum(), list(ours.parameters()))
    with torch.autocast("cpu", dtype=dtype):
        output = ours(input)[0]
    output.float().sum().backward()
    for parameter, grad in zip(ours.parameters(), expected, strict=True):
        assert parameter.grad.dtype == torch.float32
        scale = grad.abs().max().item()
        assert (parameter.grad - grad).abs().max().item() < 0.05 * scale


def subnormals_are_kept():
    # One operation that torch's kernels do, one that Python does; both would give 0 after a flush.
    single = torch.tensor([2e-38]) / 1e3
    return bool(single.count_nonzero()) and 2e-308 / 1e3 != 0.0


def test_no_call_changes_how_floating_point_rounds():
    def run(found):
        before = subnormals_are_kept()
        ours = rnnpack.LSTM(9, 17)
        input = torch.randn(50, 8, 9)
        ours(input)[0].sum().backward()
        with torch.no_grad():
            ours(input)
        found.append((before, subnormals_are_kept()))

    found = []
    run(found)
    thread = threading.Thread(target=run, args=(found,))
    thread.start()
    thread.join()
    assert found == [(True, True)] * 2


def test_the_callers_own_flush_setting_is_left_alone():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        rnnpack.LSTM(9, 17)(torch.randn(5, 3, 9))
        assert not subnormals_are_kept()
    finally:
        torch.set_flush_denormal(False)
    assert subnormals_are_kept()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_subnormal_weights_and_inputs_are_computed(kind):
    ours, torchs = kind.pair(5, 7, bias=False)
    for layer in (ours, torchs):
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.fill_(2.0**-10)
    input = torch.full((1, 1, 5), 2.0**-130)
    with torch.no_grad():
        ours_out, torchs_out = ours(input)[0], torchs(input)[0]
    if kind in (RNN_TANH, RNN_RELU):
        # The sum 5 * 2^-140 is exact, and tanh(x) = x there.
        assert ours_out.eq(5 * math.ldexp(1, -140)).all()
    torch.testing.assert_close(ours_out, torchs_out, rtol=0, atol=math.ldexp(1, -149))


def test_one_step_of_one_row_is_one_operation():
    # What such a call costs is the way to the kernel, so its operations are counted, not timed.
    class Counter(torch.utils._python_dispatch.TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(func.name())
            return func(*args, **(kwargs or {}))

    ours = rnnpack.LSTM(24, 33, 3, bidirectional=True).eval()
    input = torch.randn(1, 1, 24)
    hx = torch.zeros(6, 1, 33), torch.zeros(6, 1, 33)
    with torch.no_grad(), Counter() as counter:
        ours(input, hx)
    native = [name for name in counter.names if name.startswith("rnnpack::")]
    assert len(native) == 1 and len(counter.names) <= 2, counter.names


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("sizes", [(33, 1), (1, 33), (5, 17)], ids=str)
def test_later_layers_read_weights_of_their_own_sizes(kind, sizes):
    run_all(Case(kind, 4, 3, *sizes, num_layers=3, bidirectional=True)).check()


def test_denormals_are_flushed_by_all_threads_or_none():
    case = Case(RNN_RELU, 64, 8, 64, 256, bias=False)
    ours, input = case.pair()[0], torch.rand(64, 8, 64) * 1e-20
    with torch.no_grad():
        for weight in ours.parameters():
            weight.abs_().mul_(1e-18)
        try:
            for flush in (True, False):
                if not torch.set_flush_denormal(flush):
                    pytest.skip("this processor cannot flush denormals")
                results = []
                for threads in (1, 2, 3):
                    torch.set_num_threads(threads)
                    results.append(ours(input)[0].view(torch.int32))
                assert results[0].count_nonzero().item() == (0 if flush else results[0].numel())
                assert all(torch.equal(results[0], result) for result in results[1:])
        finally:
            torch.set_flush_denormal(False)
