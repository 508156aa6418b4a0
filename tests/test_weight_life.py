"""The life of a weight: whatever happens to it, the next result is that of the current weights.

A layer or cell and its twin, which computes torch.nn's results from the weights that it has at each
call, are given the same actions: one at a time, and in sequences that hypothesis draws.
"""

import copy
import io
import pickle
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import rnnpack
from helpers import (
    assert_as_accurate,
    assert_same_bits,
    outcome,
    state_tuple,
)

INPUT, HIDDEN, STEPS, ROWS = 5, 9, 7, 33
TANH, RELU = {"nonlinearity": "tanh"}, {"nonlinearity": "relu"}
MODULES = {
    "lstm": ("LSTM", {}),
    "lstm, projected": ("LSTM", {"proj_size": 3}),
    "gru, both directions": ("GRU", {"bidirectional": True}),
    "rnn, tanh": ("RNN", TANH),
    "rnn, relu": ("RNN", RELU),
    "lstm cell": ("LSTMCell", {}),
    "gru cell": ("GRUCell", {}),
    "rnn cell, tanh": ("RNNCell", TANH),
    "rnn cell, relu": ("RNNCell", RELU),
}
each_module = pytest.mark.parametrize("which", MODULES)


def make(which, library=rnnpack, **options):
    name, own = MODULES[which]
    return getattr(library, name)(INPUT, HIDDEN, **own, **options)


class Twin(nn.Module):
    """A module with the same parameters, that runs torch.nn's on what its attributes are now.

    torch.nn's own layers keep a list of weights beside their parameters, which pruning and
    parametrizations leave behind.
    """

    def __init__(self, module: nn.Module, engine: nn.Module) -> None:
        super().__init__()
        self.names = [name for name, _ in module.named_parameters()]
        self.engine = (engine,)  # a tuple, so that it is no submodule
        for name, parameter in module.named_parameters():
            self.register_parameter(name, nn.Parameter(parameter.detach().clone()))

    def forward(self, input, hx=None):
        weights = {name: getattr(self, name) for name in self.names}
        (engine,) = self.engine
        result = torch.func.functional_call(engine, weights, (input, hx))
        if isinstance(engine, nn.RNNBase):
            engine._init_flat_weights()  # else it goes on pointing to the weights of this call
        return result

    # What pruning computed has a history, with which torch copies no tensor.

    def __getstate__(self):
        detached = {k: v.detach() for k, v in self.__dict__.items() if isinstance(v, Tensor)}
        return self.__dict__ | detached

    def __deepcopy__(self, memo):
        copied = type(self).__new__(type(self))
        copied.__dict__ = copy.deepcopy(Twin.__getstate__(self), memo)
        return copied


def pair(which):
    ours = make(which)
    return ours, Twin(ours, make(which, nn))


# --- Results --------------------------------------------------------------------------------------


def is_cell(which):
    return which.partition(",")[0].endswith("cell")


def inputs(which, dtype=torch.float32):
    """An input and states whose values `dtype` has."""
    size = HIDDEN if "projected" not in which else 3
    stacks = () if is_cell(which) else (2 if "both" in which else 1,)
    input = torch.randn(ROWS, INPUT) if is_cell(which) else torch.randn(STEPS, ROWS, INPUT)
    states = torch.randn(*stacks, ROWS, size), torch.randn(*stacks, ROWS, HIDDEN)
    states = states if which.startswith("lstm") else states[:1]
    return [tensor.to(dtype) for tensor in (input, *states)]


def run(module, tensors):
    """Call a module with an input and states; give all that comes out as one tensor."""
    input, *states = tensors
    result = module(input, tuple(states) if len(states) == 2 else states[0])
    parts = [part for tensor in state_tuple(result) for part in state_tuple(tensor)]
    return torch.cat([part.flatten() for part in parts])


def results(module, given, dtype, training):
    """Values, or values and gradients of all leaves, each group as one tensor."""
    tensors = [tensor.to(dtype, copy=True).requires_grad_(training) for tensor in given]
    with torch.set_grad_enabled(training):
        output = run(module, tensors)
        found = {"values": output.detach()}
        if training:
            leaves = tensors + [p for p in module.parameters() if p.requires_grad]
            grads = torch.autograd.grad(output.square().sum(), leaves)
            found["gradients"] = torch.cat([grad.flatten() for grad in grads])
    return found


