"""`rnnpack.amp`: what each opt level does to a model, what is refused, copies, the example."""

import copy
import csv
import os
import pickle
import subprocess
import sys
from collections import OrderedDict, namedtuple
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import rnnpack
from amp_model import SIXTEEN_BIT, Model, amp_begun_anew, each_level, prepared, train, values
from helpers import KINDS, assert_same_bits
from rnnpack import amp


@pytest.fixture(autouse=True)
def begun_anew():
    with amp_begun_anew():
        yield


# --- What each level does -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "options", "weights", "inside", "outside"),
    [
        ("O0", {}, torch.float32, torch.float32, torch.float32),
        ("O1", {}, torch.float32, torch.bfloat16, torch.bfloat16),
        ("O1", {"cast_model_type": torch.float16}, torch.float32, torch.float16, torch.float16),
        ("O1", {"cast_model_outputs": torch.float32}, torch.float32, torch.bfloat16, torch.float32),
        ("O1", {"patch_torch_functions": False}, torch.float32, torch.float32, torch.float32),
        ("O2", {}, torch.bfloat16, torch.bfloat16, torch.float32),
        ("O2", {"cast_model_type": torch.float16}, torch.float16, torch.float16, torch.float32),
        ("O2", {"cast_model_type": torch.float32}, torch.float32, torch.float32, torch.float32),
        (
            "O2",
            {"cast_model_outputs": torch.bfloat16},
            torch.bfloat16,
            torch.bfloat16,
            torch.bfloat16,
        ),
        ("O3", {}, torch.bfloat16, torch.bfloat16, torch.float32),
    ],
)
def test_dtypes(level, options, weights, inside, outside):
    model, optimizer = prepared(level, **options)
    output = model(torch.randn(4, 3, 5))
    assert model.layer.weight_hh_l0.dtype == model.head.weight.dtype == weights
    assert model.seen[1:] == (inside, inside)
    assert output.dtype == outside
    train(model, optimizer)
    assert model.layer.weight_hh_l0.grad.dtype == weights


@pytest.mark.parametrize(
    ("level", "options", "norm", "masters"),
    [
        ("O0", {}, torch.float32, False),
        ("O1", {}, torch.float32, False),
        ("O2", {}, torch.float32, True),
        ("O2", {"keep_batchnorm_fp32": False}, torch.bfloat16, True),
        ("O2", {"keep_batchnorm_fp32": "False"}, torch.bfloat16, True),
        ("O2", {"master_weights": False}, torch.float32, False),
        ("O3", {}, torch.bfloat16, False),
        ("O3", {"keep_batchnorm_fp32": True}, torch.float32, False),
        ("O3", {"keep_batchnorm_fp32": "True"}, torch.float32, False),
        ("O3", {"master_weights": True}, torch.bfloat16, True),
    ],
)
def test_batch_norms_and_masters(level, options, norm, masters):
    model, optimizer = prepared(level, **options)
    train(model, optimizer, 2)
    assert model.norm.weight.dtype == model.norm.running_mean.dtype == norm
    assert model.norm.running_mean.ne(0).any()
    owned = list(amp.master_params(optimizer))
    for parameter, held in zip(model.parameters(), owned, strict=True):
        assert (held is not parameter) == (masters and parameter.dtype != torch.float32)
        assert held.dtype == (torch.float32 if masters else parameter.dtype)


@pytest.mark.parametrize(
    ("level", "given", "scale"),
    [
        ("O0", None, 1.0),
        ("O1", None, 2.0**16),
        ("O2", None, 2.0**16),
        ("O3", None, 1.0),
        ("O1", 128, 128.0),
        ("O2", "128.0", 128.0),
        ("O3", "dynamic", 2.0**16),
        ("O0", "dynamic", 2.0**16),
    ],
)
def test_loss_scales(level, given, scale):
    _, optimizer = prepared(level, loss_scale=given)
    loss = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        assert_same_bits(scaled_loss.detach(), torch.full((2,), scale))


