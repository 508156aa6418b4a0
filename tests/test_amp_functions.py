"""Functions that take part in O1, and `amp.disable_casts`."""

import copy
import types

import pytest
import torch
from torch import nn

from amp_model import amp_begun_anew, prepared
from helpers import assert_same_bits
from rnnpack import amp


@pytest.fixture(autouse=True)
def begun_anew():
    with amp_begun_anew():
        yield


def dtypes_in(*args, **kwargs):
    """The types that a function gets, and that of a matrix product within it."""
    product = torch.ones(2, 2) @ torch.ones(2, 2)
    return [value.dtype for value in (*args, *kwargs.values())], product.dtype


FLOATS = (torch.ones(2), torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.float64))
HALF = [torch.bfloat16, torch.bfloat16, torch.float64]
SINGLE = [torch.float32, torch.float32, torch.float64]
AS_GIVEN = [torch.float32, torch.bfloat16, torch.float64]


@pytest.mark.parametrize("how", ["decorated", "registered"])
@pytest.mark.parametrize(("name", "expected"), [("half", HALF), ("float", SINGLE)])
def test_functions_in_one_type(how, name, expected):
    library = types.SimpleNamespace(run=dtypes_in)
    if how == "decorated":
        library.run = getattr(amp, f"{name}_function")(dtypes_in)
    else:
        getattr(amp, f"register_{name}_function")(library, "run")
    assert library.run(*FLOATS)[0] == AS_GIVEN  # not yet
    prepared("O1")
    assert library.run(*FLOATS) == (expected, torch.float32)
    assert library.run(FLOATS[0], key=FLOATS[1])[0] == expected[:2]
    with torch.autocast("cpu", torch.bfloat16):
        within = torch.float32 if name == "float" else torch.bfloat16
        assert library.run(*FLOATS) == (expected, within)
    with amp.disable_casts():
        assert library.run(*FLOATS) == (AS_GIVEN, torch.float32)
    amp.reset()
    assert library.run(*FLOATS)[0] == AS_GIVEN
    assert how == "decorated" or library.run is dtypes_in


@pytest.mark.parametrize("how", ["decorated", "registered"])
def test_functions_in_the_widest_type(how):
    library = types.SimpleNamespace(run=dtypes_in)
    if how == "decorated":
        library.run = amp.promote_function(dtypes_in)
    else:
        amp.register_promote_function(library, "run")
    prepared("O1")
    single, half, double = FLOATS
    other = torch.ones(2, dtype=torch.float16)
    assert library.run(half, half)[0] == [torch.bfloat16] * 2
    assert library.run(half, single)[0] == [torch.float32] * 2
    assert library.run(half, other)[0] == [torch.float32] * 2
    assert library.run(half, key=single)[0] == [torch.float32] * 2
    assert library.run(half, double)[0] == [torch.bfloat16, torch.float64]
    with amp.disable_casts():
        assert library.run(half, single)[0] == [torch.bfloat16, torch.float32]


@pytest.mark.parametrize("level", ["O0", "O2", "O3"])
def test_other_levels_leave_functions_alone(level):
    library = types.SimpleNamespace(run=dtypes_in)
    amp.register_half_function(library, "run")
    prepared(level)
    assert library.run is dtypes_in
    assert amp.half_function(dtypes_in)(*FLOATS)[0] == AS_GIVEN
    amp.reset()
    prepared("O1")  # forgotten by reset
    assert library.run is dtypes_in


def test_half_functions_follow_cast_model_type():
    prepared("O1", cast_model_type=torch.float16)
    assert amp.half_function(dtypes_in)(torch.ones(2))[0] == [torch.float16]


def test_functions_without_a_device_that_has_autocast_run():
    prepared("O1")
    for decorate in (amp.half_function, amp.float_function):
        assert decorate(lambda: 3)() == 3
        assert decorate(dtypes_in)(torch.ones(2, device="meta"))[0] == [torch.float32]
    assert amp.promote_function(lambda: 3)() == 3


def test_registration_has_its_time_and_place():
    with pytest.raises(ValueError, match="'absent'"):
        amp.register_half_function(torch.nn.functional, "absent")
    prepared("O1")
    with pytest.raises(RuntimeError, match=r"before amp\.initialize"):
        amp.register_float_function(torch.nn.functional, "relu")


def test_the_last_word_on_a_loss_is_the_users():
    amp.register_half_function(torch.nn.functional, "mse_loss")
    prepared("O1")
    assert nn.MSELoss()(torch.ones(2), torch.zeros(2)).dtype == torch.bfloat16


def test_losses_after_the_model_are_computed_in_float32_at_o1():
    model, _ = prepared("O1")
    logits, target = model(torch.randn(4, 3, 5)), torch.randint(3, (12,))
    assert logits.dtype == torch.bfloat16
    loss = nn.CrossEntropyLoss()(logits, target)
    patched = torch.nn.functional.cross_entropy
    amp.reset()
    assert torch.nn.functional.cross_entropy is not patched
    assert_same_bits(loss, nn.CrossEntropyLoss()(logits.float(), target))


def test_disable_casts():
    model, _ = prepared("O1")
    model.eval()
    input = torch.randn(4, 3, 5)
    expected = copy.deepcopy(model)
    del expected.forward
    with torch.autocast("cpu", torch.bfloat16), amp.disable_casts():
        assert_same_bits(model(input), expected(input))
        assert model(input).dtype == torch.float32
    assert model(input).dtype == torch.bfloat16
    with pytest.raises(ZeroDivisionError), amp.disable_casts():
        raise ZeroDivisionError
    assert model(input).dtype == torch.bfloat16
    amp.reset()
    with amp.disable_casts():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
