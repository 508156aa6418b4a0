"""silero-vad's voice activity detector: is anybody speaking in these 32 ms?"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

import speech
from job import Finding, Job, dtype_of
from packages import package_file

CHUNK, CONTEXT = 512, 64  # samples: 32 ms at 16 kHz, and how much of the chunk before is seen again


class VoiceActivity(nn.Module):
    """The published network, rebuilt as a module: a transform, four convolutions, an LSTM cell."""

    basis: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("basis", torch.empty(258, 1, 256))  # cosines, then sines
        self.encoder = nn.Sequential(
            nn.Conv1d(129, 128, 3, padding=1),
            nn.ReLU(),
            nn.Conv1d(128, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv1d(64, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv1d(64, 128, 3, padding=1),
            nn.ReLU(),
        )
        self.cell = nn.LSTMCell(128, 128)
        self.decoder = nn.Conv1d(128, 1, 1)

    def forward(
        self, samples: Tensor, hx: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One chunk: [1, 576] samples and the states give ([1, 1] probability, new states)."""
        samples = nn.functional.pad(samples[:, None], (0, 64), mode="reflect")
        real, imaginary = nn.functional.conv1d(samples, self.basis, stride=128).chunk(2, dim=1)
        magnitude = (real.square() + imaginary.square()).sqrt()
        h, c = self.cell(self.encoder(magnitude).squeeze(-1), hx)
        return self.decoder(h.relu()[..., None]).sigmoid().squeeze(-1), (h, c)


def job() -> Job:
    """The call, one chunk at a time, the state carried along; the script module beside it."""
    script = torch.jit.load(package_file("silero-vad", "silero_vad/data/silero_vad.jit")).eval()
    model = VoiceActivity().eval()
    model.load_state_dict(weights(script.state_dict()))
    samples = speech.recording()
    chunks = samples[: len(samples) // CHUNK * CHUNK].view(-1, CHUNK)
    before = nn.functional.pad(chunks[:-1, -CONTEXT:], (0, 0, 1, 0))
    seen = torch.cat([before, chunks], dim=1)

    def units(model: nn.Module) -> Iterator[Tensor]:
        dtype = dtype_of(model)
        hx = (torch.zeros(1, 128, dtype=dtype), torch.zeros(1, 128, dtype=dtype))
        for chunk in seen.to(dtype).split(1):
            probability, hx = model(chunk, hx)
            yield probability

    with torch.no_grad():
        published = torch.cat([script(chunk, speech.RATE) for chunk in chunks.split(1)])

    return Job(
        name="silero-vad",
        layers="LSTM cell 128",
        unit="32 ms chunk",
        model=model,
        units=units,
        judge=judge,
        published=published,
    )


def weights(published: dict[str, Tensor]) -> dict[str, Tensor]:
    """The script module's weights for 16 kHz, under the names of `VoiceActivity`."""
    names = {"basis": "stft.forward_basis_buffer"}
    for kind in ("weight", "bias"):
        names |= {f"encoder.{2 * i}.{kind}": f"encoder.{i}.reparam_conv.{kind}" for i in range(4)}
        names |= {f"cell.{kind}_{part}": f"decoder.rnn.{kind}_{part}" for part in ("ih", "hh")}
        names[f"decoder.{kind}"] = f"decoder.decoder.2.{kind}"
    return {ours: published[f"_model.{theirs}"] for ours, theirs in names.items()}


def judge(probabilities: Tensor) -> Finding:
    """Nine chunks in ten must agree with the annotated turns (the edges of words are arguable)."""
    seconds = (torch.arange(len(probabilities)) + 0.5) * CHUNK / speech.RATE
    spoken = torch.zeros(len(probabilities), dtype=torch.bool)
    for turn in speech.turns():
        spoken |= (seconds >= turn.start) & (seconds < turn.end)
    agreed = float(((probabilities[:, 0] > 0.5) == spoken).float().mean())
    return Finding(
        good=agreed >= 0.9,
        text=f"{len(probabilities)} chunks of a telephone call: {100 * agreed:.0f} % agree with "
        "the annotated turns",
    )
