"""The truth of all other tests, itself held against torch.nn in float64 and against autograd."""

import pytest
import torch
from torch.func import functional_call, jacrev, jvp, vmap

from helpers import KINDS, LSTM, call, cases, layer_weights, named, rows_of, stack
from rnnpack import reference


def parameters_of(layer):
    return dict(layer.named_parameters())


def one_layer(kind, *, seq_len=5, batch=3, proj_size=0, dtype=torch.float64):
    """Draw the arguments of `reference.layer` in dtype: input, states, weights."""
    options = {"proj_size": proj_size} if proj_size else {}
    layer = kind.make_torchs(3, 4, dtype=dtype, **options)
    input = torch.randn(seq_len, batch, 3, dtype=dtype)
    sizes = (proj_size or 4, 4)[: kind.states]
    hx = tuple(torch.randn(batch, size, dtype=dtype) for size in sizes)
    return input, hx, layer_weights({k: p.detach() for k, p in layer.named_parameters()}, 0, False)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_equals_torch_in_float64(kind):
    for case in cases(kind, every_step=False):
        torchs = case.pair(dtype=torch.float64)[1]
        input, hx = case.input(torch.float64), case.hx(torch.float64)
        with torch.no_grad():
            ours = named(*stack(torchs, parameters_of(torchs), input, hx))
            theirs = named(*call(torchs, input, hx))
        for name, value in theirs.items():
            difference = (ours[name] - value).abs().max().item()
            assert difference <= 1e-12 * max(1, value.abs().max().item()), f"{case} {name}"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_keeps_the_dtype(kind, dtype):
    input, hx, weights = one_layer(kind, dtype=dtype)
    output, states = reference.layer(
        kind.cell, input, hx, weights, lengths=torch.tensor([1, 0, 5]), reverse=True
    )
    assert {tensor.dtype for tensor in (output, *states)} == {dtype}


def test_an_unknown_cell_is_a_key_error():
    input, hx, weights = one_layer(LSTM)
    with pytest.raises(KeyError, match="lstmp"):
        reference.layer("lstmp", input, hx, weights)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_lengths_equal_each_row_by_itself(kind, reverse):
    input, hx, weights = one_layer(kind, seq_len=6, batch=4)
    lengths = torch.tensor([4, 0, 6, 1])
    output, states = reference.layer(
        kind.cell, input, hx, weights, reverse=reverse, lengths=lengths
    )
    for row, length in enumerate(lengths.tolist()):
        alone, final = reference.layer(
            kind.cell,
            input[:length, row : row + 1],
            tuple(state[row : row + 1] for state in hx),
            weights,
            reverse=reverse,
        )
        torch.testing.assert_close(output[:length, row], alone[:, 0])
        assert output[length:, row].count_nonzero() == 0
        for state, of_row in zip(states, final, strict=True):
            torch.testing.assert_close(state[row], of_row[0])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_nan_past_the_end_reaches_nothing(kind):
    input, hx, weights = one_layer(kind)
    lengths = torch.tensor([2, 0, 5])
    dirty = input.clone()
    dirty[2:, 0] = dirty[:, 1] = float("nan")
    results = []
    for padded in (input, dirty):
        leaves = [tensor.clone().requires_grad_() for tensor in (padded, *weights[:4])]
        output, states = reference.layer(
            kind.cell, leaves[0], hx, reference.LayerWeights(*leaves[1:]), lengths=lengths
        )
        loss = output.pow(2).sum() + sum(state.sum() for state in states)
        results.append((output.detach(), *torch.autograd.grad(loss, leaves)))
    for clean, of_dirty in zip(*results, strict=True):
        assert torch.equal(clean, of_dirty)


