"""Two processes that share a training do what one process does with the whole batch."""

import contextlib
import copy
import csv
import datetime
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import rnnpack
from helpers import assert_as_accurate, assert_same_bits

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples/language_model/train.py"
PROCESSES = 2
SHARDINGS = ("ddp", "fsdp")
PATIENCE = 120  # seconds until a process that waits for the other in vain gives up

each_sharding = pytest.mark.parametrize("sharding", SHARDINGS)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Let gloo use the loopback device: a machine's own name may have no address."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def in_processes(function, folder, *arguments):
    """Call `function` in two processes of one group; give the results in order of their ranks."""
    torch.multiprocessing.spawn(_in_process, (function, folder, arguments), nprocs=PROCESSES)
    return [torch.load(folder / f"result-{rank}") for rank in range(PROCESSES)]


def _in_process(rank, function, folder, arguments):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=PROCESSES,
        timeout=datetime.timedelta(seconds=PATIENCE),
    )
    try:
        torch.save(function(*arguments), folder / f"result-{rank}")
    finally:
        dist.destroy_process_group()


# --- Loss curve and gradients ---------------------------------------------------------------------

CHARACTERS, STEPS, MICRO, CHUNKS, SEQ_LEN, ROWS = 13, 5, 2, 2, 7, 6


class Small(nn.Module):
    """A projection, two directions, recompute, lengths, states that carry over: all in one."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, 9)
        self.lstm = rnnpack.LSTM(9, 17, 2, proj_size=7)
        self.gru = rnnpack.GRU(7, 11, bidirectional=True, recompute=True)
        self.last = rnnpack.LSTM(22, 15)
        self.head = nn.Linear(15, CHARACTERS)

    def forward(self, input, hx, lengths):
        output, hx = self.lstm(self.embedding(input), hx)
        output, _ = self.gru(output, lengths=lengths)
        output, _ = self.last(output)
        return self.head(output.flatten(0, 1)), hx

    def recurrent(self):
        return self.lstm, self.gru, self.last


def made(dtype=torch.float32):
    torch.manual_seed(1)
    return Small().to(dtype)


def shared(model, sharding, **options):
    if sharding == "ddp":
        return DistributedDataParallel(model)
    for layer in model.recurrent():
        fully_shard(layer, **options)
    return fully_shard(model, **options)


@contextlib.contextmanager
def gradients_stay_here(model):
    """Add up gradients without sending them."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)
    elif isinstance(model, DistributedDataParallel):
        with model.no_sync():
            yield
    else:
        yield


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def curves(model, rows=slice(None)):
    """Train on some rows of the batch; every step's loss on them, and every step's gradients.

    A step is two backward passes whose gradients add up, each after two forward passes of which the
    second goes on from the first. The next step goes on from there, without gradients.
    """
    generator = torch.Generator().manual_seed(2)
    size = (STEPS, MICRO, CHUNKS, SEQ_LEN, ROWS)
    inputs = torch.randint(CHARACTERS, size, generator=generator)[..., rows]
    targets = (inputs + 1) % 3  # few and easy, so that the loss falls
    lengths = torch.tensor([7, 3, 0, 5, 7, 1])[rows]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    results = {"loss": []} | {f"d_{name}": [] for name, _ in model.named_parameters()}
    hx = None
    for step in range(STEPS):
        total = 0.0
        optimizer.zero_grad()
        for micro in range(MICRO):
            last = micro == MICRO - 1
            with contextlib.nullcontext() if last else gradients_stay_here(model):
                loss = 0.0
                for chunk in range(CHUNKS):
                    logits, hx = model(inputs[step, micro, chunk], hx, lengths)
                    loss = loss + cross_entropy(logits, targets[step, micro, chunk].flatten())
                loss.backward()
            total += loss.detach()
            hx = tuple(state.detach() for state in hx)
        results["loss"].append(total)
        for name, parameter in model.named_parameters():
            results[f"d_{name}"].append(whole(parameter.grad).clone())
        optimizer.step()
    return {name.replace("module.", ""): torch.stack(value) for name, value in results.items()}


def curves_of_a_half(sharding):
    model = made()
    for layer in model.recurrent():
        layer.register_forward_pre_hook(takes_the_native_path, with_kwargs=True)
    model = shared(model, sharding)
    sharded = [isinstance(parameter, DTensor) for parameter in model.parameters()]
    assert all(sharded) if sharding == "fsdp" else not any(sharded)
    result = curves(model, own_rows(dist.get_rank()))
    dist.all_reduce(result["loss"])
    result["loss"] /= PROCESSES
    return result


def takes_the_native_path(layer, arguments, options):
    path = rnnpack.explain(layer, *arguments, **options)
    assert path.kind == "train", path


