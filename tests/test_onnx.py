"""`torch.onnx.export`: ONNX's own operators, any length and batch, the eager numbers in a runtime.

ONNX Runtime computes in float32 as torch does, so the bound of `helpers` holds for it, too.
"""

from collections import Counter

import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

import rnnpack
import rnnpack.onnx
from helpers import (
    GRU,
    KINDS,
    LSTM,
    RNN_TANH,
    Case,
    assert_as_accurate,
    call,
    joined,
    named,
    rows_of,
    stack,
    state_tuple,
)

ANY = torch.export.Dim.DYNAMIC
TRACED = (6, 4)  # length and batch of the example; no test runs these
SHAPES = ((1, 3), (11, 1), (2, 7), (25, 5))
each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


class Model(nn.Module):
    """A layer or cell alone; its states come and go as a tuple."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, input, hx=None, lengths=None):
        if isinstance(self.layer, nn.RNNBase):
            output, states = call(self.layer, input, hx, lengths=lengths)
            return output, *states
        return state_tuple(self.layer(input, hx if hx is None or len(hx) > 1 else hx[0]))


class Exported:
    """An exported model, checked, and ready to run in ONNX Runtime."""

    def __init__(self, model, args=(), dims=None, **options):
        exported = torch.onnx.export(
            model, args, dynamo=True, dynamic_shapes=dims, verbose=False, **options
        )
        self.proto = exported.model_proto
        onnx.checker.check_model(self.proto, full_check=True)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            self.proto.SerializeToString(), settings, providers=["CPUExecutionProvider"]
        )

    def __call__(self, *args):
        given = [a for a in torch.utils._pytree.tree_leaves(args) if a is not None]
        names = [value.name for value in self.session.get_inputs()]
        feed = {name: a.numpy() for name, a in zip(names, given, strict=True)}
        return [torch.from_numpy(value) for value in self.session.run(None, feed)]

    def recurrent(self):
        """How many nodes there are of each kind that recurs."""
        kinds = Counter(node.op_type for node in self.proto.graph.node)
        return {kind: kinds[kind] for kind in ("LSTM", "GRU", "RNN", "Scan", "Loop") if kinds[kind]}

    def attributes(self, operator):
        """The attributes of the first node of this kind."""
        node = next(node for node in self.proto.graph.node if node.op_type == operator)
        return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def export_case(case, layer, *, with_lengths=False, **options):
    """Export a layer alone, length and batch free."""
    example = Case(**{**vars(case), "seq_len": TRACED[0], "batch": TRACED[1]})
    dtype = next(layer.parameters()).dtype
    args = [example.input(dtype), example.hx(dtype)]
    dims = [{0: ANY, 1: ANY}, None if args[1] is None else tuple({1: ANY} for _ in args[1])]
    if with_lengths:
        args.append(torch.tensor([6, 1, 0, 3]))
        dims.append({0: ANY})
    if args[-1] is None:  # torch.export takes no dimensions for what is left out at the end
        args, dims = args[:-1], dims[:-1]
    return Exported(Model(layer).eval(), tuple(args), tuple(dims), **options)


def torch_by_rows(layer, input, hx, lengths):
    """What torch.nn gives for each row by itself, over its own steps, of a time-major batch."""
    width = (layer.proj_size or layer.hidden_size) * (2 if layer.bidirectional else 1)
    output = input.new_zeros(*input.shape[:2], width)
    finals = []
    for row, length in enumerate(lengths.tolist()):
        initial = rows_of(hx, row)
        if length:
            part, initial = call(layer, input[:length, row : row + 1], initial)
            output[:length, row] = part[:, 0]
        finals.append(initial)
    # A row of no steps keeps its state; without one that is zero.
    some = next(final for final in finals if final is not None)
    finals = [f if f is not None else tuple(map(torch.zeros_like, some)) for f in finals]
    return output, tuple(torch.cat(states, 1) for states in zip(*finals, strict=True))


def assert_accurate(case, exported, layer, torchs, *, with_lengths=False):
    """Run at other lengths and batches than the traced ones, against torch.nn and the truth."""
    sides = []
    dtype = next(layer.parameters()).dtype
    exact = {name: p.detach().double() for name, p in layer.named_parameters()}
    for seq_len, batch in SHAPES:
        drawn = Case(**{**vars(case), "seq_len": seq_len, "batch": batch})
        input, hx = drawn.input(dtype), drawn.hx(dtype)
        lengths = torch.randint(0, seq_len + 1, (batch,)) if with_lengths else None
        if with_lengths:
            lengths[0], lengths[-1] = 0, seq_len
            past = torch.arange(seq_len).unsqueeze(1) >= lengths
            input = input.masked_fill(past.unsqueeze(-1), float("nan"))
        output, *states = exported(input, hx, lengths)
        doubled = None if hx is None else tuple(state.double() for state in hx)
        with torch.no_grad():
            if with_lengths:
                theirs = named(*torch_by_rows(torchs, input, hx, lengths))
            else:
                theirs = named(*call(torchs, input, hx))
            truth = named(*stack(layer, exact, input.double(), doubled, lengths))
        sides.append((named(output, states), theirs, truth))
    assert_as_accurate(*(joined(list(side)) for side in zip(*sides, strict=True)))


# --- Layers ---------------------------------------------------------------------------------------

OPTIONS = (
    dict(num_layers=1, with_hx=False),
    dict(num_layers=2, bidirectional=True),
    dict(num_layers=3, bias=False),
)


@each_kind
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "bidirectional", "no-bias"])
def test_a_layer_is_one_operator(kind, options):
    case = Case(kind, 0, 0, 5, 9, **options)
    layer, torchs = case.pair()
    exported = export_case(case, layer)
    assert exported.recurrent() == {kind.name: case.num_layers}
    attributes = exported.attributes(kind.name)
    assert attributes["hidden_size"] == 9
    assert attributes["direction"] == (b"bidirectional" if case.bidirectional else b"forward")
    assert attributes.get("linear_before_reset") == (1 if kind is GRU else None)
    assert_accurate(case, exported, layer, torchs)


@each_kind
@pytest.mark.parametrize("with_hx", [False, True], ids=["nohx", "hx"])
def test_lengths_are_the_operators(kind, with_hx):
    case = Case(kind, 0, 0, 7, 5, num_layers=2, bidirectional=True, with_hx=with_hx)
    layer, torchs = case.pair()
    exported = export_case(case, layer, with_lengths=True)
    assert exported.recurrent() == {kind.name: 2}
    for node in exported.proto.graph.node:
        if node.op_type == kind.name:
            assert node.input[4], "no sequence_lens"
    assert_accurate(case, exported, layer, torchs, with_lengths=True)


def test_batch_first_unbatched_and_dropout_at_inference():
    layer = rnnpack.GRU(5, 9, 2, batch_first=True, dropout=0.5, bidirectional=True)
    model = Model(layer).eval()
    batched = Exported(model, (torch.randn(4, 6, 5),), ({0: ANY, 1: ANY},))
    unbatched = Exported(model, (torch.randn(6, 5),), ({0: ANY},))
    assert "Dropout" not in {node.op_type for node in batched.proto.graph.node}
    for exported, input in (batched, torch.randn(3, 8, 5)), (unbatched, torch.randn(8, 5)):
        assert exported.recurrent() == {"GRU": 2}
        torch.testing.assert_close(exported(input), [t.detach() for t in model(input)])


def test_the_file_holds_the_weights_once_and_as_they_are_now():
    # Large enough that the exporter leaves the reordering of gates to the runtime.
    layer = rnnpack.LSTM(61, 83, bidirectional=True)
    layer.load_state_dict({name: torch.randn_like(p) / 9 for name, p in layer.state_dict().items()})
    model = Model(layer).eval()
    exported = Exported(model, (torch.randn(6, 4, 61),), ({0: ANY, 1: ANY},))
    input = torch.randn(9, 3, 61)
    torch.testing.assert_close(exported(input), [t.detach() for t in model(input)])
    weights = sum(p.numel() * p.element_size() for p in layer.parameters())
    held = sum(onnx.numpy_helper.to_array(i).nbytes for i in exported.proto.graph.initializer)
    assert weights <= held < weights + 1024


def test_weights_that_are_computed():
    model = nn.Sequential(rnnpack.LSTM(5, 9, batch_first=True))
    prune.random_unstructured(model[0], "weight_hh_l0", 0.5)
    parametrizations.weight_norm(model[0], "weight_ih_l0")
    exported = Exported(model.eval(), (torch.randn(4, 6, 5),), ({0: ANY, 1: ANY},))
    input = torch.randn(3, 8, 5)
    output, states = model(input)
    torch.testing.assert_close(exported(input), [t.detach() for t in (output, *states)])


def test_a_converted_model():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(5, 9, 2, bidirectional=True)
            self.head = nn.Linear(18, 3)

        def forward(self, input):
            return self.head(self.rnn(input)[0])

    model = Tagger().eval()
    input = torch.randn(8, 3, 5)
    expected = model(input).detach()
    rnnpack.convert(model)
    exported = Exported(model, (torch.randn(6, 4, 5),), ({0: ANY, 1: ANY},))
    assert exported.recurrent() == {"GRU": 2}
    torch.testing.assert_close(exported(input), [expected])


@pytest.mark.parametrize("opset", [18, 22])
def test_opsets_on_both_sides_of_a_new_operator_version(opset):
    case = Case(GRU, 0, 0, 5, 9)
    layer, torchs = case.pair()
    exported = export_case(case, layer, opset_version=opset)
    assert {o.version for o in exported.proto.opset_import if not o.domain} == {opset}
    assert_accurate(case, exported, layer, torchs)


# --- What the operators cannot say ----------------------------------------------------------------


@pytest.mark.parametrize("with_lengths", [False, True], ids=["full", "lengths"])
def test_a_projection_is_a_scan(with_lengths):
    case = Case(
        LSTM, 0, 0, 5, 9, bidirectional=with_lengths, bias=with_lengths, proj_size=4,
        with_hx=with_lengths,
    )  # fmt: skip
    layer, torchs = case.pair()
    exported = export_case(case, layer, with_lengths=with_lengths)
    assert exported.recurrent() == {"Scan": 2 if with_lengths else 1}
    assert_accurate(case, exported, layer, torchs, with_lengths=with_lengths)


@pytest.mark.parametrize("kind", [LSTM, RNN_TANH], ids=str)
def test_float64_is_a_scan(kind):
    case = Case(kind, 0, 0, 5, 9, with_hx=False)
    layer, torchs = case.pair(dtype=torch.float64)
    exported = export_case(case, layer)
    assert exported.recurrent() == {"Scan": 1}
    assert_accurate(case, exported, layer, torchs)


def test_float16_is_computed_in_float32_and_rounded():
    case = Case(LSTM, 0, 0, 5, 9, num_layers=2)
    layer, torchs = case.pair(dtype=torch.float16)
    exported = export_case(case, layer)
    assert exported.recurrent() == {"LSTM": 2}
    assert_accurate(case, exported, layer, torchs)


def test_autocast_rounds_as_in_eager_calls():
    class Autocast(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = rnnpack.GRU(5, 9)

        def forward(self, input):
            with torch.autocast("cpu", torch.bfloat16):
                output, h_n = self.layer(input)
            return output.float(), h_n.float()  # numpy has no bfloat16

    model = Autocast().eval()
    exported = Exported(model, (torch.randn(6, 4, 5),), ({0: ANY, 1: ANY},))
    assert exported.recurrent() == {"GRU": 1}
    input = torch.randn(25, 13, 5)
    exact = {
        name: (p.detach().bfloat16() if p.dim() > 1 else p.detach()).double()  # biases stay exact
        for name, p in model.layer.named_parameters()
    }
    truth = stack(model.layer, exact, input.bfloat16().double())
    with torch.no_grad():
        results = exported(input), model(input)
    ours, eager = (named(o.bfloat16(), [t.bfloat16() for t in s]) for o, *s in results)
    assert_as_accurate(ours, eager, {"output": truth[0], "h_n": truth[1][0]})


# --- Cells ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "operator"),
    [
        (rnnpack.LSTMCell(5, 9), "LSTM"),
        (rnnpack.GRUCell(5, 9, bias=False), "GRU"),
        (rnnpack.RNNCell(5, 9), "RNN"),
        (rnnpack.RNNCell(5, 9, nonlinearity="relu"), "RNN"),
    ],
    ids=["lstm", "gru", "rnn_tanh", "rnn_relu"],
)
def test_a_cell_is_an_operator_of_one_step(cell, operator):
    model = Model(cell).eval()
    states = 2 if operator == "LSTM" else 1

    def drawn(batch):
        return torch.randn(batch, 5), tuple(torch.randn(batch, 9) for _ in range(states))

    exported = Exported(model, drawn(4), ({0: ANY}, ({0: ANY},) * states))
    assert exported.recurrent() == {operator: 1}
    for batch in (1, 13):
        args = drawn(batch)
        torch.testing.assert_close(exported(*args), [t.detach() for t in model(*args)])


# --- Programs that were exported before -----------------------------------------------------------


@pytest.mark.parametrize(
    ("training", "strict"), [(False, True), (True, False)], ids=["inference-strict", "training"]
)
def test_an_exported_program_is_lowered(training, strict):
    # With gradients a program holds one op a direction: so many nodes there are.
    case = Case(LSTM, 0, 0, 5, 9, bidirectional=True)
    layer, torchs = case.pair()
    args = (
        torch.randn(6, 4, 5),
        tuple(torch.randn(2, 4, 9) for _ in "hc"),
        torch.tensor([6, 0, 1, 3]),
    )
    dims = ({0: ANY, 1: ANY}, ({1: ANY}, {1: ANY}), {0: ANY})
    with torch.set_grad_enabled(training):
        program = torch.export.export(Model(layer).eval(), args, dynamic_shapes=dims, strict=strict)
    exported = Exported(rnnpack.onnx.lower(program))
    assert exported.recurrent() == {"LSTM": 2 if training else 1}
    assert_accurate(case, exported, layer, torchs, with_lengths=True)


def test_a_projection_in_an_exported_program():
    case = Case(LSTM, 0, 0, 5, 9, proj_size=4, with_hx=False)
    layer, torchs = case.pair()
    program = torch.export.export(
        Model(layer).eval(), (torch.randn(6, 4, 5),), dynamic_shapes=({0: ANY, 1: ANY},)
    )
    exported = Exported(rnnpack.onnx.lower(program))
    assert exported.recurrent() == {"Scan": 1}
    assert_accurate(case, exported, layer, torchs)


def test_other_exports_know_nothing_of_onnx():
    model = Model(rnnpack.LSTM(5, 9)).eval()
    input = torch.randn(6, 4, 5)
    Exported(model, (input,), ({0: ANY, 1: ANY},))
    with torch.no_grad():
        program = torch.export.export(model, (input,))
    targets = {str(node.target) for node in program.graph.nodes}
    assert "rnnpack.infer.default" in targets
    assert not any("onnx" in target for target in targets)


# --- What is refused ------------------------------------------------------------------------------


def refusal(model, *args):
    with pytest.raises(torch.onnx.errors.OnnxExporterError) as caught:
        torch.onnx.export(model, args, dynamo=True, verbose=False)
    return str(caught.value)


def test_packed_layers_are_refused():
    model = Model(rnnpack.LSTM(5, 9)).eval()
    input = torch.randn(6, 4, 5)
    rnnpack.pack(model)
    assert "export the model before rnnpack.pack" in refusal(model, input)
    with torch.no_grad():
        program = torch.export.export(model, (input,))
    with pytest.raises(RuntimeError, match=r"export the model before rnnpack\.pack"):
        rnnpack.onnx.lower(program)


def test_packed_sequences_are_refused():
    class Packs(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = rnnpack.GRU(5, 9)

        def forward(self, input, lengths):
            packed = pack_padded_sequence(input, lengths, enforce_sorted=False)
            return pad_packed_sequence(self.layer(packed)[0])[0]

    assert "lengths=" in refusal(Packs().eval(), torch.randn(6, 3, 5), torch.tensor([2, 6, 1]))
    packed = pack_sequence([torch.randn(4, 5), torch.randn(2, 5)])
    assert "lengths=" in refusal(rnnpack.GRU(5, 9).eval(), packed)


def test_other_devices_are_refused():
    model = Model(rnnpack.LSTM(5, 9)).to("meta").eval()
    assert "use model.cpu()" in refusal(model, torch.randn(6, 4, 5, device="meta"))
