"""Pruning, norms and parametrizations: whatever computes a weight, the next call reads it."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from helpers import KINDS, LSTM, stack, twin

each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)

METHODS = {
    "l1_unstructured": lambda layer: prune.l1_unstructured(layer, "weight_hh_l0", amount=0.5),
    "random_unstructured": lambda layer: prune.random_unstructured(
        layer, "weight_hh_l0", amount=0.5
    ),
    "ln_structured": lambda layer: prune.ln_structured(
        layer, "weight_hh_l0", amount=0.4, n=2, dim=0
    ),
    "random_structured": lambda layer: prune.random_structured(
        layer, "weight_hh_l0", amount=0.4, dim=1
    ),
    "custom_from_mask": lambda layer: prune.custom_from_mask(
        layer, "weight_hh_l0", torch.ones_like(layer.weight_hh_l0).tril()
    ),
    "identity": lambda layer: prune.identity(layer, "weight_hh_l0"),
}


def effective_weights(layer):
    """Give the weights as attributes show them now, by torch.nn's names."""
    names = [name for names in layer._all_weights for name in names]
    return {name: getattr(layer, name).detach().clone() for name in names}


def assert_reads_its_weights(layer, input):
    """Check inference and training against the reference on the weights that attributes show."""
    for training in (False, True):
        with torch.set_grad_enabled(training):
            output = layer(input)[0]
        expected = stack(layer, effective_weights(layer), input)[0]
        torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("method", METHODS)
@each_kind
def test_every_pruning_method_is_seen(kind, method):
    ours, input = kind.make(4, 7, 2), torch.randn(6, 3, 4)
    dense = ours(input)[0]
    METHODS[method](ours)
    assert_reads_its_weights(ours, input)
    if method != "identity":
        assert ours.weight_hh_l0.eq(0).any()
        assert ours(input)[0].ne(dense).any()


@each_kind
def test_pruning_again_and_globally_is_seen(kind):
    ours, input = kind.make(4, 7, 2), torch.randn(6, 3, 4)
    prune.l1_unstructured(ours, "weight_hh_l0", amount=0.3)
    ours(input)
    prune.random_structured(ours, "weight_hh_l0", amount=0.3, dim=0)
    assert_reads_its_weights(ours, input)
    prune.global_unstructured(
        [(ours, "weight_ih_l0"), (ours, "weight_ih_l1")],
        pruning_method=prune.L1Unstructured,
        amount=0.4,
    )
    assert_reads_its_weights(ours, input)


@each_kind
def test_training_goes_on_while_pruned_and_masked_weights_stay_zero(kind):
    ours, input = kind.make(4, 7, 2), torch.randn(6, 3, 4)
    prune.l1_unstructured(ours, "weight_hh_l0", amount=0.5)
    masked = ours.weight_hh_l0_mask == 0
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.02)
    before = ours(input)[0].detach().clone()
    for _ in range(3):
        optimizer.zero_grad()
        ours(input)[0].pow(2).sum().backward()
        assert ours.weight_hh_l0_orig.grad[masked].count_nonzero() == 0
        assert ours.weight_hh_l0_orig.grad.count_nonzero() > 0
        optimizer.step()
    output = ours(input)[0]
    assert output.ne(before).any()
    assert ours.weight_hh_l0[masked].count_nonzero() == 0
    assert_reads_its_weights(ours, input)


@each_kind
def test_training_goes_on_after_pruning_is_made_permanent(kind):
    # A list of weights kept beside the parameters goes on computing with the masked tensor here.
    ours, input = kind.make(4, 7), torch.randn(6, 3, 4)
    prune.l1_unstructured(ours, "weight_hh_l0", amount=0.5)
    ours(input)
    prune.remove(ours, "weight_hh_l0")
    assert "weight_hh_l0" in dict(ours.named_parameters())
    assert_reads_its_weights(ours, input)
    before = ours(input)[0].detach().clone()
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.02)
    for _ in range(2):
        optimizer.zero_grad()
        ours(input)[0].pow(2).sum().backward()
        optimizer.step()
    assert ours.weight_hh_l0.grad.count_nonzero() > 0
    assert ours(input)[0].ne(before).any()
    ours.weight_hh_l0.data.zero_()
    torch.testing.assert_close(ours(input)[0], twin(ours)(input)[0])


