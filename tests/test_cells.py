"""LSTMCell, GRUCell and RNNCell are drop-ins: values, gradients, options and errors of torch.nn."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, jacrev, jvp, vmap

import rnnpack
from helpers import (
    HIDDEN,
    ROWS,
    assert_as_accurate,
    assert_fails_as_in_torch,
    assert_same_bits,
    joined,
    state_tuple,
    twin,
)
from rnnpack import reference

CELLS = {
    "lstm": ("LSTMCell", {}),
    "gru": ("GRUCell", {}),
    "rnn_tanh": ("RNNCell", {"nonlinearity": "tanh"}),
    "rnn_relu": ("RNNCell", {"nonlinearity": "relu"}),
}
each_cell = pytest.mark.parametrize("cell", CELLS)
each_mode = pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])


def make(cell, *args, library=rnnpack, **kwargs):
    name, options = CELLS[cell]
    return getattr(library, name)(*args, **options, **kwargs)


def states(cell, *sizes, dtype=torch.float32):
    drawn = tuple(torch.randn(*sizes, dtype=dtype) for _ in range(2 if cell == "lstm" else 1))
    return drawn if cell == "lstm" else drawn[0]


def results(run, leaves, input, hx):
    """Give the next states and, if `leaves` ask for it, gradients for a loss of all of them."""
    outputs = state_tuple(run(input, hx))
    named = dict(zip(("h", "c"), outputs, strict=False))
    if leaves:
        loss = sum(output.pow(2).sum() for output in outputs)
        grads = torch.autograd.grad(loss, list(leaves.values()))
        named |= {f"d_{name}": grad for name, grad in zip(leaves, grads, strict=True)}
    return {name: value.detach() for name, value in named.items()}


def three_sides(cell, *, rows, input_size, hidden, bias, with_hx, training):
    """Solve one drawn problem by ours, by torch's cell and by the reference in float64."""
    ours = make(cell, input_size, hidden, bias)
    input, hx = torch.randn(rows, input_size), states(cell, rows, hidden) if with_hx else None
    with torch.set_grad_enabled(training):
        path = rnnpack.explain(ours, input, hx)
    assert path.native and (path.kind == "train") == training, path
    exact = {name: p.detach().double().requires_grad_() for name, p in ours.named_parameters()}

    def truth(input, hx):
        if hx is None:
            zeros = input.new_zeros(rows, hidden)
            hx = (zeros, zeros) if cell == "lstm" else zeros
        weights = reference.LayerWeights(**exact)
        return reference.layer(cell, input.unsqueeze(0), state_tuple(hx), weights)[1]

    sides = []
    torchs = twin(ours)
    for run, parameters, dtype in (
        (ours, dict(ours.named_parameters()), torch.float32),
        (torchs, dict(torchs.named_parameters()), torch.float32),
        (truth, exact, torch.float64),
    ):
        leaves = {"input": input.to(dtype).clone()}
        given = None
        if hx is not None:
            given = tuple(state.to(dtype).clone() for state in state_tuple(hx))
            leaves |= dict(zip(("h_0", "c_0"), given, strict=False))
            given = given if cell == "lstm" else given[0]
        leaves = {name: leaf.requires_grad_(training) for name, leaf in leaves.items()}
        with torch.set_grad_enabled(training):
            sides.append(
                results(run, leaves | parameters if training else {}, leaves["input"], given)
            )
    return sides


