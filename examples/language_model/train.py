"""Train a character-level language model, in one process or in several that share the work.

    torchrun --nproc-per-node 2 examples/language_model/train.py

At the end it prints the loss on text that training never saw, and some text of its own.
"""

import argparse
import math
import os
import time
from pathlib import Path
from typing import TextIO

import checkpoint
import torch
import torch.distributed as dist
from model import CharacterModel, State, share, write
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from text import Streams, Text
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.functional import cross_entropy
from torch.optim import Adam, Optimizer

from rnnpack import amp

# A rare gradient many times as long as the usual one would undo many steps.
LARGEST_GRADIENT_NORM = 1.0
AMP_LEVELS = ("O1", "O2")
SAMPLE_START = 40  # characters of unseen text that the sample goes on from


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--shard", choices=["ddp", "fsdp"], default="ddp", help="how processes share the model")
    add(
        "--amp",
        choices=["bf16", *AMP_LEVELS],
        help="bf16: autocast, and nothing else; O1, O2: the opt level of rnnpack.amp",
    )
    add("--steps", type=int, default=600, help="length of the training, resumed steps included")
    add("--rows", type=int, default=32, help="sequences side by side, over all processes")
    add("--window", type=int, default=64, help="characters of a row in one step")
    add("--hidden", type=int, default=256, help="hidden size of the LSTM")
    add("--projection", type=int, default=128, help="size of the LSTM's projected output")
    add("--rate", type=float, default=6e-3, help="learning rate of Adam")
    add("--seed", type=int, default=0, help="of the initial weights and the sample")
    add("--sample", type=int, default=400, help="characters to write at the end")
    add("--text", type=Path, default=Path("/usr/share/common-licenses"), help="a file or a folder")
    add("--checkpoints", type=Path, help="folder for checkpoints; not given: none are written")
    add("--every", type=int, default=100, help="steps from one checkpoint to the next")
    add("--resume", action="store_true", help="go on from the newest checkpoint, if there is one")
    add("--losses", type=Path, help="CSV file for the loss of each step")
    arguments = parser.parse_args()
    if arguments.amp in AMP_LEVELS and arguments.shard == "fsdp":
        parser.error(f"--amp {arguments.amp}: expected --shard ddp; with fsdp use --amp bf16")
    if arguments.amp == "O2" and arguments.checkpoints is not None:
        parser.error(
            "--amp O2: expected no --checkpoints, since torch.distributed.checkpoint finds an "
            "optimizer's state by the model's parameters, and at O2 it belongs to their masters"
        )
    if arguments.checkpoints is None:
        if arguments.resume:
            parser.error("--resume: expected --checkpoints too, which says where to look")
    elif not arguments.resume and checkpoint.newest(arguments.checkpoints):
        parser.error(
            f"{arguments.checkpoints} holds checkpoints of an earlier run: add --resume to go on "
            "with it, or name another folder"
        )
    return arguments


def main() -> None:
    arguments = parse()
    if "RANK" in os.environ:  # as torchrun starts it
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        run(arguments)
    finally:
        dist.destroy_process_group()


