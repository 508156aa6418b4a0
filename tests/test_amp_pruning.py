"""Pruned and normed layers under `rnnpack.amp`, and weights copied into one buffer."""

import itertools
import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune

import rnnpack
from amp_model import SIXTEEN_BIT, Model, amp_begun_anew, each_level, prepared, train
from helpers import assert_same_bits
from rnnpack import amp


@pytest.fixture(autouse=True)
def begun_anew():
    with amp_begun_anew():
        yield


@each_level
def test_a_layer_that_is_pruned_after_initialize_runs_as_before(level):
    hidden, attempts = 256, 10

    def run():
        output, _ = layer(torch.randn(20, 2, hidden))
        with amp.scale_loss(output.mean(), optimizer) as scaled_loss:
            scaled_loss.backward()

    layer = nn.LSTM(hidden, hidden, 1, batch_first=False, bidirectional=False)
    optimizer = torch.optim.Adam(layer.parameters())
    layer, optimizer = amp.initialize(layer, optimizer, opt_level=level)
    for _ in range(attempts):
        run()
    prune.l1_unstructured(layer, "weight_ih_l0", 0.2)
    prune.l1_unstructured(layer, "weight_hh_l0", 0.2)
    for _ in range(attempts):
        run()
    assert layer.weight_hh_l0_orig.grad.ne(0).any()
    assert layer.weight_hh_l0.eq(0).sum() >= 0.2 * layer.weight_hh_l0.numel()


def pruned_iterations(level, before):
    """One model of drawn kind and sizes, 50 steps, pruned more and more."""
    amp.reset()
    kind = random.choice([nn.LSTM, nn.GRU, nn.RNN, rnnpack.LSTM])
    sizes = {"input_size": random.randint(1, 23), "hidden_size": random.randint(2, 23)}
    layer = kind(**sizes, num_layers=random.randint(1, 2), bidirectional=random.random() < 0.5)
    names = [name for name in layer._flat_weights_names if name.startswith("weight")]
    methods = itertools.cycle((prune.l1_unstructured, prune.random_unstructured))
    if before:
        for name in names:
            next(methods)(layer, name, 0.1)
    optimizer = torch.optim.Adam(layer.parameters())
    layer, optimizer = amp.initialize(layer, optimizer, opt_level=level, verbosity=0)
    for iteration in range(50):
        if iteration % 20 == 5:
            for name in names:
                next(methods)(layer, name, 0.1)
        pruned = names if before or iteration >= 5 else []
        input = torch.randn(random.randint(1, 9), random.randint(1, 5), sizes["input_size"])
        output, _ = layer(input)
        optimizer.zero_grad()
        with amp.scale_loss(output.float().square().mean(), optimizer) as scaled_loss:
            scaled_loss.backward()
        for name in pruned:
            grad = getattr(layer, f"{name}_orig").grad
            mask = getattr(layer, f"{name}_mask")
            assert grad.isfinite().all() and grad[mask == 0].eq(0).all()
            # One step from a zero state leaves the recurrent weights without a gradient.
            assert grad.ne(0).any() or (input.size(0) == 1 and "_hh_" in name)
        optimizer.step()
        assert output.isfinite().all()
    assert all(parameter.isfinite().all() for parameter in layer.parameters())


@each_level
def test_a_thousand_pruned_iterations(level):
    for run in range(20):
        pruned_iterations(level, before=run % 2 == 0)


@each_level
def test_pruned_weights_are_trained_and_masked_ones_stay(level):
    model, optimizer = prepared(level, rate=1.0)  # large steps, which show in 16 bits too
    prune.l1_unstructured(model.layer, "weight_hh_l0", 0.4)
    model(torch.randn(4, 3, 5))
    before, masked = model.layer.weight_hh_l0.detach().clone(), model.layer.weight_hh_l0_mask == 0
    train(model, optimizer, 5)
    model(torch.randn(4, 3, 5))
    after = model.layer.weight_hh_l0.detach()
    assert after[masked].eq(0).all()
    assert after[~masked].ne(before[~masked]).float().mean() > 0.5


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_masks_of_another_type_stay_as_they_are(level):
    class Boolean(prune.BasePruningMethod):
        PRUNING_TYPE = "unstructured"

        def compute_mask(self, t, default_mask):
            return t.abs() > 0.1

    layer = nn.LSTM(5, 7)
    Boolean.apply(layer, "weight_ih_l0")
    prune.l1_unstructured(layer, "weight_hh_l0", 0.5)
    assert layer.weight_ih_l0_mask.dtype == torch.bool
    layer = amp.initialize(layer, opt_level=level, verbosity=0)
    layer(torch.randn(4, 3, 5))[0].sum().backward()
    assert layer.weight_ih_l0_mask.dtype == torch.bool
    assert layer.weight_hh_l0_mask.dtype == layer.weight_hh_l0.dtype == torch.bfloat16
    assert layer.weight_ih_l0_orig.grad.ne(0).any()


