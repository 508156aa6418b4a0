"""LSTM, GRU and RNN are drop-ins: parameters, state dicts and every option of torch.nn."""

import itertools
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import rnnpack
from helpers import GRU, KINDS, LSTM, RNN_TANH, assert_same_bits, call, outcome, stack, twin

each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def option_sets(kind):
    """List every combination of the options that change a layer's parameters or layout."""
    switches = ("bias", "batch_first", "bidirectional")
    for num_layers, proj_size, *flags in itertools.product(
        (1, 2, 3), (0, 3) if kind is LSTM else (0,), *[(True, False)] * 3
    ):
        options = dict(zip(switches, flags, strict=True)) | {"num_layers": num_layers}
        yield options | ({"proj_size": proj_size} if proj_size else {})


def assert_close(left, right):
    for one, other in zip(left, right, strict=True):
        if isinstance(one, PackedSequence):
            assert isinstance(other, PackedSequence)
            for mine, theirs in zip(one, other, strict=True):
                assert (mine is None) == (theirs is None)
                if mine is not None:
                    torch.testing.assert_close(mine, theirs)
        else:
            torch.testing.assert_close(one, other)


@each_kind
def test_is_an_rnn_base_but_not_torchs_layer(kind):
    # Dynamo refuses instances of torch.nn's three classes.
    ours = kind.make(3, 4)
    assert isinstance(ours, nn.RNNBase)
    assert not isinstance(ours, nn.LSTM | nn.GRU | nn.RNN)
    assert ours.mode == kind.make_torchs(3, 4).mode


@each_kind
def test_same_seed_gives_the_same_parameters_and_generator(kind):
    for options in option_sets(kind):
        states = []
        for make in (kind.make, kind.make_torchs):
            torch.manual_seed(7)
            states.append(make(5, 8, **options).state_dict())
            states.append({"generator": torch.get_rng_state()})
        ours, after_ours, torchs, after_torchs = states
        assert list(ours) == list(torchs)
        assert_same_bits(list(ours.values()), list(torchs.values()))
        assert_same_bits(after_ours["generator"], after_torchs["generator"])


@each_kind
def test_state_dicts_load_both_ways(kind):
    for options in option_sets(kind):
        ours, torchs = kind.make(5, 8, **options), kind.make_torchs(5, 8, **options)
        assert not any(torchs.load_state_dict(ours.state_dict()))
        ours = kind.make(5, 8, **options)
        assert not any(ours.load_state_dict(torchs.state_dict()))
        assert_same_bits(list(ours.parameters()), list(torchs.parameters()))


@each_kind
def test_a_state_dict_that_does_not_fit_is_refused_as_by_torch(kind):
    ours, torchs = kind.make(5, 8), kind.make_torchs(5, 8)
    other = kind.make_torchs(5, 9, 2).state_dict()
    assert outcome(lambda: ours.load_state_dict(other)) == outcome(
        lambda: torchs.load_state_dict(other)
    )


