"""Variable lengths: a padded batch with `lengths` equals packing and each row by itself."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from helpers import (
    KINDS,
    LSTM,
    RNN_RELU,
    Case,
    assert_as_accurate,
    assert_native,
    assert_same_bits,
    call,
    joined,
    named,
    outcome,
    stack,
)

each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
each_mode = pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])


def dirty_padding(input, lengths):
    """Put NaN past each row's end of a time-major batch."""
    past = torch.arange(input.size(0)).unsqueeze(1) >= lengths
    return input.masked_fill(past.unsqueeze(-1), float("nan"))


@st.composite
def drawn_batches(draw):
    kind = draw(st.sampled_from(KINDS))
    hidden = draw(st.sampled_from([1, 7, 8, 9, 17, 33]))
    seq_len = draw(st.sampled_from([1, 2, 9, 20]))
    lengths = draw(st.lists(st.integers(0, seq_len), min_size=1, max_size=8))
    case = Case(
        kind,
        seq_len,
        len(lengths),
        draw(st.integers(1, 20)),
        hidden,
        num_layers=draw(st.integers(1, 3)),
        bias=draw(st.booleans()),
        bidirectional=draw(st.booleans()),
        proj_size=(hidden - 1) // 2 if kind is LSTM and draw(st.booleans()) else 0,
        with_hx=draw(st.booleans()),
    )
    return case, lengths, draw(st.booleans())


@settings(max_examples=30)
@given(drawn=drawn_batches())
def test_lengths_are_as_accurate_as_torch_row_by_row(drawn):
    case, lengths, training = drawn
    sides = []
    for _ in range(4):
        ours, torchs = case.pair()
        input, hx = case.input(), case.hx()
        of_rows = torch.tensor(lengths)
        padded = dirty_padding(input, of_rows)
        assert_native(ours, padded, hx, training=training, lengths=of_rows)
        with torch.set_grad_enabled(training):
            mine = named(*call(ours, padded, hx, lengths=of_rows))
        exact = {name: p.detach().double() for name, p in ours.named_parameters()}
        doubled = None if hx is None else tuple(state.double() for state in hx)
        truth = named(*stack(ours, exact, input.double(), doubled, of_rows))
        theirs = {name: torch.zeros_like(value) for name, value in mine.items()}
        for row, length in enumerate(lengths):
            initial = None if hx is None else tuple(s[:, row : row + 1].contiguous() for s in hx)
            if length:
                output, states = call(torchs, input[:length, row : row + 1], initial)
                theirs["output"][:length, row] = output.detach()[:, 0]
                initial = tuple(state.detach() for state in states)
            if initial is not None:
                for name, state in zip(("h_n", "c_n"), initial, strict=False):
                    theirs[name][:, row] = state[:, 0]
        sides.append([{k: v.detach() for k, v in side.items()} for side in (mine, theirs, truth)])
    assert_as_accurate(*(joined(list(side)) for side in zip(*sides, strict=True)))


