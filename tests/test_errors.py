"""What torch.nn refuses is refused with the same type and text, or a better text."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import rnnpack
from helpers import GRU, KINDS, LSTM, RNN_TANH, assert_fails_as_in_torch

each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def states(kind, *sizes, dtype=torch.float32):
    """Make states of `sizes` (one a state, or one for all) in the form the class takes."""
    sizes = sizes if len(sizes) == kind.states else sizes * kind.states
    made = tuple(torch.randn(size, dtype=dtype) for size in sizes[: kind.states])
    return made if kind is LSTM else made[0]


def packed(features):
    return pack_padded_sequence(torch.randn(5, 3, features), torch.tensor([5, 3, 1]))


# Name: (input, states) for a layer of 4 inputs, 7 hidden, 2 layers.
BAD_CALLS = {
    "rank 0": lambda kind: (torch.tensor(1.0), None),
    "rank 1": lambda kind: (torch.randn(4), None),
    "rank 4": lambda kind: (torch.randn(5, 3, 4, 1), None),
    "input size": lambda kind: (torch.randn(5, 3, 6), None),
    "input size, unbatched": lambda kind: (torch.randn(5, 6), None),
    "input size, packed": lambda kind: (packed(6), None),
    "input size, empty batch": lambda kind: (torch.randn(5, 0, 6), None),
    "float64": lambda kind: (torch.randn(5, 3, 4, dtype=torch.float64), None),
    "bfloat16": lambda kind: (torch.randn(5, 3, 4, dtype=torch.bfloat16), None),
    "integers": lambda kind: (torch.ones(5, 3, 4, dtype=torch.int64), None),
    "complex": lambda kind: (torch.ones(5, 3, 4, dtype=torch.complex64), None),
    "meta": lambda kind: (torch.empty(5, 3, 4, device="meta"), None),
    "float64 on meta": lambda kind: (
        torch.empty(5, 3, 4, device="meta", dtype=torch.float64),
        None,
    ),
    "states of another batch": lambda kind: (torch.randn(5, 3, 4), states(kind, (2, 4, 7))),
    "states of another size": lambda kind: (torch.randn(5, 3, 4), states(kind, (2, 3, 8))),
    "states of other layers": lambda kind: (torch.randn(5, 3, 4), states(kind, (3, 3, 7))),
    "states without batch": lambda kind: (torch.randn(5, 3, 4), states(kind, (2, 7))),
    "states with batch": lambda kind: (torch.randn(5, 4), states(kind, (2, 1, 7))),
    "states, unbatched size": lambda kind: (torch.randn(5, 4), states(kind, (2, 8))),
    "states, packed batch": lambda kind: (packed(4), states(kind, (2, 4, 7))),
    "states in float64": lambda kind: (
        torch.randn(5, 3, 4),
        states(kind, (2, 3, 7), dtype=torch.float64),
    ),
}
LSTM_CALLS = {
    "c_0 of another size": (torch.randn(5, 3, 4), states(LSTM, (2, 3, 7), (2, 3, 8))),
    "c_0 of another batch": (torch.randn(5, 3, 4), states(LSTM, (2, 3, 7), (2, 4, 7))),
    "c_0 without batch": (torch.randn(5, 3, 4), states(LSTM, (2, 3, 7), (2, 7))),
    "h_0 without batch": (torch.randn(5, 3, 4), states(LSTM, (2, 7), (2, 3, 7))),
    "c_0 with batch": (torch.randn(5, 4), states(LSTM, (2, 7), (2, 1, 7))),
}


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("bad", BAD_CALLS)
@each_kind
def test_a_bad_call_fails_as_in_torch(kind, bad, training):
    input, hx = BAD_CALLS[bad](kind)
    ours, torchs = kind.pair(4, 7, 2)
    with torch.set_grad_enabled(training):
        assert_fails_as_in_torch(lambda: ours(input, hx), lambda: torchs(input, hx))


@pytest.mark.parametrize("bad", LSTM_CALLS)
def test_a_bad_lstm_state_fails_as_in_torch(bad):
    ours, torchs = LSTM.pair(4, 7, 2)
    args = LSTM_CALLS[bad]
    assert_fails_as_in_torch(lambda: ours(*args), lambda: torchs(*args))


def test_a_bad_projected_state_fails_as_in_torch():
    ours, torchs = LSTM.pair(4, 7, 2, proj_size=3)
    for hx in (states(LSTM, (2, 3, 7)), states(LSTM, (2, 3, 3))):
        args = torch.randn(5, 3, 4), hx
        assert_fails_as_in_torch(lambda args=args: ours(*args), lambda args=args: torchs(*args))


BAD_OPTIONS = {
    "hidden_size 0": ((4, 0), {}),
    "hidden_size negative": ((4, -1), {}),
    "hidden_size float": ((4, 7.0), {}),
    "input_size 0": ((0, 7), {}),
    "input_size str": (("4", 7), {}),
    "num_layers 0": ((4, 7, 0), {}),
    "bias not bool": ((4, 7), {"bias": 1}),
    "batch_first not bool": ((4, 7), {"batch_first": "yes"}),
    "dropout above 1": ((4, 7, 2), {"dropout": 1.5}),
    "dropout negative": ((4, 7, 2), {"dropout": -0.1}),
    "dropout bool": ((4, 7, 2), {"dropout": True}),
    "dropout str": ((4, 7, 2), {"dropout": "half"}),
    "integer dtype": ((4, 7), {"dtype": torch.int64}),
}


@pytest.mark.parametrize("bad", BAD_OPTIONS)
@each_kind
def test_a_bad_option_fails_as_in_torch(kind, bad):
    args, options = BAD_OPTIONS[bad]
    assert_fails_as_in_torch(
        lambda: kind.make(*args, **options), lambda: kind.make_torchs(*args, **options)
    )


@pytest.mark.parametrize("proj_size", [-1, 7, 8])
def test_a_bad_projection_fails_as_in_torch(proj_size):
    assert_fails_as_in_torch(
        lambda: rnnpack.LSTM(4, 7, proj_size=proj_size), lambda: nn.LSTM(4, 7, proj_size=proj_size)
    )


@pytest.mark.parametrize("name", ["GRU", "RNN"])
def test_only_the_lstm_has_a_projection_as_in_torch(name):
    assert_fails_as_in_torch(
        lambda: getattr(rnnpack, name)(4, 7, proj_size=3),
        lambda: getattr(nn, name)(4, 7, proj_size=3),
    )


def test_an_unknown_nonlinearity_fails_as_in_torch():
    assert_fails_as_in_torch(
        lambda: rnnpack.RNN(4, 7, nonlinearity="sigmoid"),
        lambda: nn.RNN(4, 7, nonlinearity="sigmoid"),
    )


def test_one_tensor_as_lstm_state_is_named():
    # torch indexes the tensor instead: "index 1 is out of bounds", or a wrong batch size.
    for rows in (1, 2):
        with pytest.raises((TypeError, RuntimeError), match=r"tuple \(h_0, c_0\).*Tensor"):
            rnnpack.LSTM(4, 7)(torch.randn(5, 3, 4), torch.randn(rows, 3, 7))


def test_three_tensors_as_lstm_state_are_named():
    with pytest.raises((TypeError, ValueError, RuntimeError), match=r"tuple \(h_0, c_0\).*got"):
        rnnpack.LSTM(4, 7)(torch.randn(5, 3, 4), (torch.randn(1, 3, 7),) * 3)


@pytest.mark.parametrize("kind", [GRU, RNN_TANH], ids=str)
def test_a_tuple_as_gru_or_rnn_state_is_named(kind):
    with pytest.raises((TypeError, RuntimeError), match=r"hx.*Tensor.*tuple"):
        kind.make(4, 7)(torch.randn(5, 3, 4), (torch.randn(1, 3, 7),) * 2)


@each_kind
def test_inputs_of_another_kind_are_named(kind):
    ours = kind.make(4, 7)
    inputs = {
        "list": [[[1.0] * 4] * 3] * 5,
        "ndarray": torch.randn(5, 3, 4).numpy(),
        "sparse": torch.ones(5, 3, 4).to_sparse(),
        "jagged": torch.nested.nested_tensor(
            [torch.randn(5, 4), torch.randn(2, 4)], layout=torch.jagged
        ),
    }
    for word, input in inputs.items():
        with pytest.raises((TypeError, ValueError, RuntimeError), match=rf"(?i)input.*{word}"):
            ours(input)


@each_kind
def test_a_packed_sequence_that_lies_is_refused(kind):
    # Batch sizes that disagree with the data would make a kernel read past it.
    for batch_sizes in ([3, 2, 9], [2, 3, 1], [3, 2], [3, 0, 3], [3, -1, 4]):
        lying = PackedSequence(torch.randn(6, 4), torch.tensor(batch_sizes))
        for training in (False, True):
            with torch.set_grad_enabled(training), pytest.raises((ValueError, RuntimeError)):
                kind.make(4, 7)(lying)


@each_kind
def test_a_weight_of_a_wrong_shape_is_refused(kind):
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        for training in (False, True):
            ours = kind.make(4, 7)
            setattr(ours, name, nn.Parameter(getattr(ours, name).detach()[:-1].clone()))
            with torch.set_grad_enabled(training), pytest.raises((ValueError, RuntimeError)):
                ours(torch.randn(5, 3, 4))


@each_kind
def test_weights_of_mixed_dtypes_are_refused(kind):
    ours = kind.make(4, 7)
    ours.weight_hh_l0 = nn.Parameter(ours.weight_hh_l0.detach().double())
    for training in (False, True):
        with torch.set_grad_enabled(training), pytest.raises((ValueError, RuntimeError)):
            ours(torch.randn(5, 3, 4))


@pytest.mark.parametrize("cell", [False, True], ids=["layer", "cell"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@each_kind
def test_float64_beside_what_an_autocast_region_rounds_is_refused(kind, training, cell):
    name = f"{kind.cell.partition('_')[0].upper()}{'Cell' if cell else ''}"
    f32, f64 = torch.float32, torch.float64

    def call(library, weights, input, state):
        module = getattr(library, name)(4, 7).to(weights)
        x = torch.randn((3, 4) if cell else (5, 3, 4), dtype=input)
        h = torch.randn((3, 7) if cell else (1, 3, 7), dtype=state)
        result = module(x, (h, h) if kind is LSTM else h)
        return result[0] if isinstance(result, tuple) else result

    with torch.autocast("cpu", dtype=torch.bfloat16), torch.set_grad_enabled(training):
        for dtypes in ((f64, f32, f32), (f32, f64, f64), (f32, f32, f64), (f64, f64, f32)):
            for library in (nn, rnnpack):
                with pytest.raises(RuntimeError, match=r"dtype|data type"):
                    call(library, *dtypes)
        assert call(nn, f64, f64, f64).dtype == call(rnnpack, f64, f64, f64).dtype == f64
        assert call(rnnpack, f32, torch.bfloat16, f32).dtype == torch.bfloat16
