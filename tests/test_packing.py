"""Packed layers: the same numbers, saved and loaded, and no way to train or to damage them."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import rnnpack
from helpers import GRU, KINDS, LSTM, RNN_TANH, assert_same_bits, call

each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
CELLS = [
    (nn.LSTMCell, rnnpack.LSTMCell),
    (nn.GRUCell, rnnpack.GRUCell),
    (nn.RNNCell, rnnpack.RNNCell),
]


def packed(layer, **options):
    """A packed copy of a layer."""
    twin = copy.deepcopy(layer)
    rnnpack.pack(twin, **options)
    return twin


@each_kind
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"bias": False}], ids=str)
def test_gives_the_bits_of_the_layer_and_holds_nothing_twice(kind, options):
    layer, input = kind.make(7, 33, 2, **options), torch.randn(21, 5, 7)
    twin = packed(layer)
    with torch.no_grad():
        assert_same_bits(call(twin, input), call(layer, input))
    assert not list(twin.parameters())
    assert rnnpack.explain(twin, input).kind == "packed"
    assert isinstance(twin, kind.ours)


def test_gives_the_same_bits_for_any_batch_and_any_chunks():
    twin, input = packed(LSTM.make(7, 33, 2, proj_size=9)), torch.randn(21, 5, 7)
    output, _ = twin(input)
    rows = [twin(input[:, row : row + 1])[0] for row in range(5)]
    assert_same_bits(torch.cat(rows, 1), output)
    state, parts = None, []
    for step in input.split(1):
        part, state = twin(step, state)
        parts.append(part)
    assert_same_bits(torch.cat(parts), output)


@each_kind
def test_takes_every_form_of_input(kind):
    layer, input = kind.make(5, 9, batch_first=True), torch.randn(3, 6, 5)
    twin, lengths = packed(layer), torch.tensor([4, 6, 1])
    sequence = pack_padded_sequence(input, lengths, batch_first=True, enforce_sorted=False)
    with torch.no_grad():
        torch.testing.assert_close(call(twin, input[0]), call(layer, input[0]))
        torch.testing.assert_close(
            twin(input, lengths=lengths)[0], layer(input, lengths=lengths)[0]
        )
        ours, theirs = twin(sequence)[0], layer(sequence)[0]
        torch.testing.assert_close(pad_packed_sequence(ours), pad_packed_sequence(theirs))
        with torch.autocast("cpu", torch.bfloat16):
            assert twin(input)[0].dtype == torch.bfloat16


@pytest.mark.parametrize(("torchs", "ours"), CELLS)
def test_packs_cells(torchs, ours):
    model = nn.ModuleList([torchs(5, 9), ours(5, 9)])
    inputs = torch.randn(3, 5)
    before = [cell(inputs) for cell in model]
    report = rnnpack.pack(model)
    assert report.swapped == ["0", "1"]
    torch.testing.assert_close([cell(inputs) for cell in model], before)


def test_packs_the_layers_of_torch_inside_a_model():
    model = nn.Sequential(nn.Linear(4, 4), nn.ModuleDict({"a": nn.GRU(4, 5)}), nn.LSTM(4, 5))
    report = rnnpack.pack(model)
    assert report.swapped == ["1.a", "2"]
    assert report.model is model


@each_kind
def test_is_packed_once(kind, monkeypatch):
    layer = kind.make(5, 9, 2)
    calls = []
    native = rnnpack.packing.pack_weights

    def counting(*arguments):
        calls.append(arguments)
        return native(*arguments)

    monkeypatch.setattr(rnnpack.packing, "pack_weights", counting)
    monkeypatch.setattr(rnnpack.layers, "pack_weights", counting)
    rnnpack.pack(layer)
    stream = layer.stream()
    for length in (1, 7, 30):
        layer(torch.randn(length, 2, 5))
        stream.run(torch.randn(length, 1, 5))
    assert len(calls) == 1


@each_kind
def test_saves_and_loads(kind):
    twin, input = packed(kind.make(5, 9, 2, bidirectional=True)), torch.randn(4, 2, 5)
    buffer = io.BytesIO()
    torch.save(twin.state_dict(), buffer)
    buffer.seek(0)
    other = packed(kind.make(5, 9, 2, bidirectional=True))
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert_same_bits(call(other, input), call(twin, input))
    for again in (copy.deepcopy(twin), pickle.loads(pickle.dumps(twin))):
        assert_same_bits(call(again, input), call(twin, input))


def test_saves_and_loads_by_safetensors(tmp_path):
    from safetensors.torch import load_file, save_file

    twin, input = packed(LSTM.make(5, 9, proj_size=3)), torch.randn(4, 2, 5)
    save_file(twin.state_dict(), tmp_path / "file")
    other = packed(LSTM.make(5, 9, proj_size=3))
    other.load_state_dict(load_file(tmp_path / "file"), assign=True)
    assert_same_bits(other(input)[0], twin(input)[0])


def damaged(tensor):
    tensor = tensor.clone()
    tensor[777] ^= 1
    return tensor


def swapped(tensor):
    """Two words have changed places: their sum is the same."""
    tensor = tensor.clone()
    words = tensor.view(torch.int32)
    other = int(words[40:].ne(words[39]).nonzero()[0]) + 40
    words[[39, other]] = words[[other, 39]]
    return tensor


def of_another_dtype(tensor):
    """The header of bfloat16 panels says float16, which takes as many bytes."""
    layer = rnnpack.pack(LSTM.make(6, 8), dtype=torch.bfloat16).model
    words = layer.packed_l0.clone()
    assert words[16] == 1
    words[16] = 2
    return words


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (damaged, "checksum"),
        (swapped, "checksum"),
        (of_another_dtype, "checksum"),
        (lambda tensor: tensor[:-4], "damaged"),
        (lambda tensor: torch.cat([tensor, tensor]), "damaged"),
        (torch.zeros_like, "not packed weights"),
        (lambda tensor: torch.zeros(3, dtype=torch.uint8), "dense tensor of bytes"),
        (lambda tensor: tensor.float(), "uint8"),
        (lambda tensor: packed(LSTM.make(6, 9)).packed_l0, "this layer has"),
        (lambda tensor: packed(GRU.make(5, 9)).packed_l0, "cell"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused(change, words):
    twin, input = packed(LSTM.make(5, 9)), torch.randn(4, 2, 5)
    before = twin(input)[0]
    with pytest.raises(RuntimeError, match=words):
        twin.load_state_dict({"packed_l0": change(twin.packed_l0)})
    assert_same_bits(twin(input)[0], before)


def test_a_second_dtype_is_refused():
    model = nn.Sequential(LSTM.make(5, 9))
    rnnpack.pack(model)
    with pytest.raises(TypeError, match="0 is packed already"):
        rnnpack.pack(model, dtype=torch.bfloat16)
    assert rnnpack.pack(model).model is model


def test_layers_packed_in_different_dtypes_are_refused():
    """Both take as many bytes, so a state dict of one fits the other."""
    low, other = (
        rnnpack.pack(LSTM.make(8, 8, 2), dtype=dtype).model
        for dtype in (torch.bfloat16, torch.float16)
    )
    low.load_state_dict({"packed_l1": other.packed_l1}, strict=False)
    for run in (lambda: low(torch.randn(20, 3, 8)), low.stream):
        with pytest.raises(RuntimeError, match="another dtype than those of layer 0"):
            run()


def test_a_packed_layer_without_memory_is_refused():
    with pytest.raises(TypeError, match="on meta"):
        packed(LSTM.make(5, 9)).to("meta").stream()


@each_kind
def test_refuses_to_train(kind):
    twin, input = packed(kind.make(5, 9)), torch.randn(4, 2, 5, requires_grad=True)
    with pytest.raises(RuntimeError, match="cannot be trained"):
        twin(input)
    twin(input.detach())
    with torch.no_grad():
        twin(input)


def test_keep_keeps_the_parameters():
    layer = LSTM.make(5, 9)
    names = {name for name, _ in layer.named_parameters()}
    rnnpack.pack(layer, keep=True)
    assert {name for name, _ in layer.named_parameters()} == names
    assert "packed_l0" in layer.state_dict()


@each_kind
def test_computed_weights_are_packed_as_they_are_now(kind):
    input = torch.randn(6, 2, 5)
    pruned = kind.make(5, 9)
    prune.random_unstructured(pruned, "weight_ih_l0", 0.3)
    with torch.no_grad():
        pruned.weight_ih_l0_orig.mul_(3)
    normed = parametrizations.weight_norm(kind.make(5, 9), "weight_hh_l0")
    for layer in (pruned, normed):
        twin = packed(layer)
        assert not list(twin.parameters())
        with torch.no_grad():
            torch.testing.assert_close(call(twin, input), call(layer, input))


def test_nothing_changes_where_one_layer_cannot_be_packed():
    model = nn.Sequential(nn.LSTM(4, 5), nn.GRU(4, 5).double())
    with pytest.raises(TypeError, match="float32"):
        rnnpack.pack(model)
    assert type(model[0]) is nn.LSTM
    assert type(model[1]) is nn.GRU
    assert len(list(model.parameters())) == 8
    model[0](torch.randn(3, 2, 4))

    pruned = LSTM.make(4, 5)
    prune.identity(pruned, "weight_ih_l0")
    with pytest.raises(TypeError, match="keep=True"):
        rnnpack.pack(pruned, keep=True)
    assert type(pruned) is rnnpack.LSTM


def test_messages_speak_of_the_input():
    twin = packed(RNN_TANH.make(5, 9))
    with pytest.raises(RuntimeError, match="Expected 5, got 6"):
        twin(torch.zeros(3, 2, 6))
    with pytest.raises(ValueError, match="float32"):
        twin(torch.zeros(3, 2, 5, dtype=torch.float64))
    report = rnnpack.revert(twin)
    assert "packed" in report.left[""]