def test_a_pruning_made_permanent_reaches_the_master():
    model, optimizer = prepared("O2", rate=1e-6)
    prune.l1_unstructured(model.layer, "weight_hh_l0", 0.4)
    train(model, optimizer)
    prune.remove(model.layer, "weight_hh_l0")
    zero = model.layer.weight_hh_l0 == 0
    train(model, optimizer, 2)
    # Where zeros were, the master steps from zero: small steps, not the weights of before.
    assert model.layer.weight_hh_l0[zero].abs().max() < 1e-4
    assert model.layer.weight_hh_l0[~zero].abs().max() > 0.1


@pytest.mark.filterwarnings("ignore::FutureWarning")
@each_level
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm])
def test_norms_before_initialize(norm, level):
    model = Model()
    norm(model.layer, "weight_hh_l0")
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    before = model.layer.weight_hh_l0.detach().clone()
    losses = train(model, optimizer, 3)
    model(torch.randn(4, 3, 5))
    assert model.layer.weight_hh_l0.detach().float().ne(before.float()).any()
    assert torch.stack(losses).isfinite().all()


@pytest.mark.cuda
@each_level
def test_pruned_layers_train_on_a_gpu(level):
    for dtype in (None, torch.bfloat16) if level != "O0" else (None,):
        amp.reset()
        layer = nn.LSTM(255, 257, 2).cuda()
        optimizer = torch.optim.Adam(layer.parameters())
        amp.initialize(layer, optimizer, opt_level=level, cast_model_type=dtype, verbosity=0)
        prune.l1_unstructured(layer, "weight_ih_l0", 0.2)
        prune.l1_unstructured(layer, "weight_hh_l0", 0.2)
        for _ in range(10):
            output, _ = layer(torch.randn(20, 3, 255, device="cuda"))
            optimizer.zero_grad()
            with amp.scale_loss(output.float().square().mean(), optimizer) as scaled_loss:
                scaled_loss.backward()
            assert layer.weight_hh_l0_orig.grad.ne(0).any()
            optimizer.step()
        expected = {"O0": torch.float32, "O1": dtype or torch.float16}.get(level, torch.float32)
        assert output.dtype == expected and output.isfinite().all()


# --- flatten_weights ------------------------------------------------------------------------------


SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


def lying(storage, shape, how):
    """A tensor of `shape` in `storage`, or beside it, lying as `how` says."""
    count = math.prod(shape)
    start = {"start": 0, "end": storage.numel() - count, "middle": 7}.get(how)
    if start is not None:
        return storage[start : start + count].view(shape)
    if how == "own":
        return torch.randn(shape)
    if how == "expanded":
        return torch.randn(()).expand(shape)
    if how == "strided":
        return torch.randn([2 * size for size in shape])[tuple(slice(None, None, 2) for _ in shape)]
    return torch.randn(shape[::-1]).permute(list(reversed(range(len(shape)))))  # "transposed"


@given(
    drawn=st.lists(
        st.tuples(
            SHAPES,
            st.sampled_from(["start", "end", "middle", "own", "expanded", "strided", "transposed"]),
            st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64]),
        ),
        max_size=6,
    ),
    dtype=st.sampled_from([torch.float32, *SIXTEEN_BIT]),
    grad=st.booleans(),
)
def test_flatten_weights(drawn, dtype, grad):
    storage = torch.randn(150)
    weights = [lying(storage, shape, how).to(own) for shape, how, own in drawn]
    weights = [weight.detach().requires_grad_(grad) for weight in weights]
    kept = [weight.detach().clone() for weight in weights]
    buffer, views = amp.flatten_weights(weights, dtype)
    assert buffer.dim() == 1 and buffer.is_contiguous() and buffer.dtype == dtype
    assert buffer.numel() == sum(weight.numel() for weight in weights)
    assert not buffer.requires_grad
    start = 0
    for weight, view in zip(weights, views, strict=True):
        assert_same_bits(view, weight.detach().to(dtype))
        assert view.is_contiguous()
        assert view.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()
        assert view.storage_offset() == start
        start += weight.numel()
    buffer.fill_(0.5)
    assert all(view.eq(0.5).all() for view in views)
    assert_same_bits([weight.detach() for weight in weights], kept)


def test_flatten_pruned_weights():
    # A pruned weight lies somewhere else than its neighbours, before or behind them.
    for _ in range(20):
        layer = nn.LSTM(17, 33)
        for name in ("weight_ih_l0", "weight_hh_l0"):
            prune.l1_unstructured(layer, name, 0.2)
        layer(torch.randn(2, 1, 17))
        weights = [getattr(layer, name) for name in layer._flat_weights_names]
        _, views = amp.flatten_weights(weights, torch.float16)
        assert_same_bits(views, [weight.detach().half() for weight in weights])


def test_flatten_nothing():
    buffer, views = amp.flatten_weights([], torch.float16)
    assert buffer.shape == (0,) and buffer.dtype == torch.float16 and views == []


def test_flatten_weights_of_two_devices():
    with pytest.raises(ValueError, match="one device, got cpu, meta"):
        amp.flatten_weights([torch.ones(2), torch.ones(2, device="meta")], torch.float16)
