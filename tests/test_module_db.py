"""PyTorch's own sample inputs for its recurrent modules, run with our classes in their place."""

import pickle

import pytest
import torch
from torch.testing._internal.common_modules import ModuleErrorEnum, module_db

import rnnpack
from helpers import assert_as_accurate

NAMES = ("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell")
ENTRIES = {info.name.removeprefix("nn."): info for info in module_db}

each_name = pytest.mark.parametrize("name", NAMES)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
each_mode = pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])


def samples(name, dtype, training, requires_grad=False):
    """Yield (our module, positional arguments, keyword arguments, reference function)."""
    info = ENTRIES[name]
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=requires_grad, training=training
    )
    assert inputs
    for sample in inputs:
        module = build(name, sample, dtype).train(training)
        forward = sample.forward_input
        yield module, forward.args, forward.kwargs, sample.reference_fn


def build(name, sample, dtype):
    constructor = sample.constructor_input
    return getattr(rnnpack, name)(*constructor.args, **constructor.kwargs).to(dtype)


def tensors(value):
    """List the tensors in nested tuples and dicts."""
    if torch.is_tensor(value):
        return [value]
    items = value.values() if isinstance(value, dict) else value
    return [t for v in items for t in tensors(v)] if isinstance(value, tuple | list | dict) else []


def with_tensors(value, replacements):
    """Rebuild nested tuples with each tensor replaced by the next of `replacements`."""
    if torch.is_tensor(value):
        return next(replacements)
    if isinstance(value, tuple | list):
        return tuple(with_tensors(v, replacements) for v in value)
    return value


def test_the_entries_are_there():
    assert set(NAMES) <= set(ENTRIES)


@each_mode
@each_dtype
@each_name
def test_forward_equals_the_reference_function(name, dtype, training):
    checked = 0
    for module, args, kwargs, reference_fn in samples(name, dtype, training):
        outputs = module(*args, **kwargs)
        expected = reference_fn(module, *args, **kwargs)
        torch.testing.assert_close(outputs, expected)
        checked += 1
    assert checked > 1


@each_mode
@each_name
def test_first_and_second_gradients(name, training):
    for module, args, kwargs, _ in samples(name, torch.float64, training, requires_grad=True):
        assert not kwargs
        inputs = tensors(args)
        names = [parameter for parameter, _ in module.named_parameters()]

        def run(*leaves, module=module, args=args, names=names):
            given = with_tensors(args, iter(leaves))
            parameters = dict(zip(names, leaves[-len(names) :], strict=True))
            return tuple(tensors(torch.func.functional_call(module, parameters, given)))

        leaves = (*inputs, *(p.detach().clone().requires_grad_() for p in module.parameters()))
        assert torch.autograd.gradcheck(run, leaves, fast_mode=True)
        assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True)


def leaf_gradients(module, args, kwargs, dtype=None):
    """Give all values and gradients of one sample as one flat tensor, in `dtype` if given."""
    inputs = [t.detach().to(dtype or t.dtype).requires_grad_() for t in tensors(args)]
    outputs = tensors(module(*with_tensors(args, iter(inputs)), **kwargs))
    loss = sum(output.pow(2).sum() for output in outputs)
    grads = torch.autograd.grad(loss, [*inputs, *module.parameters()])
    return torch.cat([t.detach().flatten() for t in (*outputs, *grads)])


@each_mode
@each_name
def test_backward_is_as_accurate_as_torchs(name, training):
    sides = ([], [], [])
    for module, args, kwargs, _ in samples(name, torch.float32, training):
        torchs = rebuilt(ENTRIES[name], module, torch.float32)
        sides[0].append(leaf_gradients(module, args, kwargs))
        sides[1].append(leaf_gradients(torchs, args, kwargs))
        sides[2].append(leaf_gradients(torchs.double(), args, kwargs, torch.float64))
    assert_as_accurate(*({"values and gradients": torch.cat(side)} for side in sides))


@each_mode
@each_name
def test_backward_in_float64_equals_torchs(name, training):
    for module, args, kwargs, _ in samples(name, torch.float64, training):
        torchs = rebuilt(ENTRIES[name], module, torch.float64)
        torch.testing.assert_close(
            leaf_gradients(module, args, kwargs), leaf_gradients(torchs, args, kwargs)
        )


def rebuilt(info, module, dtype):
    """Make torch.nn's module with the options and weights of ours."""
    names = ["input_size", "hidden_size", "num_layers", "bias", "batch_first", "bidirectional"]
    # Every layer has a proj_size, but only the LSTM's constructor takes one.
    names += ["nonlinearity"] + ["proj_size"] * (info.name == "nn.LSTM")
    options = {key: getattr(module, key) for key in names if hasattr(module, key)}
    torchs = info.module_cls(**options).to(dtype)
    torchs.load_state_dict(module.state_dict())
    return torchs.train(module.training)


@each_mode
@each_name
def test_non_contiguous_arguments_give_the_same(name, training):
    for module, args, kwargs, _ in samples(name, torch.float32, training):
        expected = module(*args, **kwargs)
        gapped = iter([torch.stack([t, t + 1], -1)[..., 0] for t in tensors(args)])
        torch.testing.assert_close(module(*with_tensors(args, gapped), **kwargs), expected)


@each_name
def test_factory_arguments_reach_every_parameter(name):
    info = ENTRIES[name]
    for sample in info.module_inputs_func(
        info, device="cpu", dtype=torch.float64, requires_grad=False, training=True
    ):
        constructor = sample.constructor_input
        module = getattr(rnnpack, name)(
            *constructor.args, **constructor.kwargs, device="cpu", dtype=torch.float64
        )
        assert {p.dtype for p in module.parameters()} == {torch.float64}


@each_name
def test_pickling_keeps_the_outputs(name):
    for module, args, kwargs, _ in samples(name, torch.float32, False):
        expected = module(*args, **kwargs)
        loaded = pickle.loads(pickle.dumps(module))
        torch.testing.assert_close(loaded(*args, **kwargs), expected, rtol=0, atol=0)


@each_name
def test_arguments_are_not_written_to(name):
    for module, args, kwargs, _ in samples(name, torch.float32, True):
        given = tensors(args)
        before = [(t.clone(), t._version) for t in given]
        module(*args, **kwargs)
        for tensor, (value, version) in zip(given, before, strict=True):
            assert torch.equal(tensor, value) and tensor._version == version


@each_name
def test_error_inputs_raise_what_torch_expects(name):
    info = ENTRIES[name]
    assert info.module_error_inputs_func is not None
    for wrong in info.module_error_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
    ):
        sample = wrong.module_error_input
        if wrong.error_on == ModuleErrorEnum.CONSTRUCTION_ERROR:
            with pytest.raises(wrong.error_type, match=wrong.error_regex):
                build(name, sample, torch.float32)
        else:
            module = build(name, sample, torch.float32)
            forward = sample.forward_input
            with pytest.raises(wrong.error_type, match=wrong.error_regex):
                module(*forward.args, **forward.kwargs)