def dtype_of(module):
    return next(module.parameters()).dtype


def assert_current(which, ours, torchs):
    """Check values and gradients of a module against its twin and against that in float64."""
    facts = [
        {name: (p.dtype, p.shape, p.requires_grad) for name, p in module.named_parameters()}
        for module in (ours, torchs)
    ]
    assert facts[0] == facts[1]
    assert list(ours.state_dict()) == list(torchs.state_dict())
    assert_same_bits(list(ours.state_dict().values()), list(torchs.state_dict().values()))
    dtype = dtype_of(ours)
    given = inputs(which, dtype)
    exact = copy.deepcopy(torchs).double()
    for training in (False, True):
        assert_as_accurate(
            results(ours, given, dtype, training),
            results(torchs, given, dtype, training),
            results(exact, given, torch.float64, training),
        )


# --- Actions --------------------------------------------------------------------------------------
#
# An action takes a module and the name of a weight, and gives the module that goes on: itself or a
# copy. Both modules of a pair are given the same.

FACTOR = -0.9  # keeps sizes, so that long sequences of actions stay within the range of float16


def in_place(module, name):
    with torch.no_grad():
        parameter_of(module, name).mul_(FACTOR)


def in_inference_mode(module, name):
    with torch.inference_mode():
        parameter_of(module, name).mul_(FACTOR)


def through_data(module, name):
    # Moves no version counter: a copy that is kept until a counter moves would be stale here.
    parameter_of(module, name).data.mul_(FACTOR)


def through_numpy(module, name):
    parameter = parameter_of(module, name).detach()
    bits = parameter.view(torch.int16) if parameter.element_size() == 2 else parameter
    values = bits.numpy()
    values[...] = values[::-1].copy()


def new_storage(module, name):
    parameter = parameter_of(module, name)
    parameter.data = FACTOR * parameter.data


def new_parameter(module, name):
    owner, key = place_of(module, name)
    old = owner._parameters[key]
    setattr(owner, key, nn.Parameter(FACTOR * old.detach(), requires_grad=old.requires_grad))


def reversed_state(module):
    return {key: value.flip(0).clone() for key, value in module.state_dict().items()}


def by_loading(module, name):
    module.load_state_dict(reversed_state(module))


def by_assigning(module, name):
    module.load_state_dict(reversed_state(module), assign=True)


def step_of(optimizer, module):
    for parameter in module.parameters():
        parameter.grad = parameter.detach().clone() if parameter.requires_grad else None
    optimizer.step()
    module.zero_grad()


def by_sgd(module, name):
    step_of(torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9), module)


def by_fused_adam(module, name):
    step_of(torch.optim.Adam(module.parameters(), lr=0.01, eps=1e-4, fused=True), module)


def by_foreach_adamw(module, name):
    step_of(torch.optim.AdamW(module.parameters(), lr=0.01, eps=1e-4, foreach=True), module)


def toggled(module, name):
    parameter = parameter_of(module, name)
    parameter.requires_grad_(not parameter.requires_grad)


def all_toggled(module, name):
    module.requires_grad_(not next(module.parameters()).requires_grad)


def to_evaluation(module, name):
    module.eval()


def to_training(module, name):
    module.train()


def to_double(module, name):
    module.double()


def to_float(module, name):
    module.float()


def to_bfloat16(module, name):
    module.to(torch.bfloat16)


def to_half(module, name):
    module.half()


def to_double_and_back_by_swapping(module, name):
    dtype = dtype_of(module)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        module.double()
        module.to(dtype)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def by_loading_with_swapping(module, name):
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        by_loading(module, name)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def through_meta(module, name):
    state = reversed_state(module)
    module.to("meta").to_empty(device="cpu").load_state_dict(state)


def shared(module, name):
    module.share_memory()
    assert all(tensor.is_shared() for tensor in module.state_dict().values())


def deep_copy(module, name):
    return copy.deepcopy(module)


def by_pickle(module, name):
    return pickle.loads(pickle.dumps(module))


def by_torch_save(module, name):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def averaged(module, name):
    model = torch.optim.swa_utils.AveragedModel(module)
    model.update_parameters(module)
    in_place(module, name)
    model.update_parameters(module)
    return model.module