@pytest.mark.parametrize("dtype", SIXTEEN_BIT, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_o1_gives_the_bits_of_autocast(kind, dtype):
    layer = kind.make(5, 7, 2)
    expected, twin = copy.deepcopy(layer), torch.randn(4, 3, 5)
    layer = amp.initialize(layer, opt_level="O1", cast_model_type=dtype, verbosity=0)
    with torch.autocast("cpu", dtype):
        output = expected(twin)
    assert_same_bits(layer(twin), output)


def test_o1_gives_the_gradients_of_autocast():
    model, optimizer = prepared("O1")
    twin = copy.deepcopy(model)
    del twin.forward
    input = torch.randn(4, 3, 5)
    with torch.autocast("cpu", torch.bfloat16):
        loss = twin(input)
    loss.float().square().mean().backward()
    with amp.scale_loss(model(input).float().square().mean(), optimizer) as scaled_loss:
        scaled_loss.backward()
    expected = [parameter.grad for parameter in twin.parameters()]
    assert_same_bits([parameter.grad for parameter in model.parameters()], expected)


@pytest.mark.parametrize("dtype", SIXTEEN_BIT, ids=str)
def test_o2_gives_the_bits_of_masters_kept_by_hand(dtype):
    exact = rnnpack.convert(Model()).model
    halved = copy.deepcopy(exact).to(dtype)
    by_hand = torch.optim.SGD(exact.parameters(), 0.05, momentum=0.9)
    torch.manual_seed(0)  # as the test began: the same weights
    options = {"cast_model_type": dtype, "keep_batchnorm_fp32": False, "loss_scale": 128.0}
    model, optimizer = prepared("O2", **options)
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        loss = halved(torch.randn(4, 3, 5, generator=generator).to(dtype)).float().square().mean()
        halved.zero_grad()
        (loss * 128).backward()
        with torch.no_grad():
            for weight, half in zip(exact.parameters(), halved.parameters(), strict=True):
                weight.grad = half.grad.float() / 128
            by_hand.step()
            for weight, half in zip(exact.parameters(), halved.parameters(), strict=True):
                half.copy_(weight)
    train(model, optimizer, 4)
    assert_same_bits(values(model), values(halved))
    held = [master.detach() for master in amp.master_params(optimizer)]
    assert_same_bits(held, values(exact))


def test_masters_begin_with_all_bits_of_the_weights():
    model = Model()
    before = values(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    assert_same_bits([master.detach() for master in amp.master_params(optimizer)], before)


def test_masters_take_over_what_is_written_to_the_model():
    model, optimizer = prepared("O2", rate=0.0)
    master = next(iter(amp.master_params(optimizer)))
    kept = master.detach().clone()
    model.layer.weight_ih_l0.data[0] = 0.25  # no version counter sees it
    train(model, optimizer)
    assert model.layer.weight_ih_l0[0].eq(0.25).all() and master[0].eq(0.25).all()
    assert_same_bits(master[1:].detach(), kept[1:])  # also the bits that the model rounds away


def test_gradients_are_of_the_loss_and_are_clipped_in_masters():
    model, optimizer = prepared("O2")
    with amp.scale_loss(model(torch.randn(4, 3, 5)).square().sum(), optimizer) as scaled_loss:
        scaled_loss.backward()
    master, parameter = next(iter(amp.master_params(optimizer))), model.layer.weight_ih_l0
    assert_same_bits(master.grad.to(parameter.dtype), parameter.grad)
    nn.utils.clip_grad_norm_(amp.master_params(optimizer), 0.001)
    before = [held.detach().clone() for held in amp.master_params(optimizer)]
    optimizer.step()
    moved = [
        (held - old).square().sum()
        for held, old in zip(amp.master_params(optimizer), before, strict=True)
    ]
    assert 0 < torch.stack(moved).sum().sqrt() < 0.05 * 0.001 * 1.01


@pytest.mark.parametrize("clear", ["optimizer", "optimizer, zeros", "model"])
@each_level
def test_gradients_are_cleared(level, clear):
    model, optimizer = prepared(level)
    grads = []
    for _ in range(2):
        train_input = torch.ones(4, 3, 5)
        with amp.scale_loss(model(train_input).float().square().sum(), optimizer) as scaled_loss:
            scaled_loss.backward()
        grads.append([held.grad.clone() for held in amp.master_params(optimizer)])
        if clear == "model":
            model.zero_grad()
        else:
            optimizer.zero_grad(set_to_none=clear == "optimizer")
            for parameter in model.parameters():
                assert parameter.grad is None or parameter.grad.eq(0).all()
    # Equal, not doubled.
    assert_same_bits(grads[0], grads[1])


@each_level
def test_recurrent_layers_are_converted(level):
    model, _ = prepared(level)
    assert type(model) is Model
    assert type(model.layer) is rnnpack.LSTM
    amp.reset()
    assert type(amp.initialize(nn.GRU(3, 5), opt_level=level, verbosity=0)) is rnnpack.GRU


def test_inputs_are_cast_wherever_they_lie():
    Pair = namedtuple("Pair", "left right")

    class Batch:
        def __init__(self, tensor):
            self.tensor = tensor

        def to(self, dtype):
            return Batch(self.tensor.to(dtype))

    class Echo(nn.Module):
        def forward(self, *args, **kwargs):
            return args, kwargs

    floats, numbers = torch.ones(2), torch.arange(2)
    packed = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    given = (floats, [floats, numbers], Pair(floats, "text"), packed, OrderedDict(a=floats), None)
    given = (*given, Batch(floats), nn.Linear(2, 2))
    echo = amp.initialize(Echo(), opt_level="O3", cast_model_outputs=torch.float16, verbosity=0)
    args, kwargs = echo(*given, key={"a": (floats,)})
    assert args[0].dtype == args[1][0].dtype == args[2].left.dtype == torch.float16
    assert args[1][1] is numbers and args[2].right == "text" and args[5] is None
    assert isinstance(args[3], PackedSequence) and args[3].data.dtype == torch.float16
    assert_same_bits(args[3].batch_sizes, packed.batch_sizes)
    assert type(args[4]) is OrderedDict and args[4]["a"].dtype == torch.float16
    assert kwargs["key"]["a"][0].dtype == torch.float16
    assert args[6].tensor.dtype == torch.float16
    assert args[7] is given[7] and args[7].weight.dtype == torch.float32
    assert floats.dtype == torch.float32


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_states_and_packed_sequences_at_a_16_bit_level(level):
    layer = amp.initialize(nn.LSTM(5, 7), opt_level=level, verbosity=0)
    packed = pack_sequence([torch.randn(4, 5), torch.randn(2, 5)])
    states = torch.randn(1, 2, 7), torch.randn(1, 2, 7)
    output, (h_n, c_n) = layer(packed, states)
    assert output.data.dtype == h_n.dtype == c_n.dtype == torch.float32
    assert layer(torch.randn(3, 2, 5, dtype=torch.float64), (h_n, c_n))[0].dtype == torch.float32


def test_lists_come_back_as_lists():
    models = [nn.LSTM(3, 5), nn.Linear(5, 2)]
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    assert amp.initialize(models, enabled=False) == models
    assert amp.initialize(models, optimizers, enabled=False) == (models, optimizers)
    assert amp.initialize(models[0], [optimizers[0]], enabled=False) == (models[0], optimizers[:1])
    returned = amp.initialize(models, optimizers, verbosity=0)
    assert returned == (models, optimizers) and type(returned[0]) is list


def test_disabled_changes_nothing():
    model, twin = Model(), Model()
    twin.load_state_dict(model.state_dict())
    twin = rnnpack.convert(twin).model
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    model, optimizer = amp.initialize(model, optimizer, enabled=False, opt_level="O2")
    assert type(model.layer) is nn.LSTM and "forward" not in vars(model)
    loss = model(torch.randn(4, 3, 5)).sum()
    with amp.scale_loss(loss, optimizer) as scaled_loss, amp.disable_casts():
        assert scaled_loss is loss
    assert amp.state_dict() == {}
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 1.0, "unskipped": 0}})
    assert list(amp.master_params(optimizer)) == list(model.parameters())
    prepared("O1")  # nothing was begun, so this is the first call


