"""BeatNet's beat tracker: where the beats and the downbeats of a piece of music lie."""

from collections.abc import Iterator

import torch
from BeatNet.model import BDA
from torch import Tensor, nn

from audio import load, log_spectrogram_with_rises
from job import Finding, Job, dtype_of
from packages import package_file

# The publisher's settings (BeatNet.py of the package): windows of 64 ms, one every 20 ms.
RATE, WINDOW, HOP, BANDS_PER_OCTAVE = 22050, 1411, 441, 24
FEATURES, HIDDEN, LAYERS = 272, 150, 2


def jobs() -> list[Job]:
    """The package's test piece, 120 beats a minute: whole, and as it would come in live."""
    model = BDA(FEATURES, HIDDEN, LAYERS, "cpu").eval()  # the publisher's own class
    weights = package_file("BeatNet", "BeatNet/models/model_1_weights.pt")
    model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    piece = load(package_file("BeatNet", "BeatNet/test_data/808kick120bpm.mp3"), RATE)
    features = log_spectrogram_with_rises(piece, RATE, WINDOW, HOP, BANDS_PER_OCTAVE)

    def units(model: nn.Module, frames: int) -> Iterator[Tensor]:
        dtype = dtype_of(model)
        # The class keeps its states in two plain attributes, from call to call.
        model.hidden = torch.zeros(LAYERS, 1, HIDDEN, dtype=dtype)
        model.cell = torch.zeros(LAYERS, 1, HIDDEN, dtype=dtype)
        for chunk in features.to(dtype).split(frames):
            yield model.final_pred(model(chunk[None])[0]).T  # [frames, beat | downbeat | neither]

    return [
        Job(
            name=name,
            layers="2-layer LSTM 150",
            unit=unit,
            model=model,
            units=lambda model, frames=frames: units(model, frames),
            judge=judge,
        )
        for name, unit, frames in [
            ("BeatNet", "10 s of music", len(features)),
            ("BeatNet live", "20 ms frame", 1),
        ]
    ]


def judge(activations: Tensor) -> Finding:
    """The beat activation must repeat at the tempo that the piece is named after."""
    activation = 1 - activations[:, 2]
    activation = activation - activation.mean()
    # 60 to 200 beats a minute: 1 s to 0.3 s between beats.
    lags = range(round(0.3 * RATE / HOP), round(1.0 * RATE / HOP))
    likeness = [float(activation[lag:] @ activation[:-lag]) for lag in lags]
    lag = lags[likeness.index(max(likeness))]
    tempo = 60 * RATE / HOP / lag
    return Finding(
        good=lag == round(0.5 * RATE / HOP),
        text=f"{len(activations) * HOP / RATE:.0f} s of music at 120 beats a minute: "
        f"activations repeat {tempo:.0f} times a minute",
    )
