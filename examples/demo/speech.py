"""Thirty seconds of a telephone call, and who speaks when: real speech, from a package's sample."""

import itertools
from typing import NamedTuple

from torch import Tensor

from audio import load
from packages import package_file

RATE = 16000  # Hz, what both speech models were trained on


class Turn(NamedTuple):
    """`speaker` talks from `start` to `end`, in seconds; turns may overlap."""

    start: float
    end: float
    speaker: str


def recording() -> Tensor:
    """The call: float32 [samples] at `RATE`."""
    return load(package_file("pyannote.audio", "pyannote/audio/sample/sample.wav"), RATE)


def turns() -> list[Turn]:
    """The turns of the call as its publisher annotated them (RTTM file), in order of start."""
    found = []
    annotation = package_file("pyannote.audio", "pyannote/audio/sample/sample.rttm")
    for line in annotation.read_text().splitlines():
        _, _, _, start, length, _, _, speaker, *_ = line.split()
        found.append(Turn(float(start), float(start) + float(length), speaker))
    return found


def alone() -> list[Turn]:
    """The stretches of the call in which exactly one speaker talks, in order of start."""
    everyone = turns()
    edges = sorted({edge for turn in everyone for edge in (turn.start, turn.end)})
    found: list[Turn] = []
    for start, end in itertools.pairwise(edges):
        speaking = {turn.speaker for turn in everyone if turn.start < end and turn.end > start}
        if len(speaking) == 1:
            found.append(Turn(start, end, speaking.pop()))
    return found
