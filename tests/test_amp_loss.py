"""`amp.scale_loss`: gradients that add up, overflow, skipped steps, several losses; checkpoints."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from amp_model import SIXTEEN_BIT, Model, amp_begun_anew, each_level, prepared, train, values
from helpers import assert_same_bits
from rnnpack import amp


@pytest.fixture(autouse=True)
def begun_anew():
    with amp_begun_anew():
        yield


def spoiled(loss, value):
    """A loss whose gradient is infinite, or NaN."""
    return loss * torch.tensor(value)


def scales():
    return [scaler["loss_scale"] for scaler in amp.state_dict().values()]


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_step_is_skipped_once_upon_overflow(level, value, capsys):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level)
    before = values(model)
    loss = model(torch.randn(4, 3, 5)).float().square().mean()
    with amp.scale_loss(spoiled(loss, value), optimizer) as scaled_loss:
        scaled_loss.backward()
    assert scales() == [2.0**15]
    assert "skipping a step; the scale of loss 0 is now 32768" in capsys.readouterr().out
    assert optimizer.step() is None
    assert_same_bits(values(model), before)
    train(model, optimizer)
    assert scales() == [2.0**15]
    assert any(new.ne(old).any() for new, old in zip(values(model), before, strict=True))


def test_a_fixed_scale_neither_looks_nor_skips():
    model, optimizer = prepared("O1", loss_scale=128.0)
    with amp.scale_loss(
        spoiled(model(torch.randn(4, 3, 5)).sum(), float("inf")), optimizer
    ) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    assert scales() == [128.0]
    assert not all(value.isfinite().all() for value in values(model))


def test_the_scale_doubles_after_2000_steps_and_keeps_its_limits():
    model, optimizer = prepared("O1", min_loss_scale=2.0**14, max_loss_scale=2.0**17)
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 2.0**16, "unskipped": 1998}})
    train(model, optimizer)
    assert amp.state_dict() == {"loss_scaler0": {"loss_scale": 2.0**16, "unskipped": 1999}}
    train(model, optimizer)
    assert amp.state_dict() == {"loss_scaler0": {"loss_scale": 2.0**17, "unskipped": 0}}
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 2.0**17, "unskipped": 1999}})
    train(model, optimizer)
    assert scales() == [2.0**17]
    for expected in (2.0**16, 2.0**15, 2.0**14, 2.0**14):
        loss = spoiled(model(torch.randn(4, 3, 5)).float().sum(), float("nan"))
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        assert amp.state_dict() == {"loss_scaler0": {"loss_scale": expected, "unskipped": 0}}


def test_a_scale_without_limit_stays_above_zero():
    model, optimizer = prepared("O1")
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 2.0**-126, "unskipped": 0}})
    loss = spoiled(model(torch.randn(4, 3, 5)).float().sum(), float("nan"))
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    assert scales() == [2.0**-126]


def test_float16_overflow_is_found_and_training_goes_on():
    model, optimizer = prepared("O2", cast_model_type=torch.float16, max_loss_scale=2.0**40)
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 2.0**40, "unskipped": 0}})
    before = values(model)
    train(model, optimizer, 40)
    assert 1.0 < scales()[0] < 2.0**40
    assert all(value.isfinite().all() for value in values(model))
    assert any(new.ne(old).any() for new, old in zip(values(model), before, strict=True))


def gradients(optimizer):
    return [held.grad.clone() for held in amp.master_params(optimizer)]


@pytest.mark.parametrize("delay", [False, True])
@each_level
def test_gradients_of_several_losses_add_up(level, delay):
    options = {"loss_scale": 1024.0, "keep_batchnorm_fp32": None}
    model, optimizer = prepared(level, **options)
    model.norm.eval()  # so that the order of the losses is all that connects them
    inputs = torch.randn(3, 4, 3, 5)
    alone = []
    for input in inputs:
        optimizer.zero_grad()
        with amp.scale_loss(model(input).float().square().sum(), optimizer) as scaled_loss:
            scaled_loss.backward()
        alone.append(gradients(optimizer))
    optimizer.zero_grad()
    for index, input in enumerate(inputs):
        later = delay and index < len(inputs) - 1
        with amp.scale_loss(
            model(input).float().square().sum(), optimizer, delay_unscale=later
        ) as scaled_loss:
            scaled_loss.backward()
        if later:
            with pytest.raises(RuntimeError, match="still scaled"):
                optimizer.step()
    total = gradients(optimizer)
    for got, *parts in zip(total, *alone, strict=True):
        # Each addition rounds once, in the type that gradients add up in; delayed, the model's.
        rounded = SIXTEEN_BIT if level == "O3" or (delay and level == "O2") else ()
        eps = torch.finfo(torch.bfloat16 if rounded else torch.float32).eps
        exact = torch.stack(parts).double().sum(0)
        bound = 4 * eps * torch.stack(parts).double().abs().sum(0)
        assert ((got.double() - exact).abs() <= bound).all()
    optimizer.step()


def test_a_delayed_gradient_keeps_its_own_scale():
    # The scale changes in between: what was scaled by the old one must not be divided by the new.
    weight = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(weight.parameters(), 1.0)
    amp.initialize(weight, optimizer, opt_level="O0", loss_scale="dynamic", verbosity=0)
    with amp.scale_loss(weight(torch.ones(1, 1)).sum(), optimizer, delay_unscale=True) as loss:
        loss.backward()
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 8.0, "unskipped": 0}})
    with amp.scale_loss(weight(torch.ones(1, 1)).sum() * 2, optimizer) as loss:
        loss.backward()
    assert weight.weight.grad.item() == 3.0


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_delayed_check_is_made_by_the_step(level):
    model, optimizer = prepared(level)
    before = values(model)
    loss = spoiled(model(torch.randn(4, 3, 5)).float().sum(), float("inf"))
    with amp.scale_loss(loss, optimizer, delay_overflow_check=True) as scaled_loss:
        scaled_loss.backward()
    assert scales() == [2.0**16]
    optimizer.step()
    assert scales() == [2.0**15]
    assert_same_bits(values(model), before)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_two_losses_have_scales_of_their_own(level):
    model, optimizer = prepared(level, num_losses=2)
    before = values(model)
    optimizer.zero_grad()
    for loss_id, factor in enumerate((1.0, float("inf"))):
        loss = spoiled(model(torch.randn(4, 3, 5)).float().square().sum(), factor)
        with amp.scale_loss(loss, optimizer, loss_id=loss_id) as scaled_loss:
            scaled_loss.backward()
    assert scales() == [2.0**16, 2.0**15]
    optimizer.step()  # one of the losses spoiled the sum
    assert_same_bits(values(model), before)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_two_models_two_optimizers_three_losses(level):
    """As adversarial training goes: one loss of its own for each model, one for both."""
    models = [nn.LSTM(5, 7), nn.GRU(5, 7)]
    optimizers = [torch.optim.SGD(model.parameters(), 0.05) for model in models]
    models, optimizers = amp.initialize(
        models, optimizers, opt_level=level, num_losses=3, verbosity=0
    )
    input = torch.randn(4, 3, 5)

    def step(both):
        for optimizer in optimizers:
            optimizer.zero_grad()
        first, second = (model(input)[0].float().square().mean() for model in models)
        with amp.scale_loss(spoiled(first + second, both), optimizers, loss_id=2) as scaled_loss:
            scaled_loss.backward(retain_graph=True)
        for index, loss in enumerate((first, second)):
            with amp.scale_loss(loss, optimizers[index], loss_id=index) as scaled_loss:
                scaled_loss.backward()
        for optimizer in optimizers:
            optimizer.step()

    before = [values(model) for model in models]
    step(float("nan"))
    assert scales() == [2.0**16, 2.0**16, 2.0**15]
    assert_same_bits([values(model) for model in models], before)
    step(1.0)
    assert scales() == [2.0**16, 2.0**16, 2.0**15]
    for model, old in zip(models, before, strict=True):
        assert all(new.ne(value).any() for new, value in zip(values(model), old, strict=True))


def test_only_the_optimizers_of_a_loss_skip():
    models = [nn.LSTM(5, 7), nn.GRU(5, 7)]
    optimizers = [torch.optim.SGD(model.parameters(), 0.05) for model in models]
    amp.initialize(models, optimizers, num_losses=2, verbosity=0)
    before = [values(model) for model in models]
    for index, factor in enumerate((float("inf"), 1.0)):
        loss = spoiled(models[index](torch.randn(4, 3, 5))[0].float().square().mean(), factor)
        with amp.scale_loss(loss, optimizers[index], loss_id=index) as scaled_loss:
            scaled_loss.backward()
        optimizers[index].step()
    assert_same_bits(values(models[0]), before[0])
    assert all(new.ne(old).any() for new, old in zip(values(models[1]), before[1], strict=True))


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_parameter_of_two_optimizers_is_unscaled_once(level):
    layer = nn.LSTM(5, 7)
    optimizers = [torch.optim.SGD(layer.parameters(), 0.0) for _ in range(2)]
    amp.initialize(layer, optimizers, opt_level=level, verbosity=0)
    input = torch.randn(4, 3, 5)
    grads = []
    for chosen in (optimizers[:1], optimizers):
        with amp.scale_loss(layer(input)[0].float().square().mean(), chosen) as scaled_loss:
            scaled_loss.backward()
        grads.append([parameter.grad.clone() for parameter in layer.parameters()])
        for optimizer in optimizers:
            optimizer.zero_grad()
    assert_same_bits(grads[0], grads[1])


@each_level
def test_a_backward_pass_that_fails_leaves_earlier_gradients(level):
    model, optimizer = prepared(level)
    train(model, optimizer)
    before = gradients(optimizer)
    with pytest.raises(ZeroDivisionError), amp.scale_loss(torch.ones(()), optimizer):
        raise ZeroDivisionError
    assert_same_bits(gradients(optimizer), before)


def test_sparse_gradients():
    embedding = nn.Embedding(11, 5, sparse=True)
    optimizer = torch.optim.SGD(embedding.parameters(), 0.1)
    amp.initialize(embedding, optimizer, opt_level="O1", verbosity=0)
    before = embedding.weight.detach().clone()
    rows = torch.tensor([3, 3, 7])
    for factor, scale in ((float("inf"), 2.0**15), (1.0, 2.0**15)):
        optimizer.zero_grad()
        with amp.scale_loss(spoiled(embedding(rows).sum(), factor), optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        assert scales() == [scale]
    expected = before.clone()
    expected[3] -= 0.2
    expected[7] -= 0.1
    torch.testing.assert_close(embedding.weight.detach(), expected)


@pytest.mark.parametrize("first", ["scheduler", "initialize"])
def test_schedulers_count_steps(first):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if first == "scheduler":
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
        if first == "initialize":
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for rate in (0.25, 0.125):
            train(model, optimizer)
            scheduler.step()
            assert scheduler.get_last_lr() == [rate]


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_parameters_that_are_added_later_are_trained(level):
    model = Model()
    optimizer = torch.optim.SGD(model.layer.parameters(), 0.05)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    optimizer.add_param_group({"params": list(model.head.parameters()), "lr": 0.1})
    before = model.head.weight.detach().clone()
    train(model, optimizer)
    assert model.head.weight.ne(before).any()
    assert {held.dtype for held in amp.master_params(optimizer)} == {torch.float32}


def test_the_state_of_an_optimizer_that_has_stepped_goes_to_its_masters():
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 3, 5)).sum().backward()
    optimizer.step()
    moments = [optimizer.state[parameter]["exp_avg"].clone() for parameter in model.parameters()]
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    held = list(amp.master_params(optimizer))
    assert_same_bits([optimizer.state[master]["exp_avg"] for master in held], moments)
    assert len(optimizer.state) == len(held)


# --- Checkpoints ----------------------------------------------------------------------------------


@pytest.mark.parametrize("pruned", [False, True])
@each_level
def test_a_run_goes_on_from_its_checkpoint_as_if_it_had_not_stopped(level, pruned, tmp_path):
    def begin(seed):
        amp.reset()
        torch.manual_seed(seed)
        model = Model()
        if pruned:
            prune.l1_unstructured(model.layer, "weight_hh_l0", 0.4)
        optimizer = torch.optim.Adam(model.parameters())
        return amp.initialize(
            model, optimizer, opt_level=level, loss_scale="dynamic", num_losses=2, verbosity=0
        )

    model, optimizer = begin(1)
    amp.load_state_dict(
        {f"loss_scaler{k}": {"loss_scale": 2.0**14, "unskipped": 1997} for k in range(2)}
    )
    train(model, optimizer, 2, seed=2)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(saved | {"amp": amp.state_dict()}, tmp_path / "checkpoint")
    expected = train(model, optimizer, 3, seed=3)
    finished = values(model)
    held = [master.detach().clone() for master in amp.master_params(optimizer)]

    model, optimizer = begin(4)
    loaded = torch.load(tmp_path / "checkpoint")
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    amp.load_state_dict(loaded["amp"])
    assert_same_bits(train(model, optimizer, 3, seed=3), expected)
    assert_same_bits(values(model), finished)
    assert_same_bits([master.detach() for master in amp.master_params(optimizer)], held)
    assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 2.0**15, "unskipped": 2}


def test_a_checkpoint_of_masters_is_one_of_a_float32_model():
    model, optimizer = prepared("O2")
    train(model, optimizer, 2)
    state = model.state_dict()
    masters = [master.detach() for master in amp.master_params(optimizer)]
    floats = [value for value in state.values() if value.is_floating_point()]
    assert {value.dtype for value in floats} == {torch.float32}
    names = [name for name, _ in model.named_parameters()]
    assert_same_bits([state[name] for name in names], masters)
    torchs = Model()
    torchs.load_state_dict(state)
    assert_same_bits(torchs.state_dict()["head.weight"], state["head.weight"])
    # And back: a float32 checkpoint sets model and masters.
    fresh = Model()
    model.load_state_dict(fresh.state_dict())
    assert_same_bits(masters, values(fresh))
    assert_same_bits(values(model)[0], fresh.layer.weight_ih_l0.detach().bfloat16())


def test_a_state_dict_shows_what_was_written_to_the_model():
    model, _ = prepared("O2")
    model.layer.weight_ih_l0.data.fill_(0.5)
    assert model.state_dict()["layer.weight_ih_l0"].eq(0.5).all()


def test_assigning_in_place_of_a_parameter_with_a_master_is_refused():
    model, _ = prepared("O2")
    with pytest.raises(RuntimeError, match=r"layer\.weight_ih_l0: .* assign=False"):
        model.load_state_dict(model.state_dict(), assign=True)


def test_a_wrong_checkpoint_fails_as_in_torch():
    model, _ = prepared("O2")
    state = model.state_dict()
    state["head.weight"] = torch.zeros(2, 2)
    with pytest.raises(RuntimeError, match=r"size mismatch for head\.weight"):
        model.load_state_dict(state)


@pytest.mark.parametrize("names", [[], ["loss_scaler0"], ["loss_scaler0", "loss_scaler2"]])
def test_a_state_of_other_losses_is_refused(names):
    prepared("O1", num_losses=2)
    with pytest.raises(RuntimeError, match="a state of 2 losses"):
        amp.load_state_dict({name: {"loss_scale": 1.0, "unskipped": 0} for name in names})