def functionally_called(module, name):
    # Other weights for one call: no trace of them may be left.
    zeros = {key: torch.zeros_like(p) for key, p in module.named_parameters()}
    torch.func.functional_call(module, zeros, (torch.ones(3, INPUT, dtype=dtype_of(module)),))


def pruned(module, name):
    prune.l1_unstructured(module, name, amount=0.4)


def pruning_removed(module, name):
    prune.remove(module, name)


class Halved(nn.Module):
    def forward(self, weight):
        return 0.5 * weight


def normed(module, name):
    parametrizations.weight_norm(module, name)


def halved(module, name):
    parametrize.register_parametrization(module, name, Halved())


def parametrizations_removed(module, name):
    parametrize.remove_parametrizations(module, name)


def tied(module, name):
    setattr(module, other_bias(name), module._parameters[name])


def reverted_and_converted(module, name):
    if not isinstance(module, Twin):
        assert rnnpack.revert(module).swapped == [""]
        assert rnnpack.convert(module).swapped == [""]


def place_of(module, name):
    """Where the parameter behind a weight is; if there are several, the last of them."""
    if parametrize.is_parametrized(module, name):
        made_from = module.parametrizations[name]
        return made_from, list(made_from._parameters)[-1]
    return module, name if name in module._parameters else f"{name}_orig"


def parameter_of(module, name):
    owner, key = place_of(module, name)
    return owner._parameters[key]


# Where an action can be taken.


def anywhere(module, name):
    return True


def is_plain(module, name):
    return name in module._parameters


def is_pruned(module, name):
    return f"{name}_orig" in module._parameters


def is_parametrized(module, name):
    return parametrize.is_parametrized(module, name)


def is_not_parametrized(module, name):
    return not is_parametrized(module, name)


def can_be_pickled(module, name):
    # Torch refuses while it is parametrized, and later for a function that weight_norm leaves.
    return not (parametrize.is_parametrized(module) or module._load_state_dict_pre_hooks)


def has_no_pruning(module, name):
    return not list(module.buffers())  # its weight holds a graph, for which torch refuses to swap


def has_a_bias_to_tie(module, name):
    return "bias_ih" in name and is_plain(module, name) and is_plain(module, other_bias(name))


def other_bias(name):
    return name.replace("bias_ih", "bias_hh")


ACTIONS = {
    in_place: anywhere,
    in_inference_mode: anywhere,
    through_data: anywhere,
    through_numpy: anywhere,
    new_storage: anywhere,
    new_parameter: anywhere,
    by_loading: anywhere,
    by_assigning: anywhere,
    by_sgd: anywhere,
    by_fused_adam: anywhere,
    by_foreach_adamw: anywhere,
    toggled: anywhere,
    all_toggled: anywhere,
    to_evaluation: anywhere,
    to_training: anywhere,
    to_double: anywhere,
    to_float: anywhere,
    to_bfloat16: anywhere,
    to_half: anywhere,
    to_double_and_back_by_swapping: has_no_pruning,
    by_loading_with_swapping: has_no_pruning,
    through_meta: anywhere,
    shared: anywhere,
    deep_copy: anywhere,
    by_pickle: can_be_pickled,
    by_torch_save: can_be_pickled,
    averaged: anywhere,
    functionally_called: anywhere,
    reverted_and_converted: anywhere,
    tied: has_a_bias_to_tie,
    pruned: is_not_parametrized,
    pruning_removed: is_pruned,
    normed: is_plain,
    halved: lambda module, name: is_plain(module, name) or is_parametrized(module, name),
    parametrizations_removed: is_parametrized,
}
each_action = pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)


def after(action, name, *modules):
    """The modules that go on after an action, which is taken where it can be."""
    if not ACTIONS[action](modules[-1], name):
        return modules
    return tuple(action(module, name) or module for module in modules)


# --- Layers and cells -----------------------------------------------------------------------------

PREPARATIONS = {pruning_removed: pruned, parametrizations_removed: normed}


@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
@each_action
@each_module
def test_the_next_result_is_that_of_the_current_weights(which, action, used):
    ours, torchs = pair(which)
    name = next(name for name in torchs.names if ("bias_ih" if action is tied else "_hh") in name)
    if action in PREPARATIONS:
        ours, torchs = after(PREPARATIONS[action], name, ours, torchs)
    if used:
        assert_current(which, ours, torchs)
    assert ACTIONS[action](torchs, name)
    ours, torchs = after(action, name, ours, torchs)
    assert_current(which, ours, torchs)


