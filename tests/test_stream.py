"""Streams: any chunking gives the same bits, states belong to the stream, memory stays flat."""

import copy
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import rnnpack
from helpers import GRU, KINDS, LSTM, assert_same_bits, resident_growth

each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def in_chunks(stream, input, sizes):
    """Feed a sequence in chunks; a chunk of one goes through `step`."""
    outputs, first = [], 0
    for size in sizes:
        chunk = input[first : first + size]
        outputs.append(stream.step(chunk[0]).unsqueeze(0) if size == 1 else stream.run(chunk))
        first += size
    return torch.cat(outputs)


@each_kind
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("hidden", [1, 17, 64, 150])
def test_any_chunks_give_the_bits_of_the_whole(kind, layers, hidden):
    layer, input = kind.make(7, hidden, layers), torch.randn(43, 3, 7)
    packed = copy.deepcopy(layer)
    rnnpack.pack(packed)
    with torch.no_grad():
        whole, state = packed(input)
    for sizes in ([43], [1] * 43, [7, 1, 0, 35], [20, 23]):
        stream = layer.stream(3)
        assert_same_bits(in_chunks(stream, input, sizes), whole)
        assert_same_bits(stream.state, state)


def test_a_projected_layer_streams():
    layer, input = LSTM.make(9, 33, 2, proj_size=17), torch.randn(21, 2, 9)
    with torch.no_grad():
        expected, state = layer(input)
    stream = layer.stream(2)
    assert_same_bits(in_chunks(stream, input, [1, 5, 15]), expected)
    assert_same_bits(stream.state, state)


@each_kind
def test_two_streams_of_one_layer_do_not_meet(kind):
    layer, first, second = kind.make(5, 9), torch.randn(11, 1, 5), torch.randn(11, 1, 5)
    streams = layer.stream(), layer.stream()
    outputs = [[], []]
    for step in range(11):
        for stream, input, output in zip(streams, (first, second), outputs, strict=True):
            output.append(stream.step(input[step]))
    assert_same_bits(torch.stack(outputs[0]), layer.stream().run(first))
    assert_same_bits(torch.stack(outputs[1]), layer.stream().run(second))


def test_streams_run_in_several_threads():
    layer, inputs = LSTM.make(9, 33, 2), torch.randn(6, 40, 2, 9)
    expected = [layer.stream(2).run(input) for input in inputs]
    outputs = [None] * len(inputs)

    def work(index):
        outputs[index] = in_chunks(layer.stream(2), inputs[index], [1] * 20 + [20])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_same_bits(outputs, expected)


@each_kind
def test_the_state_is_read_set_and_reset(kind):
    layer, input = kind.make(5, 9, 2), torch.randn(13, 3, 5)
    stream = layer.stream(3)
    stream.run(input[:6])
    state = stream.state
    rest = stream.run(input[6:])
    stream.state = state
    assert_same_bits(stream.run(input[6:]), rest)
    stream.reset()
    again = stream.run(input)
    assert_same_bits(again, layer.stream(3).run(input))

    stream.reset([0, 2])
    kept = [tensor[:, 1] for tensor in states(stream)]
    assert all(tensor[:, [0, 2]].eq(0).all() for tensor in states(stream))
    assert all(tensor.ne(0).any() for tensor in kept)
    stream.reset(torch.tensor([False, True, False]))
    assert all(tensor.eq(0).all() for tensor in states(stream))


def states(stream):
    return stream.state if isinstance(stream.state, tuple) else (stream.state,)


def test_a_stream_is_a_snapshot_of_the_current_weights():
    layer, input = GRU.make(5, 9), torch.randn(7, 1, 5)
    prune.l1_unstructured(layer, "weight_hh_l0", 0.5)
    with torch.no_grad():
        layer.weight_hh_l0_orig.mul_(3)  # the pruned weight itself is computed by the next call
    stream = layer.stream()
    with torch.no_grad():
        expected = layer(input)[0]
        layer.weight_ih_l0.zero_()
    torch.testing.assert_close(stream.run(input), expected)


def test_steps_are_not_recorded():
    layer, input = LSTM.make(5, 9), torch.randn(2, 5, requires_grad=True)
    output = layer.stream(2).step(input)
    assert not output.requires_grad


def test_the_default_dtype_does_not_matter():
    layer, input = LSTM.make(5, 9), torch.randn(4, 1, 5)
    expected = layer.stream().run(input)
    torch.set_default_dtype(torch.float64)
    try:
        assert_same_bits(layer.stream().run(input), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_strided_input_is_read_right():
    layer, base = LSTM.make(5, 9), torch.randn(6, 2, 10)
    expected = layer.stream(2).run(base[..., ::2].contiguous())
    assert_same_bits(in_chunks(layer.stream(2), base[..., ::2], [1] * 6), expected)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda layer: layer.stream(0), ValueError, "at least 1"),
        (lambda layer: LSTM.make(4, 5, bidirectional=True).stream(), ValueError, "bidirectional"),
        (lambda layer: layer.double().stream(), TypeError, "float32"),
        (lambda layer: layer.stream(2).step(torch.zeros(1, 4)), RuntimeError, "shape"),
        (lambda layer: layer.stream().step(torch.zeros(4)), RuntimeError, "shape"),
        (lambda layer: layer.stream().run(torch.zeros(())), RuntimeError, "shape"),
        (lambda layer: layer.stream().step(torch.zeros(1, 4).double()), TypeError, "float32"),
        (lambda layer: layer.stream().step(torch.zeros(1, 4, device="meta")), TypeError, "CPU"),
        (
            lambda layer: setattr(layer.stream(), "state", torch.zeros(1, 1, 5)),
            RuntimeError,
            "shape",
        ),
        (lambda layer: setattr(layer.stream(), "state", None), TypeError, "Tensors"),
        (lambda layer: copy.deepcopy(layer.stream()), TypeError, "copied"),
    ],
)
def test_what_a_stream_refuses(call, error, words):
    with pytest.raises(error, match=words):
        call(LSTM.make(4, 5))


@pytest.mark.parametrize("over", ["steps", "lengths"])
def test_memory_stays_flat(over):
    assert max(resident_growth(over)) < 2**20


def test_modules_around_a_stream_keep_working():
    model = nn.Sequential(nn.Linear(4, 8), LSTM.make(8, 9))
    stream = model[1].stream()
    stream.step(torch.randn(1, 8))
    assert copy.deepcopy(model)(torch.randn(3, 2, 4))[0].shape == (3, 2, 9)


TOO_LITTLE_MEMORY = """
import resource, torch, rnnpack
torch.set_num_threads(1)
layer, steps = rnnpack.LSTM(512, 512, 2), torch.randn(4, 1, 512)
stream, other, refused = layer.stream(), layer.stream(), 0
chunk = torch.randn(4000, 1, 512)
stream.step(steps[0]), other.step(steps[0])
for slack in (2, 9, 20):  # MiB beyond what is mapped
    with open("/proc/self/statm") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + (slack << 20), -1))
    try:
        stream.run(chunk)
        done = True
    except (MemoryError, RuntimeError):
        done = False
    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    if done:
        other.run(chunk)
    refused += not done
    for step in steps:
        assert torch.equal(stream.step(step), other.step(step))
assert refused > 0
"""


def test_a_stream_goes_on_after_a_chunk_too_large_for_memory():
    subprocess.run([sys.executable, "-c", TOO_LITTLE_MEMORY], check=True, timeout=120)
