"""Results as tables to read and as JSON to keep."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from rnnpack.bench.limits import Probes
from rnnpack.bench.peers import BASELINE, OURS, PACKED
from rnnpack.bench.runner import Plan, Result


def print_machine(
    console: Console, facts: dict[str, Any], probes: Probes | None, plan: Plan
) -> None:
    """One paragraph: what is measured on, and what it can do at most."""
    threads = f"{plan.threads} thread{'s' if plan.threads > 1 else ''}"
    versions = [f"{name} {version}" for name, version in facts["versions"].items() if version]
    console.print(f"{facts['cpu']}, {facts['cores']} cores, {threads}, ISA {facts['isa']}")
    console.print(", ".join(versions), soft_wrap=True)
    if probes is None:
        console.print("No limits: the probes are in the native library, which is not loaded.")
        return
    middle, last = len(probes.sizes) // 2, len(probes.sizes) - 1
    reads = ", ".join(
        f"{probes.bandwidths[k] / 1e9:.0f} GB/s at {_bytes(probes.sizes[k])} a thread"
        for k in (0, middle, last)
    )
    console.print(f"Peak {probes.flops / 1e9:.0f} GFLOP/s; reading {reads}", soft_wrap=True)


def line(result: Result) -> str:
    """What to say of a case as soon as it is done."""
    name, took, _, to_baseline, to_best, share, _ = _row(result)
    parts = [took] + ([f"{to_baseline} x {BASELINE}"] if to_baseline else [])
    parts += [to_best.replace(" ", " x ", 1)] if to_best and result.best_peer() != BASELINE else []
    parts += [f"{share} of the limit"] if share else []
    parts += [f"{_time(result.handover)} from core to core"] if result.handover else []
    return f"{result.case.suite}/{name}: {', '.join(parts)}"


def print_results(console: Console, results: Sequence[Result]) -> None:
    """A table a suite, then which figures are not there, each with the reason."""
    for suite, group in groupby(results, key=lambda result: result.case.suite):
        of_suite = list(group)
        if of_suite[0].case.measure == "deployment":
            for result in of_suite:
                console.print(_table_of_ways(result))
        else:
            console.print(_table(suite, of_suite))
    absences: dict[tuple[str, str], list[str]] = {}
    for result in results:
        for name, reason in result.absent.items():
            absences.setdefault((name, reason), []).append(result.case.id)
    for (name, reason), cases in absences.items():
        which = "every case" if len(cases) == len(results) else _some(cases)
        console.print(
            f"No figure of {name} for {which}: {reason}.", highlight=False, soft_wrap=True
        )


def _table(suite: str, results: list[Result]) -> Table:
    ratios = [ratio for result in results if (ratio := result.ratio(BASELINE))]
    several = len(ratios) > 1
    mean = f"{_geometric_mean(ratios):.2f}" if several else ""
    bests = [ratio for r in results if (best := r.best_peer()) and (ratio := r.ratio(best))]
    mean_to_best = f"{_geometric_mean(bests):.2f}" if several and bests else ""
    table = Table(title=suite, title_justify="left", show_footer=several, box=box.SIMPLE_HEAD)
    table.add_column("case", footer="geometric mean", no_wrap=True)
    table.add_column(OURS, justify="right", no_wrap=True)
    table.add_column("p10 - p90", justify="right", no_wrap=True)
    table.add_column(f"x {BASELINE}", justify="right", footer=mean, no_wrap=True)
    table.add_column("x best peer", justify="right", footer=mean_to_best, no_wrap=True)
    table.add_column("of limit", justify="right", no_wrap=True)
    table.add_column("packed", justify="right", no_wrap=True)
    for result in results:
        table.add_row(*_row(result))
    return table


def _table_of_ways(result: Result) -> Table:
    """A row for each way in which one model runs."""
    title = f"{result.case.id}, a Linear behind it"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("way", no_wrap=True)
    for name in ("a call", "p10 - p90", f"time by {OURS}'s", "until the first result"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, figure in result.figures.items():
        ratio = result.ratio(name)
        compiling = result.compile_seconds.get(name)
        table.add_row(
            name,
            _time(figure.median),
            f"{_time(figure.p10)} - {_time(figure.p90)}" if figure.blocks > 1 else "",
            _ratio(ratio),
            "" if compiling is None else _time(compiling),
        )
    return table


def _geometric_mean(ratios: Sequence[float]) -> float:
    """The geometric mean, which gives the same answer whichever of the two is called one."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def _row(result: Result) -> list[str]:
    ours = result.figures.get(OURS)
    if ours is None:
        return [result.case.name, "failed" if result.failed else "no figure", *[""] * 5]
    show = _bytes if result.case.measure == "memory" else _time
    best = result.best_peer()
    to_best = result.ratio(best) if best else None
    share = result.share_of_limit()
    return [
        result.case.name,
        show(ours.median),
        f"{show(ours.p10)} - {show(ours.p90)}" if ours.blocks > 1 else "",
        _ratio(result.ratio(BASELINE)),
        f"{_ratio(to_best)} {best}" if best else "",
        "" if share is None else f"{share:.0%}",
        _time(result.figures[PACKED].median) if PACKED in result.figures else "",
    ]


def write_json(
    path: Path, results: Sequence[Result], facts: dict[str, Any], probes: Probes | None, plan: Plan
) -> None:
    """Everything that was measured, times in seconds, memory in bytes."""
    document = {
        "machine": facts,
        "plan": dataclasses.asdict(plan),
        "probes": dataclasses.asdict(probes) if probes else None,
        "results": [_record(result) for result in results],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def _record(result: Result) -> dict[str, Any]:
    best = result.best_peer()
    return {
        "id": result.case.id,
        **dataclasses.asdict(result),
        "ratio_to_torch_nn": result.ratio(BASELINE),
        "best_peer": best,
        "ratio_to_best_peer": result.ratio(best) if best else None,
        "share_of_limit": result.share_of_limit(),
    }


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds < 1000 * size else f"{seconds:.0f} s"
    return f"{seconds * 1e6:.3g} us" if seconds >= 1e-6 else f"{seconds * 1e9:.0f} ns"


def _bytes(count: float) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1024:.3g} KiB"


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _some(cases: list[str]) -> str:
    shown = 4
    rest = len(cases) - shown
    return ", ".join(cases[:shown]) + (f" and {rest} more" if rest > 0 else "")
