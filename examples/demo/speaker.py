"""Resemblyzer's speaker encoder: a voice becomes a point on a sphere; one voice, one place."""

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

import speech
from audio import mel_spectrogram
from job import Finding, Job, dtype_of
from packages import package_file

# The publisher's settings (hparams.py and embed_utterance of the package).
WINDOW, HOP, BANDS = 400, 160, 40  # samples, samples (10 ms), mel bands
PARTIAL = 160  # frames (1.6 s) that the network sees at a time
PARTIALS_PER_SECOND = 1.3
LEAST_COVERED = 0.75  # of the last partial; the rest is silence
LOUDNESS = -30  # dB of full scale; quieter speech is raised to it


class SpeakerEncoder(nn.Module):
    """Embeds stretches of speech: [stretches, frames, 40] -> [stretches, 256], rows of length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(BANDS, 256, num_layers=3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, mels: Tensor) -> Tensor:
        _, (h_n, _) = self.lstm(mels)
        return nn.functional.normalize(self.linear(h_n[-1]).relu(), dim=1)


def job() -> Job:
    """Each time that one speaker talks alone for at least one partial becomes one embedding."""
    model = SpeakerEncoder().eval()
    weights = torch.load(
        package_file("Resemblyzer", "resemblyzer/pretrained.pt"),
        map_location="cpu",
        weights_only=True,
    )["model_state"]
    # The two scalars left out scale the training loss.
    model.load_state_dict({key: weights[key] for key in model.state_dict()})

    call = speech.recording()
    shortest = PARTIAL * HOP / speech.RATE
    turns = [turn for turn in speech.alone() if turn.end - turn.start >= shortest]
    utterances = [
        partials(call[round(turn.start * speech.RATE) : round(turn.end * speech.RATE)])
        for turn in turns
    ]
    speakers = [turn.speaker for turn in turns]

    def units(model: nn.Module) -> Iterator[Tensor]:
        for mels in utterances:
            mean = model(mels.to(dtype_of(model))).mean(dim=0, keepdim=True)
            yield nn.functional.normalize(mean, dim=1)

    return Job(
        name="Resemblyzer",
        layers="3-layer LSTM 40 -> 256",
        unit="one utterance",
        model=model,
        units=units,
        judge=lambda embeddings: judge(embeddings, speakers),
    )


def partials(samples: Tensor) -> Tensor:
    """An utterance as overlapping mel spectrograms: [partials, 160, 40]."""
    loudness = 20 * math.log10(samples.square().mean().sqrt())
    samples = samples * 10 ** (max(LOUDNESS - loudness, 0) / 20)
    step = round(speech.RATE / PARTIALS_PER_SECOND / HOP)
    frames = math.ceil((len(samples) + 1) / HOP)
    starts = list(range(0, max(1, frames - PARTIAL + step + 1), step))
    covered = (len(samples) - starts[-1] * HOP) / (PARTIAL * HOP)
    if covered < LEAST_COVERED and len(starts) > 1:
        starts.pop()
    missing = (starts[-1] + PARTIAL) * HOP - len(samples)
    samples = nn.functional.pad(samples, (0, max(missing, 0)))
    mels = mel_spectrogram(samples, speech.RATE, WINDOW, HOP, BANDS)
    return torch.stack([mels[start : start + PARTIAL] for start in starts])


def judge(embeddings: Tensor, speakers: list[str]) -> Finding:
    """Any two utterances of one voice must lie nearer than any two of different voices."""
    same: list[float] = []
    different: list[float] = []
    for i, j in itertools.combinations(range(len(speakers)), 2):
        pair = float(embeddings[i] @ embeddings[j])
        (same if speakers[i] == speakers[j] else different).append(pair)
    return Finding(
        good=min(same) > max(different),
        text=f"{len(speakers)} utterances of {len(set(speakers))} speakers: likeness at least "
        f"{min(same):.2f} within a speaker, at most {max(different):.2f} across",
    )