@each_mode
@each_kind
def test_zeros_past_each_end_and_states_of_the_last_step(kind, training):
    ours = kind.make(4, 7, batch_first=True)
    lengths, input = torch.tensor([3, 0, 5]), torch.randn(3, 5, 4)
    hx = tuple(torch.randn(1, 3, 7) for _ in range(kind.states))
    with torch.set_grad_enabled(training):
        output, states = call(ours, input, hx, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        assert output[row, length:].count_nonzero() == 0
        if length:
            assert_same_bits(output[row, length - 1], states[0][0, row])
    for state, initial in zip(states, hx, strict=True):
        assert_same_bits(state[:, 1], initial[:, 1])


@each_mode
@each_kind
def test_the_same_bits_whatever_the_padding_holds(kind, training):
    ours = kind.make(9, 17, 2, bidirectional=True)
    lengths, input = torch.tensor([6, 2, 0, 9, 1]), torch.randn(9, 5, 9)
    with torch.set_grad_enabled(training):
        expected = call(ours, input, lengths=lengths)
        assert_same_bits(call(ours, dirty_padding(input, lengths), lengths=lengths), expected)


@each_mode
@pytest.mark.parametrize("batch_first", [False, True])
@each_kind
def test_lengths_equal_packing(kind, batch_first, training):
    for num_layers, bidirectional in itertools.product((1, 2), (False, True)):
        ours = kind.make(4, 7, num_layers, bidirectional=bidirectional, batch_first=batch_first)
        lengths = torch.tensor([2, 5, 1, 5])
        input = torch.randn((4, 6, 4) if batch_first else (6, 4, 4))
        rows = num_layers * (2 if bidirectional else 1)
        hx = tuple(torch.randn(rows, 4, 7) for _ in range(kind.states))
        packed = pack_padded_sequence(input, lengths, batch_first, enforce_sorted=False)
        with torch.set_grad_enabled(training):
            for given_hx in (None, hx):
                output, states = call(ours, packed, given_hx)
                padded = pad_packed_sequence(output, batch_first, total_length=6)[0]
                mine, my_states = call(ours, input, given_hx, lengths=lengths)
                torch.testing.assert_close(mine, padded)
                torch.testing.assert_close(my_states, states)


@pytest.mark.parametrize("form", ["packed", "lengths"])
@pytest.mark.parametrize("num_layers", [4, 5, 6])
@each_kind
def test_short_rows_of_deep_stacks_keep_their_final_states(kind, num_layers, form):
    # Threads run layers side by side, over the same memory between them, while long rows go on.
    ours, torchs = Case(kind, 96, 4, 17, 33, num_layers).pair()
    lengths, input = torch.tensor([96, 3, 8, 50]), torch.randn(96, 4, 17)
    packed = pack_padded_sequence(input, lengths, enforce_sorted=False)
    with torch.no_grad():
        expected = call(torchs, packed)[1]
        for threads in (1, 2, 3, 4):
            torch.set_num_threads(threads)
            if form == "packed":
                states = call(ours, packed)[1]
            else:
                states = call(ours, input, lengths=lengths)[1]
            torch.testing.assert_close(states, expected)


@each_mode
@pytest.mark.parametrize("form", ["packed", "lengths"])
@each_kind
def test_the_reverse_direction_starts_at_each_rows_own_end(kind, form, training):
    ours = kind.make(5, 7, 2, bidirectional=True)
    lengths, input = torch.tensor([4, 1, 6, 6]), torch.randn(6, 4, 5)
    with torch.set_grad_enabled(training):
        if form == "packed":
            packed = pack_padded_sequence(input, lengths, enforce_sorted=False)
            output = pad_packed_sequence(call(ours, packed)[0])[0]
        else:
            output = call(ours, input, lengths=lengths)[0]
        for row, length in enumerate(lengths.tolist()):
            alone = call(ours, input[:length, row : row + 1])[0]
            torch.testing.assert_close(output[:length, row], alone[:, 0])


@each_kind
def test_full_lengths_equal_no_lengths(kind):
    ours, input = kind.make(9, 17, 2, bidirectional=True), torch.randn(6, 5, 9)
    with torch.no_grad():
        assert_same_bits(call(ours, input, lengths=torch.full((5,), 6)), call(ours, input))


@each_mode
@each_kind
def test_all_lengths_may_be_zero(kind, training):
    ours, input = kind.make(4, 7, 2, bidirectional=True), torch.full((3, 2, 4), float("nan"))
    hx = tuple(torch.randn(4, 2, 7) for _ in range(kind.states))
    with torch.set_grad_enabled(training):
        for lengths, padded in ((torch.tensor([0, 0]), input), (torch.tensor([0, 0]), input[:0])):
            output, states = call(ours, padded, hx, lengths=lengths)
            assert output.shape == (padded.size(0), 2, 14) and output.count_nonzero() == 0
            assert_same_bits(states, hx)


@each_kind
def test_an_empty_batch_takes_empty_lengths(kind):
    output, states = call(
        kind.make(4, 7), torch.randn(3, 0, 4), lengths=torch.zeros(0, dtype=torch.int64)
    )
    assert output.shape == (3, 0, 7) and states[0].shape == (1, 0, 7)


@each_kind
def test_row_order_does_not_matter(kind):
    ours, input = kind.make(9, 17, 2, bidirectional=True), torch.randn(20, 9, 9)
    lengths = torch.tensor([20, 3, 0, 7, 20, 1, 12, 7, 5])
    order = torch.randperm(9)
    with torch.no_grad():
        output, states = call(ours, input, lengths=lengths)
        shuffled, of_shuffled = call(ours, input[:, order], lengths=lengths[order])
    assert_same_bits(output[:, order], shuffled)
    assert_same_bits(tuple(state[:, order] for state in states), of_shuffled)


@each_kind
def test_lengths_are_not_kept_or_changed(kind):
    ours, lengths = kind.make(4, 7), torch.tensor([2, 5, 0])
    call(ours, torch.randn(5, 3, 4), lengths=lengths)
    assert lengths.tolist() == [2, 5, 0]
    lengths.fill_(5)
    input = torch.randn(5, 3, 4)
    assert_same_bits(call(ours, input, lengths=lengths)[0], call(ours, input)[0])


def test_lengths_of_a_strided_int64_tensor():
    ours, input = LSTM.make(4, 7), torch.randn(5, 3, 4)
    strided = torch.tensor([2, 9, 5, 9, 0, 9])[::2]
    assert_same_bits(
        call(ours, input, lengths=strided)[0], call(ours, input, lengths=strided.clone())[0]
    )


BAD_LENGTHS = {
    "negative": (torch.tensor([2, -1, 5]), ("1", "-1")),
    "too long": (torch.tensor([2, 5, 6]), ("2", "6", "5")),
    "too few": (torch.tensor([2, 5]), ("3", "2")),
    "too many": (torch.tensor([2, 5, 1, 1]), ("3", "4")),
    "of rank 2": (torch.tensor([[2, 5, 1]]), ("1",)),
    "int32": (torch.tensor([2, 5, 1], dtype=torch.int32), ("int64", "int32")),
    "float": (torch.tensor([2.0, 5.0, 1.0]), ("int64", "float32")),
}


@each_mode
@pytest.mark.parametrize("bad", BAD_LENGTHS)
@pytest.mark.parametrize("kind", [LSTM, RNN_RELU], ids=str)
def test_bad_lengths_are_refused_by_name_index_and_value(kind, bad, training):
    lengths, words = BAD_LENGTHS[bad]
    ours = kind.make(4, 7, 2)
    with torch.set_grad_enabled(training):
        error = outcome(lambda: call(ours, torch.randn(5, 3, 4), lengths=lengths))
    assert error is not None and issubclass(error[0], ValueError | TypeError | RuntimeError)
    assert all(word in error[1] for word in ("lengths", *words)), error


def test_a_list_of_lengths_is_refused_with_a_hint():
    with pytest.raises(TypeError, match=r"lengths.*tensor.*list"):
        call(LSTM.make(4, 7), torch.randn(5, 3, 4), lengths=[2, 5, 1])


@pytest.mark.parametrize("form", ["unbatched", "packed"])
def test_lengths_need_a_padded_batch(form):
    input = (
        torch.randn(5, 4)
        if form == "unbatched"
        else pack_padded_sequence(torch.randn(5, 2, 4), torch.tensor([5, 2]))
    )
    with pytest.raises((ValueError, TypeError), match="lengths"):
        call(LSTM.make(4, 7), input, lengths=torch.tensor([5, 2]))