def test_verbosity(capsys):
    amp.initialize(Model(), opt_level="O2")
    printed = capsys.readouterr().out
    assert "O2" in printed and "loss_scale dynamic" in printed
    amp.reset()
    prepared("O2")
    assert capsys.readouterr().out == ""


# --- Errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"opt_level": "02"}, RuntimeError, "the letter O"),
        ({"opt_level": "O1", "keep_batchnorm_fp32": True}, RuntimeError, "keep_batchnorm_fp32"),
        ({"opt_level": "O1", "master_weights": True}, RuntimeError, "master_weights"),
        ({"opt_level": "O1", "cast_model_type": torch.float32}, RuntimeError, "'O0'"),
        ({"opt_level": "O0", "patch_torch_functions": True}, RuntimeError, "choose 'O1'"),
        ({"opt_level": "O2", "patch_torch_functions": True}, RuntimeError, "choose 'O1'"),
        ({"opt_level": "O3", "patch_torch_functions": True}, RuntimeError, "choose 'O1'"),
        ({"opt_level": "O2", "keep_batchnorm_fp32": "yes"}, TypeError, "'True'"),
        ({"opt_level": "O2", "master_weights": "yes"}, TypeError, "master_weights"),
        ({"opt_level": "O2", "patch_torch_functions": 0}, TypeError, "patch_torch_functions"),
        ({"opt_level": "O2", "cast_model_type": torch.int8}, ValueError, "cast_model_type"),
        ({"cast_model_outputs": "float32"}, ValueError, "cast_model_outputs"),
        ({"loss_scale": "static"}, ValueError, "loss_scale"),
        ({"loss_scale": 0}, ValueError, "positive"),
        ({"loss_scale": float("inf")}, ValueError, "positive"),
        ({"loss_scale": float("nan")}, ValueError, "positive"),
        ({"num_losses": 0}, ValueError, "num_losses"),
        ({"min_loss_scale": 8.0, "max_loss_scale": 4.0}, ValueError, "min_loss_scale"),
    ],
)
def test_options_that_contradict_or_make_no_sense(options, kind, text):
    model = Model()
    with pytest.raises(kind, match=text):
        amp.initialize(model, torch.optim.SGD(model.parameters(), 0.1), **options)
    # Nothing was changed, and the next call is the first.
    assert type(model.layer) is nn.LSTM and "forward" not in vars(model)
    prepared("O1")