def own_rows(rank):
    return slice(rank * ROWS // PROCESSES, (rank + 1) * ROWS // PROCESSES)


@each_sharding
def test_loss_curve_and_gradients_are_those_of_one_process(sharding, tmp_path):
    """Sharing adds in another order, no more: the error is at most twice that of one process.

    Plus 4 eps of the largest value. Both are measured against one process in float64.
    """
    first, second = in_processes(curves_of_a_half, tmp_path, sharding)
    assert first.keys() == second.keys()
    assert_same_bits([*first.values()], [*second.values()])
    torch.set_num_threads(1)
    truth = curves(made(torch.float64))
    assert truth["loss"][-1] < 0.8 * truth["loss"][0]
    assert_as_accurate(first, curves(made()), truth)


def mixed_precision_outputs_and_gradients():
    """Those of a shared model, and of whole ones that are given what each process is given."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = made()
    alone = [copy.deepcopy(model).bfloat16() for _ in range(PROCESSES)]
    model = shared(model, "fsdp", mp_policy=policy)
    inputs = torch.randint(CHARACTERS, (SEQ_LEN, ROWS))
    outputs = []
    for rank, one in [*enumerate(alone), (dist.get_rank(), model)]:
        rows = own_rows(rank)
        logits, states = one(inputs[:, rows], None, torch.tensor([7, 3, 0, 5, 7, 1])[rows])
        (logits.float().square().mean() + states[1].float().square().mean()).backward()
        outputs.append(logits.detach())
    means = [
        torch.stack([grad.float() for grad in grads]).mean(0)
        for grads in zip(*([p.grad for p in one.parameters()] for one in alone), strict=True)
    ]
    return {
        "outputs": [outputs[-1], outputs[dist.get_rank()]],
        "gradients": [[whole(p.grad) for p in model.parameters()], means],
    }


def test_fully_shard_in_mixed_precision_gives_the_bits_of_whole_bfloat16_models(tmp_path):
    for result in in_processes(mixed_precision_outputs_and_gradients, tmp_path):
        assert result["outputs"][0].dtype == torch.bfloat16
        assert_same_bits(*result["outputs"])
        assert_same_bits(*result["gradients"])


# --- The example ----------------------------------------------------------------------------------

LONG, SHORT = 13, 4  # steps; the streams of the text below begin anew after 11


def run_example(*options, processes=1):
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(processes)]
    sizes = "--rows 6 --window 61 --hidden 33 --projection 17 --sample 20".split()
    done = subprocess.run(
        [*command, SCRIPT, *sizes, *map(str, options)],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(path):
    with open(path, newline="") as file:
        return {int(row["step"]): float(row["loss"]) for row in csv.DictReader(file)}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A real text, which repeats: long enough for a few steps."""
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text(3 * (ROOT / "LICENSE").read_text())
    return path


@pytest.fixture(scope="module", params=SHARDINGS)
def runs(request, text, tmp_path_factory):
    """A long run, and a short one with its checkpoint, by two processes: folder and options."""
    folder = tmp_path_factory.mktemp(request.param)
    options = ("--shard", request.param, "--text", text)
    for name, steps in (("long", LONG), ("short", SHORT)):
        files = ("--losses", folder / f"{name}.csv", "--checkpoints", folder / name)
        run_example(*options, *files, "--steps", steps, processes=PROCESSES)
    return folder, options


@pytest.mark.slow
def test_the_example_learns(runs):
    folder, _ = runs
    curve = losses(folder / "long.csv")
    assert [*curve] == [*range(LONG)]
    assert curve[LONG - 1] < curve[0]


@pytest.mark.slow
def test_the_example_goes_on_as_if_it_had_not_stopped(runs, tmp_path):
    folder, options = runs
    shutil.copytree(folder / "short", tmp_path / "short")
    shutil.copy(folder / "short.csv", tmp_path)
    # What a killed run leaves: half a checkpoint, and losses of steps that it did not keep.
    (tmp_path / "short/partial").mkdir()
    with open(tmp_path / "short.csv", "a") as file:
        file.write(f"{SHORT},0.5\n")
    files = ("--losses", tmp_path / "short.csv", "--checkpoints", tmp_path / "short")
    run_example(*options, *files, "--resume", "--steps", LONG, processes=PROCESSES)
    assert losses(tmp_path / "short.csv") == losses(folder / "long.csv")
    assert [path.name for path in (tmp_path / "short").iterdir()] == [f"step-{LONG:08d}"]


@pytest.mark.slow
def test_one_process_goes_on_with_the_checkpoint_of_two(runs, text, tmp_path):
    """The next step's loss has the same weights and states; only its mean is added up otherwise."""
    folder, options = runs
    shutil.copytree(folder / "short", tmp_path / "short")
    sharding = next(name for name in SHARDINGS if name not in options)
    files = ("--losses", tmp_path / "one.csv", "--checkpoints", tmp_path / "short")
    run_example("--shard", sharding, "--text", text, *files, "--resume", "--steps", SHORT + 1)
    expected = losses(folder / "long.csv")[SHORT]
    difference = abs(losses(tmp_path / "one.csv")[SHORT] - expected)
    assert difference <= 4 * torch.finfo(torch.float32).eps * expected


@pytest.mark.slow
def test_the_example_repeats_itself_in_one_process_and_bfloat16(text, tmp_path):
    for name in ("first", "second"):
        files = ("--text", text, "--losses", tmp_path / name)
        output = run_example(*files, "--steps", SHORT, "--seed", 3, "--amp", "bf16")
        (tmp_path / f"{name}.txt").write_text(output[output.index("validation loss") :])
    assert losses(tmp_path / "first") == losses(tmp_path / "second")
    assert (tmp_path / "first.txt").read_text() == (tmp_path / "second.txt").read_text()


def test_the_example_keeps_the_checkpoints_of_an_earlier_run(tmp_path):
    (tmp_path / "step-00000004").mkdir()
    done = subprocess.run(
        [sys.executable, SCRIPT, "--checkpoints", tmp_path],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 2
    assert "add --resume" in done.stderr
    assert (tmp_path / "step-00000004").exists()
