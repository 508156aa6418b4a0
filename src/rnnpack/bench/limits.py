"""The limit of a case: the time below which this machine cannot do it."""

from __future__ import annotations

import ctypes
import math
from bisect import bisect
from dataclasses import dataclass
from pathlib import Path

from rnnpack.bench.cases import Case

# From inside a first-level cache to beyond the last level, of most machines.
_SIZES = tuple(1 << k for k in range(13, 27))
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Probes:
    """What the machine can do at most, with all threads of the run together.

    flops: float32 operations per second, a multiply-add counted as two. sizes, bandwidths: bytes
    that each thread reads again and again, and bytes per second of all threads there.
    """

    threads: int
    flops: float
    sizes: tuple[int, ...]
    bandwidths: tuple[float, ...]

    def bandwidth(self, bytes_per_thread: float) -> float:
        """Bytes per second at a working set, interpolated log over log."""
        if bytes_per_thread <= self.sizes[0]:
            return self.bandwidths[0]
        if bytes_per_thread >= self.sizes[-1]:
            return self.bandwidths[-1]
        k = bisect(self.sizes, bytes_per_thread)
        low, high = self.sizes[k - 1], self.sizes[k]
        part = math.log(bytes_per_thread / low) / math.log(high / low)
        slower = self.bandwidths[k] / self.bandwidths[k - 1]
        return self.bandwidths[k - 1] * math.pow(slower, part)


def measure(library: str, threads: int, *, quick: bool = False) -> Probes:
    """Run the probes of the native library at the path `library`.

    The best of several short runs counts: a limit must not be lowered by what else the machine did
    meanwhile.
    """
    native = ctypes.CDLL(str(Path(library)))
    flops, read = native.rnnpack_probe_flops, native.rnnpack_probe_read_bandwidth
    flops.restype = read.restype = ctypes.c_double
    flops.argtypes = [ctypes.c_int32, ctypes.c_double]
    read.argtypes = [ctypes.c_int64, ctypes.c_int32, ctypes.c_double]
    seconds, trials = (0.002, 1) if quick else (0.03, 5)
    sizes = _SIZES[::3] if quick else _SIZES
    bandwidths = [max(read(size, threads, seconds) for _ in range(trials)) for size in sizes]
    # A smaller working set is never slower: what says otherwise is noise, or the start of a loop
    # over few bytes.
    for k in reversed(range(len(sizes) - 1)):
        bandwidths[k] = max(bandwidths[k], bandwidths[k + 1])
    peak = max(flops(threads, seconds) for _ in range(trials))
    return Probes(threads, peak, sizes, tuple(bandwidths))


def handover(library: str) -> float:
    """Seconds that a write takes from one core to another, now."""
    probe = ctypes.CDLL(str(Path(library))).rnnpack_probe_handover
    probe.restype = ctypes.c_double
    probe.argtypes = [ctypes.c_double]
    return float(probe(0.02))


@dataclass(frozen=True)
class Limit:
    """Seconds below which a case cannot go, and the part that either resource alone would take."""

    seconds: float
    arithmetic: float
    reading: float


def limit(case: Case, probes: Probes) -> Limit:
    """Seconds for the products of a case, the pointwise part of the cell taken to be free.

    A step costs the larger of its multiply-adds at peak and the reading of its recurrent weights
    (with those of the projection) at the bandwidth of their working set; steps, layers and
    directions add up. The input weights serve all steps of a call, so they are read once, with the
    first step. Where a call is one step, every weight of the stack is read again in each call, and
    the working set is all of them. The threads share the weights. Training does a forward and a
    backward; the latter has twice the products, and reads the recurrent weights once more.
    """
    total = arithmetic = reading = 0.0
    element = _BYTES[case.dtype]
    stack = element * sum(sum(_weights(case, k)) for k in range(case.layers)) * case.directions
    for layer in range(case.layers):
        input_weights, recurrent_weights = _weights(case, layer)
        input_bytes, recurrent_bytes = element * input_weights, element * recurrent_weights
        working_set = stack if case.seq_len == 1 else recurrent_bytes
        bandwidth = probes.bandwidth(working_set / probes.threads)
        work = 2 * case.batch * (input_weights + recurrent_weights) / probes.flops
        for products in (1, 2) if case.mode == "train" else (1,):
            first = (input_bytes + recurrent_bytes) / bandwidth
            other = recurrent_bytes / bandwidth
            later = case.seq_len - 1
            each = case.directions
            total += each * (max(products * work, first) + later * max(products * work, other))
            arithmetic += each * case.seq_len * products * work
            reading += each * (first + later * other)
    return Limit(total, arithmetic, reading)


def _weights(case: Case, layer: int) -> tuple[int, int]:
    """Elements of `weight_ih`, and of `weight_hh` with `weight_hr`, of one direction of a layer."""
    input_size = case.directions * case.output_size if layer else case.input_size
    rows = case.gates * case.hidden_size
    projection = case.proj_size * case.hidden_size
    return rows * input_size, rows * case.output_size + projection