def run(arguments: argparse.Namespace) -> None:
    text = Text(arguments.text)
    ranks = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    training = Streams(text.training, arguments.rows, arguments.window, **ranks)
    held_out = Streams(text.validation, arguments.rows, arguments.window, **ranks)
    # At O2 the model gives its states in float32.
    precision = torch.bfloat16 if arguments.amp in ("bf16", "O1") else torch.float32
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=arguments.amp == "bf16")

    torch.manual_seed(arguments.seed)  # the same in every process: so are the weights
    plain = CharacterModel(len(text.alphabet), arguments.hidden, arguments.projection)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model, optimizer = prepare(plain, arguments, mesh)
    first, state = 0, plain.initial_state(training.rows, precision)
    found = checkpoint.newest(arguments.checkpoints) if arguments.resume else None
    if found is not None:
        first = checkpoint.step_of(found)
        state = checkpoint.load(found, model, optimizer, state, mesh)

    console = Console(quiet=dist.get_rank() > 0)  # one process speaks for all
    characters = arguments.rows * arguments.window
    started = time.perf_counter()
    with losses_file(arguments.losses, first) as losses, progress_bar(console) as progress:
        task = progress.add_task("", total=arguments.steps, completed=first, loss="", speed="")
        for step in range(first, arguments.steps):
            if training.begins(step):
                state = plain.initial_state(training.rows, precision)
            loss, state = read(model, training[step], state, autocast)
            optimizer.zero_grad()
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            nn.utils.clip_grad_norm_(amp.master_params(optimizer), LARGEST_GRADIENT_NORM)
            optimizer.step()

            done = step + 1
            mean = mean_over_processes(loss)
            print(step, mean, sep=",", file=losses)
            speed = (done - first) * characters / (time.perf_counter() - started)
            progress.update(task, completed=done, loss=f"{mean:.3f}", speed=f"{speed:,.0f}")
            if arguments.checkpoints and (done % arguments.every == 0 or done == arguments.steps):
                checkpoint.save(arguments.checkpoints, done, model, optimizer, state, mesh)

    beginning = plain.initial_state(held_out.rows, precision)
    unseen, guess = validate(model, held_out, beginning, autocast), math.log(len(text.alphabet))
    result = f"validation loss {unseen:.3f} nats a character; blind guess: {guess:.3f}"
    console.out(result, highlight=False)
    start = text.validation[:SAMPLE_START]
    with autocast:
        state = plain.initial_state(1, precision)
        sample = write(model, start, state, arguments.sample, arguments.seed)
    console.rule("sample")
    console.out(text.decode(torch.cat([start, sample])), highlight=False)


def prepare(
    plain: CharacterModel, arguments: argparse.Namespace, mesh: DeviceMesh
) -> tuple[nn.Module, Optimizer]:
    """Give the model as the processes share it, and its optimizer, both at the chosen opt level."""
    if arguments.amp in AMP_LEVELS:
        optimizer = Adam(plain.parameters(), arguments.rate)
        # First, since DistributedDataParallel sums gradients in the type that weights have now.
        amp.initialize(plain, optimizer, opt_level=arguments.amp, verbosity=0)
        return share(plain, arguments.shard, mesh), optimizer
    model = share(plain, arguments.shard, mesh)
    optimizer = Adam(model.parameters(), arguments.rate)
    return amp.initialize(model, optimizer, enabled=False)


def read(
    model: nn.Module, window: tuple[Tensor, Tensor], state: State, autocast: torch.autocast
) -> tuple[Tensor, State]:
    """Give the mean loss over a window, and the state after it, which carries no gradient on."""
    input, target = window
    with autocast:
        logits, (h_n, c_n) = model(input, state)
    return cross_entropy(logits.float(), target.flatten()), (h_n.detach(), c_n.detach())


@torch.no_grad()
def validate(model: nn.Module, streams: Streams, state: State, autocast: torch.autocast) -> float:
    total = torch.zeros(())
    for step in range(streams.windows):
        loss, state = read(model, streams[step], state, autocast)
        total += loss
    return mean_over_processes(total / streams.windows)


def mean_over_processes(value: Tensor) -> float:
    mean = value.detach() / dist.get_world_size()
    dist.all_reduce(mean)
    return mean.item()


def progress_bar(console: Console) -> Progress:
    return Progress(
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("loss {task.fields[loss]}  {task.fields[speed]} characters/s"),
        TimeRemainingColumn(),
        console=console,
    )


def losses_file(path: Path | None, first: int) -> TextIO:
    """Open the log to go on with step `first`: lines of steps that are done again are dropped."""
    if path is None or dist.get_rank() > 0:
        return open(os.devnull, "w", encoding="utf-8")
    header, *lines = path.read_text().splitlines() if path.exists() else ["step,loss"]
    kept = [line for line in lines if int(line.split(",")[0]) < first]
    file = path.open("w", encoding="utf-8", buffering=1)  # a line is written whole, at once
    print(header, *kept, sep="\n", file=file)
    return file


if __name__ == "__main__":
    main()
