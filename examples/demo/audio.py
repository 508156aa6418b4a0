"""From a sound file to samples, and from samples to the two spectrograms that the models read."""

import math
from pathlib import Path

import soundfile
import soxr
import torch
from torch import Tensor


def load(path: Path, rate: int) -> Tensor:
    """The samples of a sound file, channels averaged, at `rate` Hz: float32 [samples], -1 to 1."""
    samples, recorded_rate = soundfile.read(path, dtype="float32", always_2d=True)
    return torch.from_numpy(soxr.resample(samples.mean(axis=1), recorded_rate, rate))


def mel_spectrogram(samples: Tensor, rate: int, window: int, hop: int, bands: int) -> Tensor:
    """Power in `bands` bands of equal width on the mel scale, from 0 Hz to half the rate.

    Frames are centred on multiples of `hop`, zeros stand outside the recording, the window is
    Hann's. The mel scale is Slaney's, as are the triangles of equal area ("Auditory Toolbox",
    1998), in the form that librosa made the usual one.

    Returns:
        float32 [samples // hop + 1, bands].
    """
    power = (
        torch.stft(
            samples,
            window,
            hop,
            window=torch.hann_window(window),
            center=True,
            pad_mode="constant",
            return_complex=True,
        )
        .abs()
        .square()
    )
    edges = _mel_to_hz(torch.linspace(0, _hz_to_mel(rate / 2), bands + 2, dtype=torch.float64))
    lower, centre, upper = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    bins = torch.linspace(0, rate / 2, window // 2 + 1, dtype=torch.float64)
    rise, fall = (bins - lower) / (centre - lower), (upper - bins) / (upper - centre)
    filters = torch.minimum(rise, fall).clamp(min=0) * 2 / (upper - lower)
    return (filters.float() @ power).T.contiguous()


# Slaney's scale: 200/3 Hz a mel up to 1000 Hz (15 mel), then 27 mel for each factor of 6.4.
_LINEAR_HZ, _BEND_HZ, _LOG_STEP = 200 / 3, 1000.0, math.log(6.4) / 27


def _hz_to_mel(hz: float) -> float:
    if hz < _BEND_HZ:
        return hz / _LINEAR_HZ
    return _BEND_HZ / _LINEAR_HZ + math.log(hz / _BEND_HZ) / _LOG_STEP


def _mel_to_hz(mel: Tensor) -> Tensor:
    above = _BEND_HZ * torch.exp((mel - _BEND_HZ / _LINEAR_HZ) * _LOG_STEP)
    return torch.where(mel * _LINEAR_HZ < _BEND_HZ, mel * _LINEAR_HZ, above)


def log_spectrogram_with_rises(
    samples: Tensor, rate: int, window: int, hop: int, bands_per_octave: int
) -> Tensor:
    """Log magnitude in bands of equal musical width, and beside it how much each band rose.

    Frames are centred on multiples of `hop`, zeros stand outside the recording. Bands are
    triangles with area one, centred on the notes of a scale tuned to 440 Hz with
    `bands_per_octave` notes, 30 Hz to 17 kHz, moved to the nearest bin of the transform and
    dropped where two would share a bin. The value is log10(1 + magnitude); the rise is the
    difference to the frame before, negative ones set to zero. Definition: madmom's filtered
    logarithmic spectrogram and its difference (Böck et al., "madmom", 2016).

    Returns:
        float32 [ceil(samples / hop), 2 * bands].
    """
    frames = math.ceil(len(samples) / hop)
    before = window // 2
    padded = torch.nn.functional.pad(samples, (before, window))
    framed = padded.unfold(0, window, hop)[:frames]
    shape = torch.hann_window(window, periodic=False)
    magnitude = torch.fft.fft(framed * shape)[:, : window // 2].abs()  # the Nyquist bin is not kept
    # madmom spaces its bins by the rate over twice their number, for odd windows too, and the
    # models learnt with that.
    filters = _note_filters(rate / (2 * magnitude.size(1)), magnitude.size(1), bands_per_octave)
    bands = torch.log10(magnitude @ filters + 1)
    # The frame compared with lies where this frame's window has fallen to half: for windows up
    # to about four hops, the frame before.
    back = max(1, round((window / 2 - int((shape > 0.5).int().argmax())) / hop))
    rises = torch.zeros_like(bands)
    rises[back:] = (bands[back:] - bands[:-back]).clamp(min=0)
    return torch.cat([bands, rises], dim=1)


def _note_filters(bin_hz: float, bins: int, bands_per_octave: int) -> Tensor:
    """Triangles over the bins of a transform: float32 [bins, bands], columns summing to one."""
    low, high, tuning = 30.0, 17000.0, 440.0
    first = math.floor(math.log2(low / tuning) * bands_per_octave)
    last = math.ceil(math.log2(high / tuning) * bands_per_octave)
    notes = tuning * 2 ** (torch.arange(first, last, dtype=torch.float64) / bands_per_octave)
    notes = notes[(notes >= low) & (notes <= high)]
    # Nearest bin of each note; notes beyond the last bin gather there and count once.
    edges = torch.unique((notes / bin_hz).round().long().clamp(max=bins - 1)).tolist()
    columns = []
    for start, centre, stop in zip(edges[:-2], edges[1:-1], edges[2:], strict=True):
        column = torch.zeros(bins, dtype=torch.float64)
        column[start:centre] = torch.arange(centre - start) / (centre - start)
        column[centre:stop] = 1 - torch.arange(stop - centre) / (stop - centre)
        columns.append(column / column.sum())
    return torch.stack(columns, dim=1).float()
