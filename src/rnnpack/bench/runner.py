"""Run cases: compare first, then time all contestants in turn."""

from __future__ import annotations

import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from rnnpack.bench.cases import Case
from rnnpack.bench.contestant import Absent, Contestant, Values
from rnnpack.bench.limits import Limit, Probes, limit
from rnnpack.bench.memory import measure_in_process
from rnnpack.bench.peers import BASELINE, CONTESTANTS, OURS, takes_part
from rnnpack.bench.problem import Problem, build_problem

# Largest difference to torch.nn, in units of torch.nn's largest value in the same tensor, at which
# two contestants still compute the same thing. Rounding in float32 stays some 50 times below, a
# bfloat16 product comes 10 times above; cases of 16-bit weights allow for their rounding. How exact
# results are is the business of the tests.
_SAME = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


@dataclass(frozen=True)
class Plan:
    """How to measure.

    threads: for everybody. peers: names to run beside rnnpack; torch.nn always runs.
    blocks: at most so many blocks of calls a contestant. block_seconds: how long a block lasts at
    least.
    pause: seconds of silence before each block, in which the idle threads of whoever ran before
    stop to spin. warm: seconds of calls that follow it, untimed.
    budget: seconds of calls a contestant after which fewer blocks are made, but at least five.
    """

    threads: int
    peers: tuple[str, ...]
    blocks: int = 15
    block_seconds: float = 0.01
    # Longer than idle threads spin after a call: 50 ms those of ONNX Runtime 1.32, 11 ms libgomp.
    pause: float = 0.07
    # Calls before a block is timed: threads that wake together may share a core until the system's
    # balancing parts them, which takes some of its 4 ms ticks.
    warm: float = 0.02
    budget: float = 2.0


@dataclass(frozen=True)
class Figure:
    """Seconds a call, or bytes, over blocks. `first` is the very first call, None for bytes."""

    median: float
    p10: float
    p90: float
    blocks: int
    calls: int
    first: float | None = None


@dataclass
class Result:
    """What came of one case.

    figures: by contestant. absent: by contestant, why it has no figure. errors: by contestant, the
    largest difference to torch.nn in units of torch.nn's largest value. path: what `explain` said.
    failed: whether rnnpack raised an error or computed a wrong value. compile_seconds: by
    contestant, from its model to the first result, of those that compile. handover: seconds from
    core to core, measured right after the case where it ran on several threads.
    """

    case: Case
    figures: dict[str, Figure] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    path: str = ""
    failed: bool = False
    limit: Limit | None = None
    compile_seconds: dict[str, float] = field(default_factory=dict)
    handover: float | None = None

    def ratio(self, peer: str) -> float | None:
        """How many times rnnpack's figure goes into the peer's."""
        if OURS not in self.figures or peer not in self.figures:
            return None
        return self.figures[peer].median / self.figures[OURS].median

    def best_peer(self) -> str | None:
        """The peer, torch.nn among them, with the lowest figure."""
        peers = [name for name in self.figures if not name.startswith(OURS)]
        return min(peers, key=lambda name: self.figures[name].median, default=None)

    def share_of_limit(self) -> float | None:
        if OURS not in self.figures or self.limit is None:
            return None
        return self.limit.seconds / self.figures[OURS].median


def run_case(
    case: Case, plan: Plan, probes: Probes | None, *, tell: Callable[[str], None] = lambda _: None
) -> Result:
    """Compare, then measure one case; `tell` hears what is going on."""
    result = Result(case)
    torch.set_num_threads(plan.threads)
    with torch.set_grad_enabled(case.mode == "train"):
        others = [name for name in plan.peers if name != BASELINE and takes_part(name, case)]
        builders = {name: CONTESTANTS[name] for name in (BASELINE, OURS, *others)}
        contestants = admit(build_problem(case), builders, plan, result, tell)
        if case.measure == "memory":
            _measure_memory(contestants, plan, result, tell)
        else:
            result.figures = measure_time(contestants, plan, tell)
            result.limit = limit(case, probes) if probes else None
    return result


