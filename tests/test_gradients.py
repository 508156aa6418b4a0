"""Gradients: as exact as torch's, for whatever subset is asked, as often as it is asked."""

import copy
import threading
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from helpers import (
    GRU,
    HIDDEN,
    KINDS,
    LSTM,
    RNN_RELU,
    RNN_TANH,
    ROWS,
    Case,
    assert_as_accurate,
    assert_same_bits,
    call,
    cases,
    gradients,
    joined,
    run_all,
    values,
)

SMALL = [Case(kind, 5, 3, 4, 7, num_layers=2, bidirectional=True) for kind in KINDS] + [
    Case(LSTM, 5, 3, 4, 7, num_layers=2, bidirectional=True, proj_size=3)
]
each_small_case = pytest.mark.parametrize("case", SMALL, ids=str)
each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def loss_of(layer, input, hx=None):
    output, states = call(layer, input, hx)
    return output.pow(2).sum() + sum(state.sum() for state in states)


@pytest.mark.parametrize("hidden", HIDDEN)
@each_kind
def test_gradients_are_as_accurate_as_torch(kind, hidden):
    for case in cases(kind, every_step=False):
        if case.hidden_size == hidden:
            try:
                run_all(case, with_gradients=True).check()
            except AssertionError as error:
                raise AssertionError(f"{case}: {error}") from error


@st.composite
def drawn_cases(draw):
    kind = draw(st.sampled_from(KINDS))
    hidden = draw(st.sampled_from(HIDDEN[:-2]) | st.integers(1, 40))
    return Case(
        kind,
        seq_len=draw(st.integers(1, 12)),
        batch=draw(st.sampled_from(ROWS) | st.integers(1, 12)),
        input_size=draw(st.integers(1, 40)),
        hidden_size=hidden,
        num_layers=draw(st.integers(1, 3)),
        bias=draw(st.booleans()),
        bidirectional=draw(st.booleans()),
        proj_size=draw(st.just(0) | st.integers(0, hidden - 1)) if kind is LSTM else 0,
        with_hx=draw(st.booleans()),
    )


@settings(max_examples=25)
@given(case=drawn_cases())
def test_gradients_are_as_accurate_as_torch_for_any_sizes(case):
    run_all(case, with_gradients=True).check()


@pytest.mark.parametrize(
    "case",
    [
        Case(LSTM, 50, 33, 40, 64, num_layers=2, bidirectional=True),
        Case(LSTM, 50, 9, 40, 64, proj_size=17),
        Case(GRU, 50, 8, 17, 150, bidirectional=True),
        Case(RNN_TANH, 2, 3, 5, 150, num_layers=2),
        Case(RNN_RELU, 50, 33, 17, 65),
    ],
    ids=str,
)
def test_same_bits_for_any_thread_count(case):
    ours, input, hx = case.pair()[0], case.input(), case.hx()
    shapes = values(lambda i, s: call(ours, i, s), input, hx)
    cotangents = {name: torch.randn_like(value) for name, value in shapes.items()}
    results = []
    for threads in (1, 2, 3, 8, 1):
        torch.set_num_threads(threads)
        forward = gradients(
            lambda i, s: call(ours, i, s), dict(ours.named_parameters()), input, hx, cotangents
        )
        results.append(list(forward.values()))
    for result in results[1:]:
        assert_same_bits(results[0], result)


SUBSETS = {
    "none": lambda name: False,
    "biases": lambda name: "bias" in name,
    "the last layer": lambda name: "_l1" in name,
    "recurrent weights": lambda name: "weight_hh" in name,
    "reverse": lambda name: name.endswith("_reverse"),
    "one weight": lambda name: name == "weight_ih_l0",
}


@pytest.mark.parametrize("subset", SUBSETS)
@pytest.mark.parametrize("input_needs", [False, True], ids=["", "input"])
@pytest.mark.parametrize("hx_needs", [False, True], ids=["", "states"])
@each_small_case
def test_exactly_those_get_gradients_that_ask(case, subset, input_needs, hx_needs):
    ours, torchs = case.pair()
    input, hx = case.input(), case.hx()
    wanted = SUBSETS[subset]
    if not (input_needs or hx_needs or subset != "none"):
        assert not call(frozen(ours, wanted), input, hx)[0].requires_grad
        return
    grads = []
    for layer in (frozen(ours, wanted), frozen(torchs, wanted)):
        leaf = input.clone().requires_grad_(input_needs)
        states = tuple(state.clone().requires_grad_(hx_needs) for state in hx)
        loss_of(layer, leaf, states).backward()
        named = {"input": leaf} | dict(enumerate(states)) | dict(layer.named_parameters())
        for name, tensor in named.items():
            assert (tensor.grad is not None) == tensor.requires_grad, name
        grads.append([tensor.grad for tensor in named.values() if tensor.requires_grad])
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs)