def check_accuracy(cell, *, rows, hidden, **options):
    # About 256 elements for each result, or a bound of twice another's error says little.
    repeats = max(2, min(24, 256 // (rows * hidden)))
    drawn = [three_sides(cell, rows=rows, hidden=hidden, **options) for _ in range(repeats)]
    assert_as_accurate(*(joined(list(side)) for side in zip(*drawn, strict=True)))


@each_mode
@pytest.mark.parametrize("hidden", HIDDEN)
@each_cell
def test_is_as_accurate_as_torch(cell, hidden, training):
    for index, rows in enumerate(ROWS):
        check_accuracy(
            cell,
            rows=rows,
            input_size=hidden + 3 * index,
            hidden=hidden,
            bias=index != 1,
            with_hx=index != 2,
            training=training,
        )


@settings(max_examples=40)
@given(
    cell=st.sampled_from(list(CELLS)),
    rows=st.integers(1, 20),
    input_size=st.integers(1, 40),
    hidden=st.integers(1, 70),
    bias=st.booleans(),
    with_hx=st.booleans(),
    training=st.booleans(),
)
def test_is_as_accurate_as_torch_for_any_sizes(cell, **options):
    check_accuracy(cell, **options)


@each_cell
def test_same_seed_gives_the_same_parameters(cell):
    for bias in (True, False):
        drawn = []
        for library in (rnnpack, nn):
            torch.manual_seed(7)
            drawn.append(make(cell, 5, 8, bias, library=library).state_dict())
        assert list(drawn[0]) == list(drawn[1])
        assert_same_bits(list(drawn[0].values()), list(drawn[1].values()))


@each_cell
def test_state_dicts_load_both_ways_and_repr_is_torchs(cell):
    for bias in (True, False):
        ours, torchs = make(cell, 5, 8, bias), make(cell, 5, 8, bias, library=nn)
        assert not any(torchs.load_state_dict(ours.state_dict()))
        assert not any(ours.load_state_dict(torchs.state_dict()))
        assert repr(ours) == repr(torchs)
        assert not isinstance(ours, nn.LSTMCell | nn.GRUCell | nn.RNNCell)


@each_mode
@each_cell
def test_unbatched_and_empty_batches_equal_torch(cell, training):
    ours = make(cell, 5, 8)
    torchs = twin(ours)
    with torch.set_grad_enabled(training):
        for shape in ((), (0,), (1,)):
            input, hx = torch.randn(*shape, 5), states(cell, *shape, 8)
            for given_hx in (None, hx):
                torch.testing.assert_close(ours(input, given_hx), torchs(input, given_hx))


@each_mode
@each_cell
def test_any_strides_give_the_same(cell, training):
    ours = make(cell, 5, 8)
    input, h = torch.randn(5, 3).t(), torch.randn(3, 16)[:, ::2]
    pair = (h, h) if cell == "lstm" else h
    plain = (h.contiguous(),) * 2 if cell == "lstm" else h.contiguous()
    with torch.set_grad_enabled(training):
        torch.testing.assert_close(ours(input, pair), ours(input.contiguous(), plain))
        transposed = nn.Parameter(ours.weight_hh.detach().t().contiguous().t())
        expected = ours(input, pair)
        ours.weight_hh = transposed
        torch.testing.assert_close(ours(input, pair), expected)


@each_cell
def test_steps_of_a_cell_are_a_layer(cell):
    ours = make(cell, 5, 8)
    name, options = CELLS[cell]
    layer = getattr(rnnpack, name.removesuffix("Cell"))(5, 8, **options)
    layer.load_state_dict({f"{k}_l0": v for k, v in ours.state_dict().items()})
    input, hx = torch.randn(6, 3, 5), None
    outputs = []
    for step in input:
        hx = ours(step, hx)
        outputs.append(state_tuple(hx)[0])
    torch.testing.assert_close(torch.stack(outputs), layer(input)[0])


@each_cell
def test_same_bits_for_any_thread_count(cell):
    for rows, hidden in ((1, 257), (33, 150)):
        ours, input, hx = make(cell, 40, hidden), torch.randn(rows, 40), states(cell, rows, hidden)
        found = []
        with torch.no_grad():
            for threads in (1, 2, 3, 8):
                torch.set_num_threads(threads)
                found.append(state_tuple(ours(input, hx)))
        for result in found[1:]:
            assert_same_bits(found[0], result)


@each_cell
def test_changed_weights_are_seen(cell):
    ours, input = make(cell, 5, 8), torch.randn(3, 5)

    def in_place():
        ours.weight_ih.mul_(1.5)

    def through_data():
        ours.weight_ih.data.mul_(1.5)

    def through_numpy():
        values = ours.weight_ih.detach().numpy()
        values *= 1.5

    def new_parameter():
        ours.weight_ih = nn.Parameter(1.5 * ours.weight_ih)

    with torch.no_grad():
        for change in (in_place, through_data, through_numpy, new_parameter):
            change()
            torch.testing.assert_close(ours(input), twin(ours)(input))


@each_cell
def test_first_and_second_gradients_and_forward_mode_in_float64(cell):
    ours = make(cell, 3, 4, dtype=torch.float64)
    names = [name for name, _ in ours.named_parameters()]
    hx = state_tuple(states(cell, 2, 4, dtype=torch.float64))
    leaves = [torch.randn(2, 3, dtype=torch.float64), *hx, *(p.detach() for p in ours.parameters())]
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]

    def run(input, *tensors):
        state = tensors[: len(hx)]
        parameters = dict(zip(names, tensors[len(hx) :], strict=True))
        state = state if cell == "lstm" else state[0]
        return state_tuple(functional_call(ours, parameters, (input, state)))

    assert torch.autograd.gradcheck(run, leaves, fast_mode=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True)


@each_cell
def test_transforms(cell):
    ours, input, tangent = make(cell, 3, 4), torch.randn(2, 3), torch.randn(2, 3)

    def run(input):
        return state_tuple(ours(input))[0]

    expected = torch.tensordot(jacrev(run)(input), tangent, 2)
    torch.testing.assert_close(jvp(run, (input,), (tangent,))[1], expected)
    parameters = {name: torch.stack([p, 2 * p]).detach() for name, p in ours.named_parameters()}
    stacked = vmap(lambda p: state_tuple(functional_call(ours, p, (input,)))[0])(parameters)
    torch.testing.assert_close(stacked[0], run(input))


@each_cell
def test_dtypes_and_autocast(cell):
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        ours = make(cell, 5, 8, dtype=dtype)
        input = torch.randn(3, 5, dtype=dtype, requires_grad=True)
        next_states = state_tuple(ours(input))
        assert {state.dtype for state in next_states} == {dtype}
        next_states[0].float().sum().backward()
        assert input.grad.dtype == dtype
    ours, input = make(cell, 5, 8), torch.randn(3, 5)
    exact = state_tuple(ours(input))[0]
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype=dtype):
            h = state_tuple(ours(input))[0]
        assert (h.float() - exact).abs().max() < 0.05
        h.float().sum().backward()
        assert {p.grad.dtype for p in ours.parameters()} == {torch.float32}