def test_models_and_optimizers_that_are_refused():
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for models, kind, text in (
        ("model", TypeError, "got str"),
        ((model,), TypeError, "got tuple"),
        ([model, None], TypeError, "got NoneType"),
        (nn.DataParallel(model), RuntimeError, "DataParallel"),
        (Model().double(), RuntimeError, "float64"),
        (Model().half(), RuntimeError, "float16"),
        ([model, model], RuntimeError, "once"),
    ):
        with pytest.raises(kind, match=text):
            amp.initialize(models)
    for optimizers, kind, text in (
        (model.parameters(), TypeError, "generator"),
        ([optimizer, optimizer], RuntimeError, "once"),
    ):
        with pytest.raises(kind, match=text):
            amp.initialize(model, optimizers)


def test_initialize_is_called_once():
    model, optimizer = prepared("O1")
    with pytest.raises(RuntimeError, match="called before"):
        amp.initialize(Model())
    amp.reset()
    with pytest.raises(RuntimeError, match="a new Model"):
        amp.initialize(model)
    with pytest.raises(RuntimeError, match="a new SGD"):
        amp.initialize(Model(), optimizer)


def test_calls_before_initialize():
    optimizer = torch.optim.SGD(Model().parameters(), 0.1)
    with pytest.raises(RuntimeError, match=r"amp\.initialize"):
        amp.scale_loss(torch.ones(()), optimizer).__enter__()
    with pytest.raises(RuntimeError, match=r"amp\.initialize"):
        amp.state_dict()
    with pytest.raises(RuntimeError, match=r"amp\.initialize"):
        amp.load_state_dict({})
    prepared("O1")
    with pytest.raises(RuntimeError, match=r"give it to amp\.initialize"):
        amp.scale_loss(torch.ones(()), optimizer).__enter__()


def test_a_loss_id_that_does_not_exist():
    _, optimizer = prepared("O1", num_losses=2)
    for loss_id in (2, -1):
        with pytest.raises(ValueError, match="expected 0 to 1"):
            amp.scale_loss(torch.ones(()), optimizer, loss_id).__enter__()


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_closures_are_refused_where_a_step_may_be_skipped(level):
    _, optimizer = prepared(level)
    with pytest.raises(RuntimeError, match="without a closure"):
        optimizer.step(lambda: None)
    with pytest.raises(RuntimeError, match="without a closure"):
        optimizer.step(closure=lambda: None)
    amp.reset()
    _, optimizer = prepared("O0")
    assert optimizer.step(lambda: 0.5) == 0.5


# --- Copies ---------------------------------------------------------------------------------------


def pickled(model):
    return pickle.loads(pickle.dumps(model))


def replica_of(model):
    """A replica as DataParallel makes it: with the parameters as plain attributes."""
    replica = model._replicate_for_data_parallel()
    for name, module in replica._modules.items():
        copied = module._replicate_for_data_parallel()
        for key, parameter in module._parameters.items():
            setattr(copied, key, parameter)
        replica._modules[name] = copied
    return replica


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled, replica_of])
@each_level
def test_a_copy_runs_on_its_own_weights(level, duplicate):
    model, _ = prepared(level)
    input = torch.randn(4, 3, 5)
    model.eval()
    copied = duplicate(model)
    assert_same_bits(copied(input), model(input))
    assert copied.seen == model.seen
    copied.seen = None
    model.layer = None  # a copy that calls the first model now fails
    copied(input)
    assert copied.seen is not None