def frozen(layer, wanted):
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(wanted(name))
    return layer


@pytest.mark.parametrize("pick", ["output", "h_n", "c_n", "last output"])
@each_kind
def test_a_loss_may_use_only_some_results(kind, pick):
    if pick == "c_n" and kind is not LSTM:
        pick = "h_n"
    ours, torchs = kind.pair(3, 7, 2, bidirectional=True, dtype=torch.float64)
    input = torch.randn(5, 3, 3, dtype=torch.float64, requires_grad=True)
    grads = []
    for layer in (ours, torchs):
        output, states = call(layer, input)
        results = {"output": output[0], "last output": output[-1], "h_n": states[0][1]}
        results["c_n"] = states[-1][0]
        leaves = [input, *layer.parameters()]
        given = torch.autograd.grad(results[pick].sum(), leaves, allow_unused=True)
        # A gradient that is zero may also be said to be absent.
        grads.append(
            [torch.zeros_like(x) if g is None else g for g, x in zip(given, leaves, strict=True)]
        )
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs)


@each_small_case
def test_backward_may_run_twice(case):
    ours, input, hx = case.pair()[0], case.input(), case.hx()
    loss = loss_of(ours, input, hx)
    loss.backward(retain_graph=True)
    first = [parameter.grad.clone() for parameter in ours.parameters()]
    ours.zero_grad()
    loss.backward()
    assert_same_bits(first, [parameter.grad for parameter in ours.parameters()])


@each_small_case
def test_a_graph_that_was_freed_is_not_used_again(case):
    ours, input = case.pair()[0], case.input()
    loss = loss_of(ours, input)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@each_small_case
def test_gradients_accumulate(case):
    ours, input = case.pair()[0], case.input()
    loss_of(ours, input).backward()
    once = [parameter.grad.clone() for parameter in ours.parameters()]
    loss_of(ours, input).backward()
    assert_same_bits([2 * grad for grad in once], [p.grad for p in ours.parameters()])


# One layer: gradgradcheck perturbs each pair of arguments, and each layer adds eight.
@pytest.mark.parametrize(
    "case",
    [Case(kind, 3, 2, 3, 4, bidirectional=True) for kind in KINDS]
    + [Case(LSTM, 3, 2, 3, 4, num_layers=2, proj_size=3)],
    ids=str,
)
def test_first_and_second_gradients_in_float64(case):
    ours = case.pair(dtype=torch.float64)[0]
    input, hx = case.input(torch.float64), case.hx(torch.float64)
    leaves = [t.requires_grad_() for t in (input, *hx)]
    names = [name for name, _ in ours.named_parameters()]

    def run(input, *tensors):
        states, weights = tensors[: len(hx)], tensors[len(hx) :]
        argument = states[0] if len(states) == 1 else states
        parameters = dict(zip(names, weights, strict=True))
        output, final = torch.func.functional_call(ours, parameters, (input, argument))
        return (output, *((final,) if torch.is_tensor(final) else final))

    arguments = [*leaves, *(p.detach().clone().requires_grad_() for p in ours.parameters())]
    assert torch.autograd.gradcheck(run, arguments, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, arguments, fast_mode=True)


@each_kind
def test_a_gradient_penalty_in_float32_is_as_accurate_as_torch(kind):
    results = []
    for _ in range(6):
        ours, torchs = kind.pair(5, 7, 2)
        exact = copy.deepcopy(torchs).double()
        input = torch.randn(5, 3, 5)
        sides = []
        for layer, dtype in ((ours, None), (torchs, None), (exact, torch.float64)):
            leaf = input.to(dtype).requires_grad_() if dtype else input.clone().requires_grad_()
            (slope,) = torch.autograd.grad(layer(leaf)[0].pow(2).sum(), leaf, create_graph=True)
            slope.pow(2).sum().backward()
            sides.append(
                {"d_input": leaf.grad} | {f"d_{n}": p.grad for n, p in layer.named_parameters()}
            )
        results.append(sides)
    assert_as_accurate(*(joined(list(side)) for side in zip(*results, strict=True)))