@each_kind
def test_a_pruned_layer_can_be_copied_and_saved(kind):
    ours, input = kind.make(4, 7), torch.randn(6, 3, 4)
    prune.l1_unstructured(ours, "weight_hh_l0", amount=0.5)
    expected = ours(input)[0]
    expected.sum().backward()
    copied = copy.deepcopy(ours)
    torch.testing.assert_close(copied(input)[0], expected)
    other = kind.make(4, 7)
    prune.identity(other, "weight_hh_l0")
    other.load_state_dict(ours.state_dict())
    torch.testing.assert_close(other(input)[0], expected)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated:FutureWarning")
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "nobias"])
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm])
@each_kind
def test_hook_based_norms_survive_moves_and_take_effect(kind, norm, bias):
    ours, input = kind.make(4, 7, 2, bias=bias), torch.randn(6, 3, 4)
    for index in range(2):
        norm(ours, f"weight_hh_l{index}")
    ours.to(torch.float64).to(torch.float32).flatten_parameters()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        output = ours(input)[0]
    torch.testing.assert_close(output, stack(ours, effective_weights(ours), input)[0])
    output.sum().backward()
    normed = {name: p for name, p in ours.named_parameters() if "weight_hh_l" in name}
    assert all(parameter.grad is not None for parameter in normed.values())
    with torch.no_grad():
        for name, parameter in normed.items():
            if name.endswith(("_g", "_orig")):
                parameter.mul_(1.7)
    changed = ours(input)[0]
    torch.testing.assert_close(changed, stack(ours, effective_weights(ours), input)[0])
    if norm is nn.utils.weight_norm:
        assert changed.ne(output).any()


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated:FutureWarning")
@each_kind
def test_a_removed_norm_leaves_a_plain_parameter(kind):
    ours, input = kind.make(4, 7), torch.randn(6, 3, 4)
    expected = ours(input)[0]
    nn.utils.weight_norm(ours, "weight_hh_l0")
    torch.testing.assert_close(ours(input)[0], expected)
    nn.utils.remove_weight_norm(ours, "weight_hh_l0")
    torch.testing.assert_close(ours(input)[0], expected)
    ours(input)[0].sum().backward()
    assert ours.weight_hh_l0.grad is not None


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.tanh() * 0.5


PARAMETRIZATIONS = {
    "own": lambda layer, name: parametrize.register_parametrization(layer, name, Symmetric()),
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
}


@pytest.mark.parametrize("which", PARAMETRIZATIONS)
@each_kind
def test_parametrizations_are_computed_trained_and_removed(kind, which):
    ours, input = kind.make(4, 7, 2), torch.randn(6, 3, 4)
    plain = ours(input)[0].detach()
    PARAMETRIZATIONS[which](ours, "weight_hh_l0")
    ours.eval()  # spectral_norm iterates at each access in training
    assert_reads_its_weights(ours, input)
    if which in ("own", "orthogonal"):
        assert ours(input)[0].ne(plain).any()
    ours(input)[0].pow(2).sum().backward()
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            if name.startswith("parametrizations"):
                assert parameter.grad is not None, name
                parameter.sub_(0.1 * parameter.grad)
    assert_reads_its_weights(ours, input)
    with parametrize.cached():
        assert_reads_its_weights(ours, input)
    expected = ours(input)[0].detach()
    parametrize.remove_parametrizations(ours, "weight_hh_l0")
    torch.testing.assert_close(ours(input)[0], expected)


def test_a_parametrized_layer_can_be_copied():
    ours, input = LSTM.make(4, 7), torch.randn(6, 3, 4)
    parametrizations.weight_norm(ours, "weight_hh_l0")
    expected = ours(input)[0]
    torch.testing.assert_close(copy.deepcopy(ours)(input)[0], expected)


@each_kind
def test_tied_weights_get_the_sum_of_their_gradients(kind):
    ours, input = kind.make(7, 7, 2), torch.randn(6, 3, 7)
    untied = copy.deepcopy(ours)
    ours.weight_hh_l1 = ours.weight_hh_l0
    with torch.no_grad():
        untied.weight_hh_l1.copy_(untied.weight_hh_l0)
    for layer in (ours, untied):
        layer(input)[0].pow(2).sum().backward()
    torch.testing.assert_close(
        ours.weight_hh_l0.grad, untied.weight_hh_l0.grad + untied.weight_hh_l1.grad
    )