def admit(
    problem: Problem,
    builders: Mapping[str, Callable[[Problem, int], Contestant]],
    plan: Plan,
    result: Result,
    tell: Callable[[str], None],
) -> dict[str, tuple[Contestant, float]]:
    """Who computes what the first of them computes, each with the seconds of its first call."""
    admitted: dict[str, tuple[Contestant, float]] = {}
    expected: Values = {}
    for name, build in builders.items():
        tell(f"comparing {name}")
        try:
            contestant = build(problem, plan.threads)
            start = time.perf_counter()
            raw = contestant.call()
            first = time.perf_counter() - start
            # Later steps of a stream show whether the state is carried.
            for _ in range(2 if problem.case.mode == "stream" else 0):
                raw = contestant.call()
            values = contestant.values(raw)
        except Absent as reason:
            result.absent[name] = str(reason)
            continue
        except Exception as raised:  # one that fails must not cost the run of the others
            result.absent[name] = f"it raised {type(raised).__name__}: {raised}"
            result.failed |= name.startswith(OURS)
            continue
        expected = expected or values
        result.errors[name] = error = _difference(values, expected)
        why = contestant.refusal
        if not error <= _SAME[problem.case.dtype if name.startswith(OURS) else "float32"]:
            why = f"its values differ from torch.nn's by {error:.1e} of the largest"
            result.failed |= name.startswith(OURS)
        if name == OURS:
            result.path = contestant.path
        if why is None:
            admitted[name] = (contestant, first)
        else:
            result.absent[name] = why
    return admitted


def _difference(values: Values, expected: Values) -> float:
    """The largest difference in the tensors that both have, relative to each one's largest."""
    names = values.keys() & expected.keys()
    assert names, "a contestant must return a value that torch.nn returns too"
    worst = 0.0
    for name in names:
        truth = expected[name].detach().flatten()
        difference = (values[name].detach().flatten() - truth).abs().max().item()
        scaled = difference / max(truth.abs().max().item(), 1e-30)
        worst = max(worst, scaled) if math.isfinite(scaled) else math.inf
    return worst


def measure_time(
    contestants: dict[str, tuple[Contestant, float]], plan: Plan, tell: Callable[[str], None]
) -> dict[str, Figure]:
    """Blocks of calls in turn, so that what else the machine does meets all contestants."""
    calls = {}
    blocks = plan.blocks
    for name, (contestant, _) in contestants.items():
        time.sleep(plan.pause)
        _repeat(contestant.call, plan.warm)
        once = min(_seconds(contestant.call, 1) for _ in range(2))
        calls[name] = max(1, math.ceil(plan.block_seconds / once))
        affordable = int(plan.budget / (once * (calls[name] + 1)))
        blocks = min(blocks, max(affordable, min(5, plan.blocks)))
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    gc.collect()
    gc.disable()
    try:
        for block in range(blocks):
            tell(f"block {block + 1} of {blocks}")
            shift = block % len(names)
            for name in names[shift:] + names[:shift]:
                call = contestants[name][0].call
                time.sleep(plan.pause)
                if calls[name] > 1:  # a long call wakes threads and fills caches by itself
                    _repeat(call, plan.warm)
                samples[name].append(_seconds(call, calls[name]) / calls[name])
    finally:
        gc.enable()
    return {name: _figure(samples[name], calls[name], contestants[name][1]) for name in contestants}


def _repeat(call: Callable[[], object], seconds: float) -> None:
    end = time.perf_counter() + seconds
    call()
    while time.perf_counter() < end:
        call()


def _seconds(call: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in itertools.repeat(None, calls):
        call()
    return time.perf_counter() - start


def _figure(samples: Sequence[float], calls: int, first: float) -> Figure:
    tenths = statistics.quantiles(samples, n=10, method="inclusive") if samples[1:] else samples
    median = statistics.median(samples)
    return Figure(median, tenths[0], tenths[-1], len(samples), calls, first)


def _measure_memory(
    contestants: dict[str, tuple[Contestant, float]],
    plan: Plan,
    result: Result,
    tell: Callable[[str], None],
) -> None:
    """One fresh process each for rnnpack and torch.nn; pools of a runtime would hide its growth."""
    for name in [name for name in (BASELINE, OURS) if name in contestants]:
        tell(f"memory of {name}")
        try:
            grown = float(measure_in_process(result.case, name, plan.threads))
        except Absent as reason:
            result.absent[name] = str(reason)
            continue
        result.figures[name] = Figure(grown, grown, grown, blocks=1, calls=1)
