"""On a CUDA device calls go to torch's kernels, weights cast by us in an autocast region."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import rnnpack
from helpers import KINDS, LSTM, assert_same_bits, call, state_tuple, twin

pytestmark = [
    pytest.mark.cuda,
    # cuDNN gathers weights that do not lie in one piece of memory, and says so once.
    pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk"),
]

DTYPES = (torch.bfloat16, torch.float16)


def layers():
    for kind in KINDS:
        yield kind.make(17, 33, 2, bidirectional=True, device="cuda")
    yield LSTM.make(17, 33, 2, proj_size=9, device="cuda")


def test_float32_is_torchs_own():
    for layer in layers():
        input = torch.randn(9, 3, 17, device="cuda")
        assert rnnpack.explain(layer, input).kind == "torch"
        torch.testing.assert_close(call(layer, input), call(twin(layer), input))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_autocast_gives_the_dtype_that_was_asked_for(dtype, training):
    for layer in layers():
        input = torch.randn(9, 3, 17, device="cuda")
        with torch.set_grad_enabled(training):
            expected, _ = call(layer, input)
            with torch.autocast("cuda", dtype):
                output, states = call(layer, input)
        assert {output.dtype, *(state.dtype for state in states)} == {dtype}
        assert (output.float() - expected).abs().max() < 64 * torch.finfo(dtype).eps
        if training:
            output.float().square().sum().backward()
            assert {p.grad.dtype for p in layer.parameters()} == {torch.float32}
            assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell", "RNNCell"])
def test_cells_under_autocast(name, dtype):
    cell = getattr(rnnpack, name)(7, 17, device="cuda")
    with torch.autocast("cuda", dtype):
        states = state_tuple(cell(torch.randn(3, 7, device="cuda")))
    assert {state.dtype for state in states} == {dtype}


def test_pruned_layers_train_under_autocast_and_follow_their_weights():
    for layer in layers():
        for name in ("weight_ih_l0", "weight_hh_l0"):
            prune.l1_unstructured(layer, name, 0.2)
        optimizer = torch.optim.Adam(layer.parameters())
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(5):
            with torch.autocast("cuda", torch.float16):
                loss = call(layer, torch.randn(9, 3, 17, device="cuda"))[0].float().square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            assert layer.weight_hh_l0_orig.grad.isfinite().all()
        input = torch.randn(9, 3, 17, device="cuda")
        with torch.no_grad():
            assert_same_bits(call(copy.deepcopy(layer), input), call(layer, input))


def test_a_layer_moves_to_the_device_and_back():
    layer = nn.Sequential(rnnpack.GRU(5, 17))
    input = torch.randn(20, 3, 5)
    with torch.no_grad():
        expected = layer(input)
        there = layer.cuda()(input.cuda())
        torch.testing.assert_close(there[0].cpu(), expected[0], atol=1e-5, rtol=1e-5)
        assert_same_bits(layer.cpu()(input), expected)
