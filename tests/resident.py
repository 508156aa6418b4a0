"""How much resident memory grows over many calls; `python resident.py steps` prints it in bytes.

In a process of its own: in one that has run other tests the system may give old memory large pages
at any time, and what is measured would be that.
"""

import gc
import sys
from pathlib import Path

import torch

import rnnpack
from helpers import KINDS
from rnnpack.ops import calls


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def growth(run, warm, count):
    """The growth over `count` calls of `run`, after `warm` that fill pools and caches."""
    for _ in range(warm):
        run()
    gc.collect()
    before = resident_bytes()
    for _ in range(count):
        run()
    return resident_bytes() - before


def steps():
    """100,000 steps of a stream of each kind."""
    input = torch.randn(1, 8)
    for kind in KINDS:
        stream = kind.make(8, 17, 2).stream()
        yield growth(lambda: stream.step(input), 1000, 100_000)  # noqa: B023  # called at once


def lengths():
    """10,000 calls of each kind, of 41 lengths in turn."""
    inputs = [torch.randn(1 + step * 7 % 41, 3, 8) for step in range(41)]
    for kind in KINDS:
        layer = kind.make(8, 17, 2)
        yield growth(lambda: [layer(input) for input in inputs], 20, 244)  # noqa: B023


def handles():
    """Calls by tensor handles, of which every third is refused."""
    layer, cell = rnnpack.LSTM(8, 17), rnnpack.LSTMCell(8, 17)
    input, wrong = torch.randn(1, 1, 8), torch.randn(1, 9)

    def run():
        layer(input)
        cell(input[0])
        calls.cell(cell, cell._parameters, ("weight_ih", "weight_hh"), wrong, None, 0)

    yield growth(run, 1000, 20_000)


if __name__ == "__main__":
    with torch.no_grad():
        print(*globals()[sys.argv[1]]())
