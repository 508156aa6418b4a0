"""A layer between its calls: weights change by any route, modules are copied, saved, moved."""

import copy
import io
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import rnnpack
from helpers import KINDS, LSTM, assert_same_bits, call, stack, twin

each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
each_mode = pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])


def in_place(layer):
    with torch.no_grad():
        layer.weight_hh_l0.mul_(1.5)


def through_data(layer):
    # Moves no version counter: a copy that is kept until a counter moves would be stale here.
    layer.weight_hh_l0.data.mul_(1.5)


def through_numpy(layer):
    values = layer.weight_hh_l0.detach().numpy()
    np.multiply(values, 1.5, out=values)


def new_storage(layer):
    layer.weight_hh_l0.data = 1.5 * layer.weight_hh_l0.data


def new_parameter(layer):
    layer.weight_hh_l0 = nn.Parameter(1.5 * layer.weight_hh_l0.detach())


def through_the_dict(layer):
    layer._parameters["weight_hh_l0"] = nn.Parameter(1.5 * layer.weight_hh_l0.detach())


def by_loading(layer):
    layer.load_state_dict({name: 1.5 * value for name, value in layer.state_dict().items()})


def by_assigning(layer):
    state = {name: 1.5 * value for name, value in layer.state_dict().items()}
    layer.load_state_dict(state, assign=True)


def by_an_optimizer(layer):
    for parameter in layer.parameters():
        parameter.grad = parameter.detach().clone()
    torch.optim.SGD(layer.parameters(), lr=0.5).step()


def by_a_fused_optimizer(layer):
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.Adam(layer.parameters(), lr=0.1, fused=True).step()


def from_a_vector(layer):
    vector = nn.utils.parameters_to_vector(layer.parameters())
    nn.utils.vector_to_parameters(1.5 * vector.detach(), layer.parameters())


def by_resetting(layer):
    layer.reset_parameters()


def in_inference_mode(layer):
    with torch.inference_mode():
        layer.weight_hh_l0.mul_(1.5)


ROUTES = (
    in_place,
    through_data,
    through_numpy,
    new_storage,
    new_parameter,
    through_the_dict,
    by_loading,
    by_assigning,
    by_an_optimizer,
    by_a_fused_optimizer,
    from_a_vector,
    by_resetting,
    in_inference_mode,
)


@each_mode
@pytest.mark.parametrize("seq_len", [1, 50])
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.__name__)
@each_kind
def test_a_changed_weight_is_seen_by_the_next_call(kind, route, seq_len, training):
    ours, input = kind.make(9, 17), torch.randn(seq_len, 8, 9)
    with torch.set_grad_enabled(training):
        hx = tuple(torch.randn(1, 8, 17) for _ in range(kind.states))
        before = call(ours, input, hx)[0].detach()
        with torch.enable_grad():
            route(ours)
        after = call(ours, input, hx)[0].detach()
    assert after.ne(before).any()
    exact = {name: p.detach().double() for name, p in ours.named_parameters()}
    truth = stack(ours, exact, input.double(), tuple(state.double() for state in hx))[0]
    torch.testing.assert_close(after, truth.float())


@each_kind
def test_a_call_changes_nothing_about_the_parameters(kind):
    ours = kind.make(3, 7, 2, bidirectional=True)

    def facts():
        return {
            name: (id(p), p.shape, p.stride(), p.dtype, p.data_ptr(), p._version, p.requires_grad)
            for name, p in ours.named_parameters()
        }

    before, state = facts(), {name: v.clone() for name, v in ours.state_dict().items()}
    for training in (True, False):
        ours.train(training)
        ours(torch.randn(6, 3, 3))[0].sum().backward()
        ours.flatten_parameters()
        with torch.no_grad():
            ours(torch.randn(6, 3, 3))
    assert facts() == before
    assert_same_bits(list(ours.state_dict().values()), list(state.values()))
    assert not list(ours.buffers())


def saved_and_loaded(layer):
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda layer: pickle.loads(pickle.dumps(layer)),
    "torch.save": saved_and_loaded,
}


@each_mode
@pytest.mark.parametrize("way", COPIES)
@each_kind
def test_a_copy_after_use_is_equal_and_shares_nothing(kind, way, training):
    ours = kind.make(4, 7, 2, bidirectional=True).train(training)
    input = torch.randn(6, 3, 4)
    output = ours(input)[0]
    output.sum().backward()
    with torch.no_grad():
        ours(input)
    copied = COPIES[way](ours)
    assert type(copied) is type(ours) and copied.training == training
    assert_same_bits(copied(input)[0], output)
    assert list(copied.state_dict()) == list(ours.state_dict())
    with torch.no_grad():
        ours.weight_hh_l0.add_(0.1)
    assert copied(input)[0].ne(ours(input)[0]).any()
    assert_same_bits(copied(input)[0], output)
    copied(input)[0].sum().backward()


@each_kind
def test_a_shallow_copy_shares_the_parameters(kind):
    ours, input = kind.make(4, 7), torch.randn(6, 3, 4)
    copied = copy.copy(ours)
    with torch.no_grad():
        ours.weight_hh_l0.add_(0.1)
    assert_same_bits(copied(input)[0], ours(input)[0])


@each_kind
def test_shared_memory_and_apply(kind):
    ours, input = kind.make(4, 7), torch.randn(6, 3, 4)
    expected = ours(input)[0]
    ours.share_memory()
    assert_same_bits(ours(input)[0], expected)
    ours.apply(lambda module: [nn.init.zeros_(p) for p in module.parameters()])
    assert ours(input)[0].count_nonzero() == 0