@each_kind
def test_a_weight_changed_before_backward_is_an_error(kind):
    ours = kind.make(4, 7, 2)
    for name in ("weight_hh_l0", "weight_ih_l1"):
        loss = loss_of(ours, torch.randn(5, 3, 4))
        with torch.no_grad():
            getattr(ours, name).mul_(1.5)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@each_kind
def test_neither_flattening_nor_inference_disturbs_a_pending_backward(kind):
    ours, input = kind.make(4, 7, 3), torch.randn(5, 3, 4)
    loss = 0
    for step in range(3):
        ours.flatten_parameters()
        loss = loss + loss_of(ours, input + step)
        ours.eval()
        with torch.no_grad():
            ours(input)
        ours.train()
    loss.backward()
    assert all(parameter.grad is not None for parameter in ours.parameters())


@each_kind
def test_carried_states_train_when_detached_and_fail_when_not(kind):
    ours = kind.make(4, 7)
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)

    def train(detach):
        hx = None
        for _ in range(3):
            output, hx = call(ours, torch.randn(5, 3, 4), hx)
            optimizer.zero_grad()
            output.sum().backward()
            optimizer.step()
            hx = tuple(state.detach() for state in hx) if detach else hx

    train(detach=True)
    with pytest.raises(RuntimeError, match=r"second time|inplace"):
        train(detach=False)


@pytest.mark.parametrize("use_reentrant", [False, True], ids=["non-reentrant", "reentrant"])
@each_small_case
def test_checkpointing_changes_nothing(case, use_reentrant):
    ours, input, hx = case.pair()[0], case.input(), case.hx()
    leaf = input.clone().requires_grad_()
    loss_of(ours, leaf, hx).backward()
    expected = [leaf.grad, *(parameter.grad for parameter in ours.parameters())]
    ours.zero_grad()
    leaf = input.clone().requires_grad_()

    def flat(input, *hx):
        output, states = call(ours, input, hx)
        return output, *states  # the reentrant form sees tensors of the outermost tuple only

    output, *states = checkpoint(flat, leaf, *hx, use_reentrant=use_reentrant)
    (output.pow(2).sum() + sum(state.sum() for state in states)).backward()
    assert_same_bits(expected, [leaf.grad, *(p.grad for p in ours.parameters())])


@each_small_case
def test_saved_tensor_hooks_see_what_backward_needs(case):
    ours, input, hx = case.pair()[0], case.input(), case.hx()
    expected = torch.autograd.grad(loss_of(ours, input, hx), list(ours.parameters()))
    packed = []

    def pack(tensor):
        packed.append(tensor)
        return tensor.detach().clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = loss_of(ours, input, hx)
    assert packed
    assert_same_bits(list(expected), list(torch.autograd.grad(loss, list(ours.parameters()))))