@each_level
def test_a_deep_copy_shares_no_master(level):
    model, optimizer = prepared(level)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    train(model, optimizer, 2)
    first = values(averaged)
    assert any(a.ne(b).any() for a, b in zip(first, values(model), strict=True))
    assert_same_bits(averaged.module.state_dict()["head.weight"].float(), first[-2].float())


def test_a_packed_model_still_casts():
    model, _ = prepared("O1")
    model.eval()
    input = torch.randn(4, 3, 5)
    with torch.no_grad():
        before = model(input)
        rnnpack.pack(model)
        after = model(input)
    assert type(model.layer).__name__ == "PackedLSTM"
    assert after.dtype == torch.bfloat16
    torch.testing.assert_close(after, before, atol=0.05, rtol=0.05)


def test_a_forward_set_on_the_object_is_kept():
    model = Model()
    inner = model.forward
    model.forward = lambda input: inner(input) + 1
    model = amp.initialize(model, opt_level="O1", cast_model_outputs=torch.float32, verbosity=0)
    model.eval()
    input = torch.randn(4, 3, 5)
    with torch.autocast("cpu", torch.bfloat16):
        expected = inner(input) + 1
    assert_same_bits(model(input), expected.float())


@each_level
def test_models_compile_in_one_graph(level):
    model, optimizer = prepared(level)
    model.eval()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    input = torch.randn(4, 3, 5)
    assert_same_bits(compiled(input).detach(), model(input).detach())
    train(compiled, optimizer)
    assert model.layer.weight_hh_l0.grad.ne(0).any()


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_models_can_be_exported(level, strict):
    model, _ = prepared(level)
    model.eval()
    any_size = torch.export.Dim.DYNAMIC
    with torch.no_grad():
        program = torch.export.export(
            model,
            (torch.randn(4, 3, 5),),
            dynamic_shapes=({0: any_size, 1: any_size},),
            strict=strict,
        )
        input = torch.randn(9, 2, 5)
        assert_same_bits(program.module()(input), model(input))


def test_packed_layers_cannot_be_cast():
    for level in ("O2", "O3"):
        model = rnnpack.pack(torch.nn.Sequential(rnnpack.GRU(5, 7))).model
        with pytest.raises(RuntimeError, match=r"0 is packed.*before rnnpack.pack"):
            amp.initialize(model, opt_level=level)


# --- The example ----------------------------------------------------------------------------------


ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples/language_model/train.py"


@pytest.fixture
def text(tmp_path):
    """A real text, long enough for the steps below."""
    path = tmp_path / "text"
    path.write_text("\n".join(file.read_text() for file in sorted((ROOT / "docs").glob("*.md"))))
    return path


def run_example(text, losses, *options):
    sizes = "--rows 6 --window 31 --hidden 33 --projection 17 --steps 80 --sample 1".split()
    done = subprocess.run(
        [sys.executable, EXAMPLE, *sizes, "--text", text, "--losses", losses, *options],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with open(losses, newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


@pytest.mark.slow
def test_the_language_model_reaches_the_loss_of_float32(text, tmp_path):
    exact = run_example(text, tmp_path / "float32.csv")
    assert exact[-1] < 0.9 * exact[0]
    for level in ("O1", "O2"):
        losses = run_example(text, tmp_path / f"{level}.csv", "--amp", level)
        assert losses != exact
        for mixed, single in zip(losses, exact, strict=True):
            assert abs(mixed - single) < 0.02 * single


@pytest.mark.slow
def test_the_language_model_goes_on_with_its_loss_scale(text, tmp_path):
    options = ("--amp", "O1", "--checkpoints", tmp_path / "checkpoints", "--steps")
    run_example(text, tmp_path / "short.csv", *options, "3")
    run_example(text, tmp_path / "short.csv", *options, "6", "--resume")
    options = ("--amp", "O1", "--steps", "6")
    whole = run_example(text, tmp_path / "long.csv", *options)
    with open(tmp_path / "short.csv", newline="") as file:
        assert [float(row["loss"]) for row in csv.DictReader(file)] == whole


@pytest.mark.parametrize(
    "options", [("--amp", "O1", "--shard", "fsdp"), ("--amp", "O2", "--checkpoints", "folder")]
)
def test_the_language_model_refuses_what_it_cannot_do(options):
    done = subprocess.run(
        [sys.executable, EXAMPLE, *options], check=False, capture_output=True, text=True
    )
    assert done.returncode == 2 and f"{options[0]} {options[1]}: expected" in done.stderr