@pytest.mark.parametrize("lengths", [None, [0, 0, 0]], ids=["whole", "lengths"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_no_steps_return_the_initial_states(kind, lengths):
    input, hx, weights = one_layer(kind, seq_len=0)
    input.requires_grad_()
    lengths = None if lengths is None else torch.tensor(lengths)
    output, states = reference.layer(kind.cell, input, hx, weights, lengths=lengths)
    assert output.shape == (0, 3, 4)
    assert all(torch.equal(one, other) for one, other in zip(states, hx, strict=True))
    output.sum().backward()
    assert input.grad.shape == (0, 3, 3)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_an_empty_batch_has_zero_gradients(kind):
    input, hx, weights = one_layer(kind, batch=0)
    weights = reference.LayerWeights(*(w.requires_grad_() for w in weights[:4]))
    output, states = reference.layer(kind.cell, input, hx, weights)
    assert output.shape == (5, 0, 4) and all(state.shape[0] == 0 for state in states)
    output.sum().backward()
    assert all(w.grad.count_nonzero() == 0 for w in weights[:4])


@pytest.mark.parametrize("lengths", [None, [3, 0]], ids=["whole", "lengths"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("kind", "proj_size"), [*((k, 0) for k in KINDS), (LSTM, 2)], ids=str)
def test_first_and_second_gradients(kind, proj_size, reverse, lengths):
    input, hx, weights = one_layer(kind, seq_len=3, batch=2, proj_size=proj_size)
    lengths = None if lengths is None else torch.tensor(lengths)

    def run(input, *tensors):
        output, states = reference.layer(
            kind.cell,
            input,
            tensors[: len(hx)],
            reference.LayerWeights(*tensors[len(hx) :]),
            reverse=reverse,
            lengths=lengths,
        )
        return output, *states

    tensors = [t.requires_grad_() for t in (input, *hx, *weights) if t is not None]
    assert torch.autograd.gradcheck(run, tensors, fast_mode=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(run, tensors, fast_mode=True)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_vmap_over_inputs_and_over_weights(kind):
    input, hx, weights = one_layer(kind)
    given = [w for w in weights if w is not None]
    inputs = torch.stack([input, 2 * input])
    stacked = [torch.stack([w, 0.5 * w]) for w in given]
    lengths = torch.tensor([2, 5, 0])

    def run(input, *weights):
        return reference.layer(
            kind.cell, input, hx, reference.LayerWeights(*weights), lengths=lengths
        )[0]

    over_inputs = vmap(run, in_dims=(0, *(None for _ in given)))(inputs, *given)
    over_weights = vmap(run, in_dims=(None, *(0 for _ in given)))(input, *stacked)
    for index in range(2):
        torch.testing.assert_close(over_inputs[index], run(inputs[index], *given))
        torch.testing.assert_close(over_weights[index], run(input, *(w[index] for w in stacked)))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_jvp_is_the_jacobian_times_the_tangent(kind):
    input, hx, weights = one_layer(kind, seq_len=3, batch=1)
    tangent = torch.randn_like(input)

    def run(input):
        return reference.layer(kind.cell, input, hx, weights)[0]

    jacobian = jacrev(run)(input)
    expected = torch.tensordot(jacobian, tangent, 3)
    torch.testing.assert_close(jvp(run, (input,), (tangent,))[1], expected)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_writes_nothing_in_place(kind):
    input, hx, weights = one_layer(kind)
    given = (input, *hx, *(w for w in weights if w is not None))
    versions, copies = [t._version for t in given], [t.clone() for t in given]
    reference.layer(kind.cell, input, hx, weights, lengths=torch.tensor([1, 5, 0]))
    assert versions == [t._version for t in given]
    assert all(torch.equal(t, copy) for t, copy in zip(given, copies, strict=True))


def test_the_stack_of_the_helpers_reads_the_weights_it_is_given():
    torchs = LSTM.make_torchs(3, 4, 2, bidirectional=True)
    input, hx = torch.randn(5, 3, 3), tuple(torch.randn(4, 3, 4) for _ in range(2))
    doubled = {name: 2 * p.detach() for name, p in torchs.named_parameters()}
    output, states = stack(torchs, doubled, input, hx)
    expected, expected_states = functional_call(torchs, doubled, (input, hx))
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(states, tuple(expected_states))
    row = stack(torchs, doubled, input[:, 1:2], rows_of(hx, 1))[0]
    torch.testing.assert_close(row, expected[:, 1:2])