drawn_actions = st.lists(
    st.tuples(st.sampled_from(list(ACTIONS)), st.integers(0, 9)), min_size=2, max_size=12
)


@given(actions=drawn_actions)
@each_module
def test_sequences_of_actions_against_the_twin(which, actions):
    ours, torchs = pair(which)
    for action, index in actions:
        name = torchs.names[index % len(torchs.names)]
        ours, torchs = after(action, name, ours, torchs)
        assert_current(which, ours, torchs)


@each_module
def test_a_layer_both_pruned_and_parametrized_is_copied_after_use(which):
    ours, torchs = pair(which)
    for action, name in ((pruned, torchs.names[0]), (normed, torchs.names[1])):
        ours, torchs = after(action, name, ours, torchs)
    assert_current(which, ours, torchs)
    ours, torchs = after(deep_copy, "", ours, torchs)
    assert_current(which, ours, torchs)


@each_module
def test_a_weight_changed_before_backward_is_an_error(which):
    ours, torchs = pair(which)
    given = inputs(which)
    # Writes that move no version counter (a fused Adam's among them) torch cannot see either.
    for name in torchs.names:
        for change in (in_place, in_inference_mode, by_sgd, by_foreach_adamw, by_loading):
            loss = run(ours, given).sum()
            change(ours, name)
            change(torchs, name)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
    assert_current(which, ours, torchs)


@each_module
def test_a_weight_replaced_before_backward_is_none(which):
    ours, torchs = pair(which)
    given = inputs(which)
    for name in torchs.names:
        leaves = list(ours.parameters())
        expected = torch.autograd.grad(run(ours, given).sum(), leaves)
        loss = run(ours, given).sum()
        new_parameter(ours, name)
        new_parameter(torchs, name)
        assert_same_bits(torch.autograd.grad(loss, leaves), expected)
    assert_current(which, ours, torchs)


@each_module
def test_replicas_compute_with_the_weights_and_give_them_gradients(which):
    # What DataParallel makes: replicas whose weights are tensors, computed from the parameters.
    ours, torchs = pair(which)
    given, grads = inputs(which), []
    for module in (ours, torchs):
        replica = module._replicate_for_data_parallel()
        for name, parameter in module.named_parameters():
            setattr(replica, name, FACTOR * parameter)
        assert not list(replica.parameters())
        leaves = list(module.parameters())
        grads.append(torch.autograd.grad(run(replica, given).square().sum(), leaves))
    torch.testing.assert_close(*grads)
    assert_current(which, ours, torchs)


@each_module
def test_initialisation_is_skipped_where_torch_skips_it(which):
    name, options = MODULES[which]

    def skip(library):
        return nn.utils.skip_init(getattr(library, name), INPUT, HIDDEN, **options)

    refused = outcome(lambda: skip(nn))
    assert outcome(lambda: skip(rnnpack)) == refused
    if refused is None:
        ours = skip(rnnpack)
        ours.reset_parameters()
        assert_current(which, ours, Twin(ours, make(which, nn)))


@each_module
def test_checkpoints_of_torch_are_loaded_and_given_back(which):
    ours, torchs = make(which), make(which, nn)
    for assign in (False, True):
        run(ours, inputs(which)).sum().backward()
        ours.load_state_dict(reversed_state(torchs), assign=assign)
        assert_current(which, ours, Twin(ours, make(which, nn)))
        in_place(ours, next(iter(ours._parameters)))
        torchs.load_state_dict(ours.state_dict())
        assert_current(which, ours, Twin(torchs, make(which, nn)))