@each_cell
def test_copies_after_use(cell):
    ours, input = make(cell, 5, 8), torch.randn(3, 5)
    expected = state_tuple(ours(input))
    expected[0].sum().backward()
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert_same_bits(state_tuple(copied(input)), expected)


@each_cell
def test_meta_tensors_give_shapes_only(cell):
    ours = make(cell, 5, 8, device="meta")
    for state in state_tuple(ours(torch.empty(3, 5, device="meta"))):
        assert state.is_meta and state.shape == (3, 8)


BAD_CALLS = {
    "rank 0": lambda cell: (torch.tensor(1.0), None),
    "rank 3": lambda cell: (torch.randn(2, 3, 5), None),
    "input size": lambda cell: (torch.randn(3, 6), None),
    "states of another batch": lambda cell: (torch.randn(3, 5), states(cell, 4, 8)),
    "states of another size": lambda cell: (torch.randn(3, 5), states(cell, 3, 9)),
    "states of rank 3": lambda cell: (torch.randn(3, 5), states(cell, 1, 3, 8)),
    "float64": lambda cell: (torch.randn(3, 5, dtype=torch.float64), None),
    "integers": lambda cell: (torch.ones(3, 5, dtype=torch.int64), None),
}


@each_mode
@pytest.mark.parametrize("bad", BAD_CALLS)
@each_cell
def test_a_bad_call_fails_as_in_torch(cell, bad, training):
    ours = make(cell, 5, 8)
    torchs = twin(ours)
    args = BAD_CALLS[bad](cell)
    with torch.set_grad_enabled(training):
        assert_fails_as_in_torch(lambda: ours(*args), lambda: torchs(*args))


@pytest.mark.parametrize("hx", [torch.randn(1, 8), (torch.randn(1, 8),) * 3], ids=["one", "three"])
def test_an_lstm_cell_names_the_state_it_wants(hx):
    # torch blames the batch size.
    with pytest.raises((TypeError, ValueError, RuntimeError), match=r"tuple \(h"):
        rnnpack.LSTMCell(5, 8)(torch.randn(1, 5), hx)


@pytest.mark.parametrize("cell", ["gru", "rnn_tanh"])
def test_other_cells_refuse_a_tuple(cell):
    with pytest.raises((TypeError, RuntimeError), match=r"hx.*Tensor.*tuple"):
        make(cell, 5, 8)(torch.randn(1, 5), (torch.randn(1, 8),) * 2)


def test_an_unknown_nonlinearity_fails_as_in_torch():
    input = torch.randn(3, 5)
    assert_fails_as_in_torch(
        lambda: rnnpack.RNNCell(5, 8, nonlinearity="sigmoid")(input),
        lambda: nn.RNNCell(5, 8, nonlinearity="sigmoid")(input),
    )
