"""convert and revert: what is swapped, what is left and why, and that nothing else changes."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import rnnpack
from helpers import KINDS, assert_same_bits, call

each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


class Encoder(nn.Module):
    """Recurrent layers at several depths, one of them under two names."""

    def __init__(self):
        super().__init__()
        self.first = nn.LSTM(4, 7, 2, bidirectional=True, batch_first=True)
        self.blocks = nn.ModuleList(
            [nn.ModuleDict({"rnn": nn.GRU(14, 14, batch_first=True)}), nn.Linear(14, 14)]
        )
        self.shared = nn.RNN(14, 14, batch_first=True, nonlinearity="relu")
        self.alias = self.shared
        self.cell = nn.LSTMCell(14, 5)

    def forward(self, input):
        hidden = self.blocks[1](self.blocks[0]["rnn"](self.first(input)[0])[0])
        hidden = self.alias(self.shared(hidden)[0])[0]
        return self.cell(hidden[:, -1])[0]


class Doubled(nn.LSTM):
    """A subclass whose own forward would be lost by a swap."""

    def forward(self, input, hx=None):
        output, states = super().forward(input, hx)
        return 2 * output, states


def test_every_layer_is_swapped_and_shares_its_parameters():
    model = Encoder()
    parameters = dict(model.named_parameters())
    keys = list(model.state_dict())
    report = rnnpack.convert(model)
    assert report.model is model and not report.left
    assert {"first", "blocks.0.rnn", "cell"} <= set(report.swapped)
    assert isinstance(model.first, rnnpack.LSTM)
    assert isinstance(model.blocks[0]["rnn"], rnnpack.GRU)
    assert isinstance(model.shared, rnnpack.RNN) and model.alias is model.shared
    assert isinstance(model.cell, rnnpack.LSTMCell)
    assert isinstance(model.blocks[1], nn.Linear)
    assert list(model.state_dict()) == keys
    assert all(parameters[name] is p for name, p in model.named_parameters())


def test_the_converted_model_computes_the_same_and_reverts():
    model, input = Encoder(), torch.randn(3, 6, 4)
    expected = model(input)
    (grads,) = [torch.autograd.grad(expected.sum(), list(model.parameters()))]
    rnnpack.convert(model)
    converted = model(input)
    torch.testing.assert_close(converted, expected)
    for mine, theirs in zip(
        torch.autograd.grad(converted.sum(), list(model.parameters())), grads, strict=True
    ):
        torch.testing.assert_close(mine, theirs)
    parameters = dict(model.named_parameters())
    rnnpack.revert(model)
    assert type(model.first) is nn.LSTM and type(model.blocks[0]["rnn"]) is nn.GRU
    assert type(model.shared) is nn.RNN and model.alias is model.shared
    assert type(model.cell) is nn.LSTMCell
    assert all(parameters[name] is p for name, p in model.named_parameters())
    torch.testing.assert_close(model(input), expected)


@each_kind
def test_the_root_may_be_the_layer_itself(kind):
    torchs = kind.make_torchs(4, 7, 2, bidirectional=True, batch_first=True)
    input = torch.randn(3, 6, 4)
    expected = call(torchs, input)
    report = rnnpack.convert(torchs)
    assert type(report.model) is kind.ours
    assert len(report.swapped) == 1 and not report.left
    torch.testing.assert_close(call(report.model, input), expected)
    back = rnnpack.revert(report.model).model
    assert type(back) is kind.torchs
    torch.testing.assert_close(call(back, input), expected)


@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell", "RNNCell"])
def test_the_root_may_be_a_cell(name):
    torchs = getattr(nn, name)(4, 7, bias=False)
    input = torch.randn(3, 4)
    expected = torchs(input)
    report = rnnpack.convert(torchs)
    assert type(report.model) is getattr(rnnpack, name)
    torch.testing.assert_close(report.model(input), expected)
    assert type(rnnpack.revert(report.model).model) is getattr(nn, name)


@each_kind
def test_every_option_and_setting_is_carried_over(kind):
    options = dict(num_layers=2, bias=False, batch_first=True, dropout=0.5, bidirectional=True)
    torchs = kind.make_torchs(4, 7, **options, dtype=torch.float64).eval()
    torchs.weight_hh_l0.requires_grad_(False)
    ours = rnnpack.convert(nn.ModuleDict({"rnn": copy.deepcopy(torchs)})).model["rnn"]
    for name in nn.RNNBase.__constants__:
        assert getattr(ours, name) == getattr(torchs, name), name
    assert not ours.training
    assert not ours.weight_hh_l0.requires_grad and ours.weight_hh_l1.requires_grad
    assert repr(ours) == repr(torchs)
    if kind.name == "RNN":
        assert ours.nonlinearity == torchs.nonlinearity


def test_hooks_fire_after_the_swap_as_before():
    model, seen = nn.Sequential(nn.LSTM(4, 7)), []
    model[0].register_forward_pre_hook(lambda module, args: seen.append("before"))
    model[0].register_forward_hook(lambda module, args, output: seen.append("after"))
    model[0].register_load_state_dict_post_hook(lambda module, keys: seen.append("loaded"))
    rnnpack.convert(model)
    model(torch.randn(6, 3, 4))
    model.load_state_dict(model.state_dict())
    assert seen == ["before", "after", "loaded"]


def test_converting_twice_changes_nothing():
    model = Encoder()
    rnnpack.convert(model)
    layers = dict(model.named_modules())
    assert not rnnpack.convert(model).swapped
    assert all(layers[name] is module for name, module in model.named_modules())


def test_a_model_without_layers_is_left_as_it_is():
    model = nn.Sequential(nn.Linear(3, 4))
    report = rnnpack.convert(model)
    assert report.model is model and not report.swapped and not report.left


def test_a_subclass_with_its_own_forward_is_left():
    model = nn.ModuleDict({"own": Doubled(4, 7), "plain": nn.LSTM(4, 7)})
    input = torch.randn(6, 3, 4)
    expected = model["own"](input)[0]
    report = rnnpack.convert(model)
    assert report.swapped == ["plain"] and list(report.left) == ["own"]
    assert "forward" in report.left["own"] and "Doubled" in report.left["own"]
    assert type(model["own"]) is Doubled
    torch.testing.assert_close(model["own"](input)[0], expected)


@pytest.mark.filterwarnings("ignore")
def test_a_quantized_layer_is_left():
    quantized = torch.ao.quantization.quantize_dynamic(
        nn.ModuleDict({"rnn": nn.LSTM(4, 7)}), {nn.LSTM}, dtype=torch.qint8
    )
    kind = type(quantized["rnn"])
    assert kind is not nn.LSTM
    report = rnnpack.convert(quantized)
    assert type(quantized["rnn"]) is kind and not report.swapped
    assert "quantized" in report.left["rnn"]


@pytest.mark.filterwarnings("ignore")
def test_a_script_module_is_left():
    scripted = torch.jit.script(nn.LSTM(4, 7))
    model = nn.ModuleDict({"rnn": scripted, "plain": nn.GRU(4, 7)})
    report = rnnpack.convert(model)
    assert model["rnn"] is scripted and report.swapped == ["plain"]
    assert "script" in report.left["rnn"].lower()


def test_pruned_and_parametrized_layers_still_compute_the_same():
    pruned = prune.l1_unstructured(nn.LSTM(4, 7), "weight_hh_l0", amount=0.5)
    normed = parametrizations.weight_norm(nn.GRU(4, 7), "weight_hh_l0")
    model, input = nn.ModuleDict({"pruned": pruned, "normed": normed}), torch.randn(6, 3, 4)
    expected = [layer(input)[0] for layer in model.values()]
    names = [name for name, _ in model.named_parameters()]
    report = rnnpack.convert(model)
    assert set(report.swapped) | set(report.left) == {"pruned", "normed"}
    for layer, output in zip(model.values(), expected, strict=True):
        torch.testing.assert_close(layer(input)[0], output)
    assert [name for name, _ in model.named_parameters()] == names


def test_a_converted_model_trains_on_with_its_optimizer():
    model, input = Encoder(), torch.randn(3, 6, 4)
    twin = copy.deepcopy(model)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (model, twin)]
    rnnpack.convert(model)
    for _ in range(3):
        for trained, optimizer in zip((model, twin), optimizers, strict=True):
            optimizer.zero_grad()
            trained(input).pow(2).sum().backward()
            optimizer.step()
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_the_report_reads_as_text():
    model = nn.ModuleDict({"own": Doubled(4, 7), "plain": nn.LSTM(4, 7)})
    text = str(rnnpack.convert(model))
    assert "plain" in text and "own" in text and "forward" in text


def test_a_deep_copy_of_a_converted_model_is_independent():
    model, input = Encoder(), torch.randn(3, 6, 4)
    rnnpack.convert(model)
    copied = copy.deepcopy(model)
    assert_same_bits(copied(input), model(input))
    rnnpack.revert(copied)
    assert isinstance(model.first, rnnpack.LSTM)
