"""g2p_en's grapheme-to-phoneme model: how an English word is spoken, letter by letter."""

import importlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from job import Finding, Job
from packages import package_file

START, STOP, LONGEST = 2, 3, 20  # phoneme numbers of <s> and </s>; phonemes in a word at most


class GraphemeToPhoneme(nn.Module):
    """Reads the letters with a GRU, then says one phoneme after another with a GRU cell."""

    def __init__(self, graphemes: int, phonemes: int, hidden: int) -> None:
        super().__init__()
        self.graphemes = nn.Embedding(graphemes, hidden)
        self.encoder = nn.GRU(hidden, hidden, batch_first=True)
        self.phonemes = nn.Embedding(phonemes, hidden)
        self.decoder = nn.GRUCell(hidden, hidden)
        self.logits = nn.Linear(hidden, phonemes)

    def forward(self, letters: Tensor) -> Tensor:
        """Letter numbers [1, letters] give the scores of each phoneme said: [said, phonemes].

        The most likely phoneme is said and read back, up to </s>, whose scores are the last row.
        """
        _, h_n = self.encoder(self.graphemes(letters))
        h, said = h_n[0], torch.tensor([START])
        scores: list[Tensor] = []
        while len(scores) < LONGEST and int(said) != STOP:
            h = self.decoder(self.phonemes(said), h)
            scores.append(self.logits(h))
            said = scores[-1].argmax(dim=1)
        return torch.cat(scores)


def job() -> Job:
    """Words of the package's own word list, one at a time."""
    publisher = published_program()
    variables = {name: torch.from_numpy(array) for name, array in publisher.variables.items()}
    graphemes, hidden = variables["enc_emb"].shape
    model = GraphemeToPhoneme(graphemes, len(variables["dec_emb"]), hidden).eval()
    model.load_state_dict(weights(variables))
    spelled = words()
    letters = [
        torch.tensor([[publisher.g2idx[letter] for letter in [*word, "</s>"]]]) for word in spelled
    ]

    def units(model: nn.Module) -> Iterator[Tensor]:
        for word in letters:
            yield model(word)

    expected = [[publisher.p2idx[name] for name in publisher.predict(word)] for word in spelled]

    return Job(
        name="g2p_en",
        layers="GRU 256, then GRU cell 256",
        unit="one word",
        model=model,
        units=units,
        judge=lambda scores: judge(scores, expected),
    )


def words() -> list[str]:
    """Every third headword of the package's list of words with two pronunciations: over 100."""
    lines = package_file("g2p-en", "g2p_en/homographs.en").read_text(encoding="utf8").splitlines()
    return [line.split("|")[0].lower() for line in lines if not line.startswith("#")][::3]


def published_program() -> Any:
    """The package's own model in NumPy, an instance of its class `G2p`.

    Its module imports libraries, and asks for downloads, that only the look-up of known words
    needs; its `predict` uses NumPy alone. Dummies stand in for them while it is imported.
    """
    names = ["nltk", "nltk.corpus", "nltk.tokenize", "inflect"]
    with mock.patch.dict(sys.modules, {name: mock.MagicMock() for name in names}):
        return importlib.import_module("g2p_en.g2p").G2p()


def weights(variables: dict[str, Tensor]) -> dict[str, Tensor]:
    """The package's arrays, under the names of `GraphemeToPhoneme`."""
    names = {
        "graphemes.weight": "enc_emb",
        "phonemes.weight": "dec_emb",
        "logits.weight": "fc_w",
        "logits.bias": "fc_b",
    }
    for part in ("ih", "hh"):
        for ours, theirs in (("weight", "w"), ("bias", "b")):
            names[f"encoder.{ours}_{part}_l0"] = f"enc_{theirs}_{part}"
            names[f"decoder.{ours}_{part}"] = f"dec_{theirs}_{part}"
    return {ours: variables[theirs] for ours, theirs in names.items()}


def judge(scores: Tensor, expected: list[list[int]]) -> Finding:
    """Every word must get the phonemes that the package's own program gives it."""
    said: list[list[int]] = [[]]
    steps = 0
    for phoneme in scores.argmax(dim=1).tolist():
        steps += 1
        if phoneme != STOP:
            said[-1].append(phoneme)
        if phoneme == STOP or steps == LONGEST:
            said.append([])
            steps = 0
    equal = sum(ours == theirs for ours, theirs in zip(said, expected, strict=False))
    return Finding(
        good=said == [*expected, []],
        text=f"{equal} of {len(expected)} words get the phonemes of the package's NumPy program",
    )