@each_small_case
def test_anomaly_mode_and_tensor_hooks(case):
    ours, input = case.pair()[0], case.input().requires_grad_()
    seen = []
    ours.weight_hh_l0.register_hook(lambda grad: seen.append(grad.clone()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # anomaly mode warns that it is on
        with torch.autograd.detect_anomaly():
            output = call(ours, input)[0]
            output.register_hook(lambda grad: 2 * grad)
            output.sum().backward()
    doubled = ours.weight_hh_l0.grad.clone()
    assert_same_bits(seen, [doubled])
    ours.zero_grad()
    (2 * call(ours, input)[0].sum()).backward()
    assert_same_bits(doubled, ours.weight_hh_l0.grad)


@each_kind
def test_gradients_have_the_strides_of_their_parameters(kind):
    ours = kind.make(4, 7, 2, bidirectional=True)
    loss_of(ours, torch.randn(5, 3, 4)).backward()
    for parameter in ours.parameters():
        assert parameter.grad.stride() == parameter.stride()


@pytest.mark.parametrize("form", ["views", "packed"])
@each_kind
def test_gradients_flow_through_every_form_of_input(kind, form):
    ours, torchs = kind.pair(4, 7, 2, batch_first=True)
    lengths = torch.tensor([2, 5, 3])
    grads = []
    base = torch.randn(3, 4, 5)
    for layer in (ours, torchs):
        leaf = base.clone().requires_grad_()
        input = leaf.transpose(1, 2)
        if form == "packed":
            packed = pack_padded_sequence(input, lengths, batch_first=True, enforce_sorted=False)
            output, states = call(layer, packed)
            loss = output.data.pow(2).sum()
        else:
            output, states = call(layer, input)
            loss = output.pow(2).sum()
        (loss + states[0].sum()).backward()
        grads.append([leaf.grad, *(p.grad for p in layer.parameters())])
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs)


@each_kind
def test_lengths_have_the_gradients_of_each_row_by_itself(kind):
    ours = kind.make(4, 7, 2, bidirectional=True, dtype=torch.float64)
    lengths = torch.tensor([3, 0, 6, 1])
    input = torch.randn(6, 4, 4, dtype=torch.float64)
    dirty = input.clone()
    for row, length in enumerate(lengths.tolist()):
        dirty[length:, row] = float("nan")
    hx = tuple(torch.randn(4, 4, 7, dtype=torch.float64) for _ in range(kind.states))
    leaf = dirty.requires_grad_()
    states = tuple(state.clone().requires_grad_() for state in hx)
    output, final = call(ours, leaf, states, lengths=lengths)
    (output.pow(2).sum() + sum(state.pow(3).sum() for state in final)).backward()
    mine = [leaf.grad, *(s.grad for s in states), *(p.grad.clone() for p in ours.parameters())]
    ours.zero_grad()
    clean = input.clone().requires_grad_()
    states = tuple(state.clone().requires_grad_() for state in hx)
    loss = 0
    for row, length in enumerate(lengths.tolist()):
        initial = tuple(state[:, row : row + 1] for state in states)
        final = initial
        if length:
            output, final = call(ours, clean[:length, row : row + 1], initial)
            loss = loss + output.pow(2).sum()
        loss = loss + sum(state.pow(3).sum() for state in final)
    loss.backward()
    theirs = [clean.grad, *(s.grad for s in states), *(p.grad for p in ours.parameters())]
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


@each_kind
def test_an_empty_batch_has_zero_gradients(kind):
    ours = kind.make(4, 7, 2, bidirectional=True)
    input = torch.randn(5, 0, 4, requires_grad=True)
    output, _ = call(ours, input)
    output.sum().backward()
    assert input.grad.shape == input.shape
    for name, parameter in ours.named_parameters():
        assert parameter.grad is None or parameter.grad.count_nonzero() == 0, name


@each_kind
def test_dropout_has_the_gradient_of_the_mask_it_drew(kind):
    ours = kind.make(3, 5, 3, dropout=0.5, dtype=torch.float64).train()
    input = torch.randn(4, 3, 3, dtype=torch.float64, requires_grad=True)

    def run(input):
        torch.manual_seed(3)
        return call(ours, input)[0]

    assert run(input).ne(run(2 * input)).any()
    assert torch.autograd.gradcheck(run, (input,))


@each_kind
def test_recompute_has_the_same_gradients(kind):
    ours = kind.make(5, 17, 2, bidirectional=True)
    again = kind.make(5, 17, 2, bidirectional=True, recompute=True)
    again.load_state_dict(ours.state_dict())
    input = torch.randn(20, 9, 5)
    grads = [
        torch.autograd.grad(loss_of(layer, input), list(layer.parameters()))
        for layer in (ours, again)
    ]
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs)


@each_kind
def test_long_sequences_need_neither_stack_nor_nodes(kind):
    # A node per step made the backward recurse: it ended in a stack overflow on a small stack.
    seq_len = 20_000
    ours = kind.make(2, 4)
    input = torch.randn(seq_len, 1, 2, requires_grad=True)

    def train():
        call(ours, input)[0][-1].sum().backward()

    threading.stack_size(512 * 1024)
    try:
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(0)
    assert input.grad is not None and input.grad.isfinite().all()
    seen, left = set(), [call(ours, input)[0].grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left.extend(following for following, _ in node.next_functions)
    assert len(seen) < 50


def test_the_gradient_of_relu_passes_a_nan_as_torchs_does():
    ours, torchs = RNN_RELU.pair(8, 20)
    found = []
    for module in (ours, torchs):
        torch.manual_seed(0)
        input = torch.randn(32, 2, 8)
        input[31, 0, 3] = float("nan")
        input.requires_grad_()
        module(input)[0].sum().backward()
        found.append((input.grad, *(p.grad for p in module.parameters())))
    torch.testing.assert_close(*found, equal_nan=True)