@each_module
def test_two_threads_call_one_module(which):
    ours, _ = pair(which)
    given, found = inputs(which), []
    expected = [results(ours, given, torch.float32, training) for training in (False, True)]

    def work(training):
        for _ in range(20):
            found.append((training, results(ours, given, torch.float32, training)))

    threads = [threading.Thread(target=work, args=(training,)) for training in (False, True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40
    for training, result in found:
        assert_same_bits(list(result.values()), list(expected[training].values()))


def work_in_another_process(modules, given, outputs):
    torch.set_num_threads(1)
    with torch.no_grad():
        for module, tensors, output in zip(modules, given, outputs, strict=True):
            output.copy_(run(module, tensors))
            for parameter in module.parameters():
                parameter.mul_(FACTOR)


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_a_worker_shares_the_weights(way):
    pairs = [pair(which) for which in MODULES]
    given = [inputs(which) for which in MODULES]
    modules = [ours.share_memory() for ours, _ in pairs]
    modules += [packed(ours) for ours in modules]
    with torch.no_grad():
        expected = [run(*both) for both in zip(modules, given * 2, strict=True)]
    outputs = [torch.zeros_like(output).share_memory_() for output in expected]
    worker = torch.multiprocessing.get_context(way).Process(
        target=work_in_another_process, args=(modules, given * 2, outputs)
    )
    worker.start()
    worker.join(60)
    if worker.is_alive():
        worker.kill()
        pytest.fail("the worker hangs")
    assert worker.exitcode == 0
    assert_same_bits(outputs, expected)
    for which, (ours, torchs) in zip(MODULES, pairs, strict=True):
        for name in torchs.names:
            in_place(torchs, name)
        assert_current(which, ours, torchs)


# --- Packed: a snapshot ---------------------------------------------------------------------------


def packed(module, **options):
    copied = copy.deepcopy(module)
    assert rnnpack.pack(copied, **options).swapped == [""]
    return copied


def packed_averaged(module, name):
    model = torch.optim.swa_utils.AveragedModel(module)
    model.update_parameters(module)
    return model.module


def packed_called_with_its_buffers(module, name):
    given = {key: buffer.clone() for key, buffer in module.named_buffers()}
    torch.func.functional_call(module, given, (torch.ones(3, INPUT),))


def packed_through_meta(module, name):
    state = {key: value.clone() for key, value in module.state_dict().items()}
    module.to("meta").to_empty(device="cpu")
    for buffer in module.buffers():
        buffer.zero_()  # to_empty may find the old bytes
    module.load_state_dict(state)


def packed_reverted_and_converted(module, name):
    assert "snapshot" in rnnpack.revert(module).left[""]
    assert "snapshot" in rnnpack.convert(module).left[""]


PACKED_ACTIONS = (
    to_evaluation,
    to_training,
    to_double,
    to_float,
    to_bfloat16,
    to_half,
    shared,
    deep_copy,
    by_pickle,
    by_torch_save,
    packed_averaged,
    packed_called_with_its_buffers,
    packed_through_meta,
    packed_reverted_and_converted,
)


@each_module
def test_a_packed_module_stays_the_snapshot_that_it_says_it_is(which):
    module = packed(make(which))
    given = inputs(which)
    with torch.no_grad():
        expected = run(module, given)
        for action in PACKED_ACTIONS:
            module = action(module, "") or module
            assert_same_bits(run(module, given), expected)
            assert type(module).__name__ == f"Packed{MODULES[which][0]}"
            assert repr(module).startswith("Packed")
            assert rnnpack.explain(module, given[0]).kind == "packed"
            assert not list(module.parameters())
    with pytest.raises(RuntimeError, match="snapshot of its weights"):
        run(module, [tensor.requires_grad_() for tensor in given])


@each_module
def test_a_packed_module_does_not_follow_the_parameters_that_it_keeps(which):
    module = packed(make(which), keep=True)
    given = inputs(which)
    with torch.no_grad():
        expected = run(module, given)
        for action in (in_place, through_data, new_storage, new_parameter):
            action(module, next(iter(module._parameters)))
            assert_same_bits(run(module, given), expected)
    assert rnnpack.explain(module, given[0]).kind == "packed"


@each_module
def test_a_packed_module_refuses_weights_that_are_not_packed(which):
    layer = make(which)
    module = packed(layer)
    given = inputs(which)
    with torch.no_grad():
        expected = run(module, given)
    with pytest.raises(RuntimeError, match=r"Missing key.*packed"):
        module.load_state_dict(layer.state_dict())
    with torch.no_grad():
        assert_same_bits(run(module, given), expected)


@each_module
def test_packing_takes_the_weights_of_that_moment(which):
    ours, torchs = pair(which)
    given = inputs(which)
    for action in (through_data, pruned, in_place, toggled, by_sgd, new_storage):
        ours, torchs = after(action, torchs.names[1], ours, torchs)
        with torch.no_grad():
            torch.testing.assert_close(run(packed(ours), given), run(torchs, given))
