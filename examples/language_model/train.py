"""Train a character-level language model, in one process or in several that share the work.

    torchrun --nproc-per-node 2 examples/language_model/train.py

At the end it prints the loss on text that training never saw, and some text of its own.
"""

import argparse
import contextlib
import math
import os
import time
from pathlib import Path
from typing import TextIO

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy

import checkpoint
from model import CharacterModel, State, share, write
from text import Streams, Text

# A rare gradient many times as long as the usual one would undo many steps.
LARGEST_GRADIENT_NORM = 1.0
SAMPLE_START, SAMPLE_LENGTH = 40, 400  # characters


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--shard", choices=["ddp", "fsdp"], default="ddp", help="how processes share the model")
    add("--amp", choices=["bf16"], help="autocast to this precision")
    add("--steps", type=int, default=600, help="length of the training, resumed steps included")
    add("--rows", type=int, default=32, help="sequences side by side, over all processes")
    add("--window", type=int, default=64, help="characters of a row in one step")
    add("--hidden", type=int, default=256, help="hidden size of the LSTM")
    add("--projection", type=int, default=128, help="size of the LSTM's projected output")
    add("--rate", type=float, default=4e-3, help="learning rate of Adam")
    add("--seed", type=int, default=0, help="of the initial weights and the sample")
    add("--text", type=Path, default=Path("/usr/share/common-licenses"), help="a file or a folder")
    add("--checkpoints", type=Path, help="folder for checkpoints; not given: none are written")
    add("--every", type=int, default=100, help="steps from one checkpoint to the next")
    add("--resume", action="store_true", help="go on from the newest checkpoint, if there is one")
    add("--log", type=Path, help="CSV file for the loss of every step")
    arguments = parser.parse_args()
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
    training = own_streams(text.training, arguments)
    held_out = own_streams(text.validation, arguments)
    precision = torch.bfloat16 if arguments.amp == "bf16" else torch.float32

    torch.manual_seed(arguments.seed)  # the same in every process: so are the weights
    plain = CharacterModel(len(text.alphabet), arguments.hidden, arguments.projection)
    beginning = plain.initial_state(training.rows, precision)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = share(plain, arguments.shard, mesh)
    optimizer = torch.optim.Adam(model.parameters(), arguments.rate)

    first, state = 0, beginning
    found = checkpoint.newest(arguments.checkpoints) if arguments.resume else None
    if found is not None:
        first = checkpoint.step_of(found)
        state = checkpoint.load(found, model, optimizer, beginning, mesh)

    # One process speaks for all.
    console = Console(quiet=dist.get_rank() > 0)
    characters = arguments.rows * arguments.window
    started = time.perf_counter()
    with log_file(arguments.log, first) as log, progress_bar(console) as bar:
        task = bar.add_task("", total=arguments.steps, completed=first, loss=math.nan, speed=0)
        for step in range(first, arguments.steps):
            if training.begins(step):
                state = beginning
            loss, state = read(model, training[step], state, precision)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), LARGEST_GRADIENT_NORM)
            optimizer.step()

            done = step + 1
            mean = mean_over_processes(loss)
            speed = (done - first) * characters / (time.perf_counter() - started)
            print(f"{step},{mean!r}", file=log)
            bar.update(task, completed=done, loss=mean, speed=speed)
            due = done % arguments.every == 0 or done == arguments.steps
            if arguments.checkpoints is not None and due:
                checkpoint.save(arguments.checkpoints, done, model, optimizer, state, mesh)

    loss = validate(model, held_out, beginning, precision)
    guess = math.log(len(text.alphabet))
    console.print(f"validation loss {loss:.3f} nats a character (blind guess: {guess:.3f})")
    start = text.validation[:SAMPLE_START]
    one_row = plain.initial_state(1, precision)
    with autocast(precision):
        sample = write(model, start, one_row, SAMPLE_LENGTH, arguments.seed)
    console.rule("sample")
    console.print(text.decode(torch.cat([start, sample])), markup=False, highlight=False)


def own_streams(codes: Tensor, arguments: argparse.Namespace) -> Streams:
    return Streams(
        codes,
        arguments.rows,
        arguments.window,
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
    )
