"""Run a job with torch.nn and with rnnpack: the same numbers? how long does a unit of work take?"""

import copy
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import rnnpack
from job import Finding, Job

SECONDS = 6.0  # of timing for a job, all passes together
FEWEST_PASSES = 2


class Call(NamedTuple):
    """One call of a recurrent layer, as the model made it."""

    layer: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Agreement:
    """How far the output of rnnpack lies from that of torch.nn, and how far it may.

    Truth is torch.nn in float64. Both results are roundings of it: rnnpack may be twice as far
    from it as torch.nn is in float32, plus four units in the last place of the largest value; so
    the two may be three times torch.nn's error, plus those four units, apart.

    Attributes:
        difference: largest |rnnpack - torch.nn|; infinite if the shapes differ.
        bound: 3 * largest |torch.nn - truth| + 4 * eps * largest |truth|.
        error_torch, error_rnnpack: largest distance from truth.
        published: largest |rnnpack - publisher's program|, held to the same bound; None if the
            job does not run that.
    """

    difference: float
    bound: float
    error_torch: float
    error_rnnpack: float
    published: float | None

    @property
    def good(self) -> bool:
        return self.difference <= self.bound and (self.published or 0.0) <= self.bound


class Times(NamedTuple):
    """Seconds for a unit of work: the median and the 99th percentile."""

    median: float
    p99: float


class Comparison(NamedTuple):
    """The times of torch.nn and of rnnpack for the same work."""

    torch: Times
    rnnpack: Times

    @property
    def ratio(self) -> float:
        """How many times faster rnnpack is."""
        return self.torch.median / self.rnnpack.median


@dataclass(frozen=True)
class Result:
    """All that is known of a job.

    Attributes:
        native: whether every call of a recurrent layer ran in the native engine.
        paths: which paths those calls took, in words.
        whole, layers: times of the whole model, and of its recurrent layers alone.
    """

    job: Job
    agreement: Agreement
    finding: Finding
    native: bool
    paths: str
    whole: Comparison
    layers: Comparison

    @property
    def good(self) -> bool:
        return self.agreement.good and self.finding.good


@torch.no_grad()
def measure(job: Job) -> Result:
    """Run `job` in float64, with torch.nn, with rnnpack; compare; then take times, in turns."""
    conversion = rnnpack.convert(copy.deepcopy(job.model))
    ours = conversion.model
    truth, _ = run(job, copy.deepcopy(job.model).double())
    calls, torch_output = record_calls(job)
    output, _ = run(job, ours)
    native, paths = paths_of(list(chain.from_iterable(calls)), ours, conversion)
    whole, layers = times(job, calls, ours)
    return Result(
        job=job,
        agreement=compare(output, torch_output, truth, job.published),
        finding=job.judge(output),
        native=native,
        paths=paths,
        whole=whole,
        layers=layers,
    )


def run(job: Job, model: nn.Module) -> tuple[Tensor, list[float]]:
    """The whole output of a model on the job, and the seconds that each unit took."""
    outputs: list[Tensor] = []
    seconds: list[float] = []
    units = job.units(model)
    while True:
        start = time.perf_counter()
        output = next(units, None)
        if output is None:
            return torch.cat(outputs), seconds
        seconds.append(time.perf_counter() - start)
        outputs.append(output)


def record_calls(job: Job) -> tuple[list[list[Call]], Tensor]:
    """The calls that each unit of work makes of the recurrent layers, and the whole output."""
    calls: list[list[Call]] = []
    outputs = []

    def record(name: str) -> Callable[..., None]:
        return lambda layer, args, kwargs: calls[-1].append(Call(name, args, kwargs))

    hooks = [
        layer.register_forward_pre_hook(record(name), with_kwargs=True)
        for name, layer in job.model.named_modules()
        if isinstance(layer, nn.RNNBase | nn.RNNCellBase)
    ]
    calls.append([])
    for output in job.units(job.model):
        outputs.append(output)
        calls.append([])
    for hook in hooks:
        hook.remove()
    return calls[:-1], torch.cat(outputs)


def compare(
    output: Tensor, torch_output: Tensor, truth: Tensor, published: Tensor | None
) -> Agreement:
    """The agreement of two float32 outputs, given the same in float64."""
    eps = torch.finfo(torch.float32).eps
    error_torch = distance(torch_output, truth)
    return Agreement(
        difference=distance(output, torch_output),
        bound=3 * error_torch + 4 * eps * float(truth.abs().max()),
        error_torch=error_torch,
        error_rnnpack=distance(output, truth),
        published=None if published is None else distance(output, published),
    )


def distance(a: Tensor, b: Tensor) -> float:
    """Largest |a - b|, worked out in float64; infinite where the shapes differ or a NaN stands."""
    if a.shape != b.shape:
        return float("inf")
    return float((a.double() - b.double()).abs().nan_to_num(nan=float("inf")).max())


def paths_of(calls: list[Call], model: nn.Module, conversion: Any) -> tuple[bool, str]:
    """Whether every recorded call runs natively in the converted model, and the paths in words."""
    native = True
    paths: Counter[str] = Counter()
    for call in calls:
        if call.layer not in conversion.swapped:
            native = False
            paths[f"{call.layer} left: {conversion.left.get(call.layer, 'not swapped')}"] += 1
            continue
        path = rnnpack.explain(model.get_submodule(call.layer), *call.args, **call.kwargs)
        native = native and path.native
        paths[path.kind if path.native else f"{path.kind}: {path.reason}"] += 1
    return native, ", ".join(f"{path} ({count} calls)" for path, count in paths.items())


def times(job: Job, calls: list[list[Call]], ours: nn.Module) -> tuple[Comparison, Comparison]:
    """Times of the whole model and of its recurrent layers alone.

    torch.nn and rnnpack take turns, a pass over the whole job each. The layers alone are timed by
    making the recorded calls of each unit again.
    """
    models = (job.model, ours)
    whole: tuple[list[float], ...] = ([], [])
    layers: tuple[list[float], ...] = ([], [])
    passes, stop = 0, time.perf_counter() + SECONDS
    while passes < FEWEST_PASSES or time.perf_counter() < stop:
        for model, its_whole, its_layers in zip(models, whole, layers, strict=True):
            its_whole.extend(run(job, model)[1])
            its_layers.extend(replay(unit, model) for unit in calls)
        passes += 1
    return Comparison(*map(summary, whole)), Comparison(*map(summary, layers))


def summary(seconds: list[float]) -> Times:
    ordered = sorted(seconds)
    return Times(statistics.median(ordered), ordered[int(0.99 * len(ordered))])


def replay(calls: list[Call], model: nn.Module) -> float:
    """Seconds for these calls."""
    ready = [(model.get_submodule(call.layer), call.args, call.kwargs) for call in calls]
    start = time.perf_counter()
    for layer, args, kwargs in ready:
        layer(*args, **kwargs)
    return time.perf_counter() - start