@each_kind
def test_repr_and_attributes_are_those_of_torch(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for options in ({}, {"dropout": 0.5}, *option_sets(kind)):
            ours, torchs = kind.make(5, 8, **options), kind.make_torchs(5, 8, **options)
            assert repr(ours) == repr(torchs)
            for name in nn.RNNBase.__constants__:
                assert getattr(ours, name) == getattr(torchs, name), name
    assert kind.make(5, 8).training


@each_kind
def test_all_weights_lists_the_parameters_themselves(kind):
    for options in option_sets(kind):
        ours, torchs = kind.make(5, 8, **options), kind.make_torchs(5, 8, **options)
        flat = list(itertools.chain.from_iterable(ours.all_weights))
        assert [len(w) for w in ours.all_weights] == [len(w) for w in torchs.all_weights]
        assert all(mine is p for mine, p in zip(flat, ours.parameters(), strict=True))


@each_kind
def test_no_second_home_of_a_weight(kind):
    ours = kind.make(5, 8, 2)
    before = dict(ours.__dict__)
    call(ours, torch.randn(6, 3, 5))
    ours.flatten_parameters()
    assert ours.__dict__.keys() == before.keys()

    def tensors(value):
        if torch.is_tensor(value):
            return [value]
        if not isinstance(value, list | dict | tuple):
            return []
        items = value.values() if isinstance(value, dict) else value
        return [tensor for item in items for tensor in tensors(item)]

    kept = {key: value for key, value in ours.__dict__.items() if key != "_parameters"}
    assert not tensors(kept)


@each_kind
def test_flatten_parameters_does_nothing(kind):
    ours = kind.make(5, 8, 2)
    pointers = [(p.data_ptr(), p._version) for p in ours.parameters()]
    assert ours.flatten_parameters() is None
    assert pointers == [(p.data_ptr(), p._version) for p in ours.parameters()]


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@each_kind
def test_every_option_equals_torch(kind, training):
    for options in option_sets(kind):
        ours, torchs = kind.pair(5, 8, **options)
        rows = options["num_layers"] * (2 if options["bidirectional"] else 1)
        sizes = (options.get("proj_size", 0) or 8, 8)[: kind.states]
        hx = tuple(torch.randn(rows, 3, size) for size in sizes)
        batch = torch.randn((3, 6, 5) if options["batch_first"] else (6, 3, 5))
        with torch.set_grad_enabled(training):
            for states in (None, hx):
                assert_close_results(call(ours, batch, states), call(torchs, batch, states))
            unbatched = torch.randn(6, 5)
            for states in (None, tuple(state[:, 1] for state in hx)):
                assert_close_results(call(ours, unbatched, states), call(torchs, unbatched, states))


def assert_close_results(ours, torchs):
    (output, states), (theirs, their_states) = ours, torchs
    assert_close((output, *states), (theirs, *their_states))


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("enforce_sorted", [True, False], ids=["sorted", "unsorted"])
@each_kind
def test_packed_sequences_equal_torch(kind, enforce_sorted, training):
    lengths = torch.tensor([6, 4, 4, 1] if enforce_sorted else [4, 1, 6, 4])
    for options in option_sets(kind):
        ours, torchs = kind.pair(5, 8, **options)
        padded = torch.randn((4, 6, 5) if options["batch_first"] else (6, 4, 5))
        packed = pack_padded_sequence(
            padded, lengths, batch_first=options["batch_first"], enforce_sorted=enforce_sorted
        )
        rows = options["num_layers"] * (2 if options["bidirectional"] else 1)
        sizes = (options.get("proj_size", 0) or 8, 8)[: kind.states]
        hx = tuple(torch.randn(rows, 4, size) for size in sizes)
        with torch.set_grad_enabled(training):
            for states in (None, hx):
                assert_close_results(call(ours, packed, states), call(torchs, packed, states))


@each_kind
def test_packed_output_keeps_its_bookkeeping(kind):
    lengths = torch.tensor([2, 6, 3])
    packed = pack_padded_sequence(torch.randn(6, 3, 5), lengths, enforce_sorted=False)
    output = call(kind.make(5, 8), packed)[0]
    assert output.batch_sizes is packed.batch_sizes
    assert output.sorted_indices is packed.sorted_indices
    assert output.unsorted_indices is packed.unsorted_indices
    assert torch.equal(pad_packed_sequence(output)[1], lengths)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@each_kind
def test_an_empty_batch_gives_empty_results(kind, training, batch_first):
    ours, torchs = kind.pair(5, 8, 2, bidirectional=True, batch_first=batch_first)
    input = torch.randn((0, 6, 5) if batch_first else (6, 0, 5))
    hx = tuple(torch.randn(4, 0, 8) for _ in range(kind.states))
    with torch.set_grad_enabled(training):
        for states in (None, hx):
            assert_close_results(call(ours, input, states), call(torchs, input, states))


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@each_kind
def test_no_steps_give_the_initial_states(kind, training, batch_first):
    ours = kind.make(5, 8, 2, bidirectional=True, batch_first=batch_first)
    input = torch.randn((3, 0, 5) if batch_first else (0, 3, 5))
    hx = tuple(torch.randn(4, 3, 8) for _ in range(kind.states))
    with torch.set_grad_enabled(training):
        output, states = call(ours, input, hx)
        assert output.shape == ((3, 0, 16) if batch_first else (0, 3, 16))
        assert_same_bits(states, hx)
        output, states = call(ours, input)
        assert all(state.shape == (4, 3, 8) and not state.count_nonzero() for state in states)
        output, states = call(ours, torch.randn(0, 5), tuple(state[:, 0] for state in hx))
        assert output.shape == (0, 16)
        assert_same_bits(states, tuple(state[:, 0] for state in hx))


@each_kind
def test_the_returned_states_are_new_tensors(kind):
    ours, hx = kind.make(5, 8), tuple(torch.randn(1, 3, 8) for _ in range(kind.states))
    for seq_len in (0, 4):
        for state in call(ours, torch.randn(seq_len, 3, 5), hx)[1]:
            assert state.data_ptr() not in {given.data_ptr() for given in hx}


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@each_kind
def test_any_strides_give_the_values_of_the_contiguous_call(kind, training):
    ours = kind.make(4, 7, 2)
    base = torch.randn(9, 10, 16)
    views = [
        base[:5, :3, :4],
        base[:5, :3, 3:16:4],
        base.permute(1, 0, 2)[:5, :3, :4],
        base[:, 0, :4][:5, None].expand(5, 3, 4),
        torch.randn(1, 3, 4).expand(5, 3, 4),
        torch.randn(4, 3, 5).permute(2, 1, 0),
        base.as_strided((5, 3, 4), (1, 1, 1)),
    ]
    state = torch.randn(2, 3, 14)[..., ::2]
    expanded = torch.randn(2, 1, 7).expand(2, 3, 7)
    cotangent = torch.randn(7, 3, 5).permute(2, 1, 0)
    for view, h in itertools.product(views, (state, expanded)):
        results = []
        for input, given, gradient in (
            (view, h, cotangent),
            (view.contiguous(), h.contiguous(), cotangent.contiguous()),
        ):
            leaf = input.detach().requires_grad_(training)
            with torch.set_grad_enabled(training):
                output, states = call(ours, leaf, (given,) * kind.states)
                results.append([output, *states])
                if training:
                    results[-1] += torch.autograd.grad(output, leaf, gradient)
        assert_close(*results)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@each_kind
def test_weights_may_have_any_strides(kind, training):
    ours = kind.make(5, 8, 2)
    torchs = twin(ours)
    for name in ("weight_ih_l0", "weight_hh_l0", "weight_hh_l1"):
        transposed = getattr(ours, name).detach().t().contiguous().t()
        setattr(ours, name, nn.Parameter(transposed))
    gapped = torch.randn(2 * ours.bias_ih_l0.numel())[::2]
    ours.bias_ih_l0 = nn.Parameter(gapped)
    torchs.load_state_dict(ours.state_dict())
    input = torch.randn(6, 3, 5)
    grads = []
    for layer in (ours, torchs):
        with torch.set_grad_enabled(training):
            output = layer(input)[0]
            grads.append([output])
            if training:
                grads[-1] += torch.autograd.grad(output.pow(2).sum(), list(layer.parameters()))
    assert_close(*grads)


@each_kind
def test_dropout_has_torchs_distribution(kind):
    rows = 4000
    ours, torchs = kind.pair(4, 16, 2, dropout=0.3)
    # The same sequence in every row: a row is one draw of the masks.
    input = torch.randn(3, 1, 4).expand(3, rows, 4)
    with torch.no_grad():
        mine, theirs = ours(input)[0], torchs(input)[0]
    spread = torch.cat([mine, theirs], 1).std(1)
    # A mean of n draws has a standard error of std / sqrt(n); six of them hold over all elements.
    assert ((mine.mean(1) - theirs.mean(1)).abs() <= 6 * spread / rows**0.5).all()
    # A narrow spread comes of rare events, whose own spread is wide.
    common = spread > spread.max() / 4
    assert ((mine.std(1) - theirs.std(1)).abs() <= 0.15 * spread)[common].all()


@each_kind
def test_dropout_repeats_under_a_seed_and_only_in_training(kind):
    ours, torchs = kind.pair(4, 7, 3, dropout=0.5, bidirectional=True)
    input = torch.randn(6, 3, 4)

    def drawn(seed):
        torch.manual_seed(seed)
        return ours(input)[0]

    assert_same_bits(drawn(3), drawn(3))
    assert drawn(3).ne(drawn(4)).any()
    torch.testing.assert_close(ours.eval()(input)[0], torchs.eval()(input)[0])


@each_kind
def test_dropout_of_everything_feeds_zeros_upwards(kind):
    ours = kind.make(4, 7, 2, dropout=1.0)
    output = ours(torch.randn(6, 3, 4))[0]
    only_second = kind.make(7, 7)
    only_second.load_state_dict(
        {k.replace("_l1", "_l0"): v for k, v in ours.state_dict().items() if k.endswith("_l1")}
    )
    torch.testing.assert_close(output, only_second(torch.zeros(6, 3, 7))[0])
    output.sum().backward()
    for name, parameter in ours.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


def test_dropout_on_one_layer_warns_as_torch_does():
    messages = []
    for make in (rnnpack.LSTM, nn.LSTM):
        with pytest.warns(UserWarning, match="dropout option adds dropout") as caught:
            make(4, 7, dropout=0.5)
        messages.append([str(warning.message) for warning in caught])
    assert messages[0] == messages[1]


@each_kind
def test_recompute_gives_the_same_values(kind):
    ours = kind.make(5, 8, 2)
    again = kind.make(5, 8, 2, recompute=True)
    again.load_state_dict(ours.state_dict())
    input = torch.randn(6, 3, 5)
    assert_same_bits(ours(input)[0], again(input)[0])


@each_kind
def test_device_and_dtype_are_passed_on(kind):
    ours = kind.make(5, 8, device="meta", dtype=torch.float64)
    assert {(p.device.type, p.dtype) for p in ours.parameters()} == {("meta", torch.float64)}


@each_kind
def test_meta_tensors_give_shapes_only(kind):
    ours = kind.make(5, 8, 2, bidirectional=True, device="meta")
    output, states = call(ours, torch.empty(6, 3, 5, device="meta"))
    assert output.is_meta and output.shape == (6, 3, 16)
    assert all(state.is_meta and state.shape == (4, 3, 8) for state in states)


@each_kind
def test_a_meta_module_can_be_materialised(kind):
    ours = kind.make(5, 8, 2, device="meta").to_empty(device="cpu")
    ours.reset_parameters()
    input = torch.randn(6, 3, 5)
    torch.testing.assert_close(ours(input)[0], twin(ours)(input)[0])


@pytest.mark.parametrize("kind", [LSTM, GRU, RNN_TANH], ids=str)
def test_sizes_are_those_of_the_weights_after_structured_pruning(kind):
    gates = {"lstm": 4, "gru": 3, "rnn_tanh": 1}[kind.cell]
    ours = kind.make(5, 8)
    input = torch.randn(6, 3, 5)
    ours(input)
    units = torch.tensor([0, 2, 7])
    rows = torch.cat([units + 8 * gate for gate in range(gates)])
    shrunk = {name: p.detach()[rows] for name, p in ours.named_parameters()}
    shrunk["weight_hh_l0"] = shrunk["weight_hh_l0"][:, units]
    for name, value in shrunk.items():
        setattr(ours, name, nn.Parameter(value.clone()))
    ours.hidden_size = 3
    expected = stack(ours, dict(ours.named_parameters()), input)[0]
    output = ours(input)[0]
    assert output.shape == (6, 3, 3)
    torch.testing.assert_close(output, expected)
    with torch.no_grad():
        torch.testing.assert_close(ours(input)[0], expected)