@each_kind
def test_inference_mode_and_its_tensors(kind):
    ours, input = kind.make(4, 7, 2), torch.randn(6, 3, 4)
    with torch.no_grad():
        expected = ours(input)[0]
    with torch.inference_mode():
        inside = ours(input.clone())[0]
    assert inside.is_inference() and torch.equal(inside, expected)
    with torch.no_grad():
        assert_same_bits(ours(inside.new_tensor(input.numpy()))[0], expected)


@each_kind
def test_functional_call_uses_what_it_is_given_and_leaves_no_trace(kind):
    ours, input = kind.make(3, 7, 2), torch.randn(6, 3, 3)
    before = ours(input)[0]
    zeros = {name: torch.zeros_like(p) for name, p in ours.named_parameters()}
    assert torch.func.functional_call(ours, zeros, (input,))[0].count_nonzero() == 0
    assert_same_bits(ours(input)[0], before)
    detached = {name: p.detach() for name, p in ours.named_parameters()}
    grads = torch.func.grad(
        lambda p: torch.func.functional_call(ours, p, (input,))[0].pow(2).sum()
    )(detached)
    ours(input)[0].pow(2).sum().backward()
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(grads[name], parameter.grad)


@each_kind
def test_two_layers_that_share_a_parameter(kind):
    first, second = kind.make(4, 7), kind.make(4, 7)
    second.weight_ih_l0 = first.weight_ih_l0
    input = torch.randn(6, 3, 4)
    second(input)
    with torch.no_grad():
        first.weight_ih_l0.mul_(2)
    torch.testing.assert_close(second(input)[0], twin(second)(input)[0])


@each_kind
def test_a_subclass_may_extend_the_constructor_and_forward(kind):
    class Residual(kind.ours):
        def __init__(self, size):
            super().__init__(size, size, **dict(kind.options))
            self.gain = nn.Parameter(torch.ones(size))

        def forward(self, input, hx=None):
            output, states = super().forward(input, hx)
            return input + self.gain * output, states

    layer, input = Residual(5), torch.randn(6, 3, 5)
    plain = kind.make(5, 5)
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if k != "gain"})
    torch.testing.assert_close(layer(input)[0], input + plain(input)[0])
    layer(input)[0].sum().backward()
    assert layer.gain.grad is not None
    assert_same_bits(copy.deepcopy(layer)(input)[0], layer(input)[0])


def train_in_parallel(kind, as_view, store):
    """Run in a process of its own.

    It ends without taking the process group down: torch may deadlock over that.
    """
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    ours = kind.make(4, 7, 2, bidirectional=True)
    alone = copy.deepcopy(ours)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel = nn.parallel.DistributedDataParallel(ours, gradient_as_bucket_view=as_view)
        hx = None
        for _ in range(3):
            first, second = torch.randn(3, 3, 4), torch.randn(6, 3, 4)
            grads = []
            for layer in (parallel, alone):
                layer.zero_grad()
                output, states = call(layer, first, hx)
                (output.sum() + call(layer, second)[0].sum()).backward()
                grads.append([p.grad.clone() for p in layer.parameters()])
            torch.testing.assert_close(*grads)
            assert all(p.grad.stride() == p.stride() for p in ours.parameters())
            hx = tuple(state.detach() for state in states)
    os._exit(DONE)


DONE = 17  # an exit status that no crash has


@pytest.mark.parametrize("as_view", [False, True], ids=["", "gradient_as_bucket_view"])
def test_distributed_data_parallel_without_warnings(as_view, tmp_path):
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=train_in_parallel, args=(kind, as_view, tmp_path / str(kind)))
        for kind in KINDS
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
    assert [process.exitcode for process in processes] == [DONE] * len(KINDS)


def test_one_openmp_runtime_serves_torch_and_the_native_library():
    rnnpack.LSTM(9, 17)(torch.randn(6, 3, 9))
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "/" in line}
    runtimes = {p for p in paths if any(n in p for n in ("libgomp", "libiomp", "libomp"))}
    assert len(runtimes) <= 1, runtimes


def test_a_layer_made_in_one_thread_runs_in_another():
    ours, input, outputs = LSTM.make(9, 17), torch.randn(6, 3, 9), []
    thread = threading.Thread(target=lambda: outputs.append(ours(input)[0]))
    thread.start()
    thread.join()
    assert_same_bits(outputs[0], ours(input)[0])


@each_kind
def test_a_forked_process_can_run_a_layer_used_before(kind):
    # The parent's team of threads does not exist in the child.
    ours, input = kind.make(9, 33, 2).eval(), torch.randn(50, 9, 9)
    with torch.no_grad():
        expected = ours(input)[0]
        context = torch.multiprocessing.get_context("fork")
        queue = context.SimpleQueue()

        def run():
            torch.set_num_threads(1)
            queue.put(bool(torch.equal(ours(input)[0], expected)))

        child = context.Process(target=run)
        child.start()
        child.join(60)
        if child.is_alive():
            child.kill()
            pytest.fail("the child hangs")
    assert child.exitcode == 0 and queue.get()


FIRST_USED_IN_A_FORK = """
import os, torch, rnnpack
torch.set_num_threads(2)
layer, input = rnnpack.LSTM(64, 128), torch.randn(64, 4, 64)
torch.exp(torch.randn(1 << 20))  # torch starts the team of threads
if (child := os.fork()) == 0:
    with torch.no_grad():
        layer(input)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_process_can_run_a_layer_first():
    subprocess.run([sys.executable, "-c", FIRST_USED_IN_A_FORK], check=True, timeout=120)
