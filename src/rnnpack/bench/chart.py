"""Results as one picture: ratio to the peers, share of the limit, and how time grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rnnpack.bench.peers import BASELINE, OURS
from rnnpack.bench.runner import Result

_ROWS_AT_STEPS = 100  # the steps of the scaling cases that differ in rows


def write_chart(path: Path, results: Sequence[Result], title: str) -> bool:
    """Bars for every timed case that has a figure, and lines for the scaling suite if it ran.

    Returns whether there was anything to draw; nothing is written otherwise.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    timed = [r for r in results if OURS in r.figures and r.case.measure == "time"]
    scaling = [r for r in timed if r.case.suite == "scaling"]
    bars = [r for r in timed if r.case.suite != "scaling"]
    heights = [height for height, some in ((1 + 0.22 * len(bars), bars), (4.0, scaling)) if some]
    if not heights:
        return False
    figure = pyplot.figure(figsize=(12, sum(heights) + 1), layout="constrained")
    figure.suptitle(title)
    grid = figure.add_gridspec(len(heights), 2, height_ratios=heights)
    if bars:
        left = figure.add_subplot(grid[0, 0])
        _draw_ratios(left, bars)
        _draw_shares(figure.add_subplot(grid[0, 1], sharey=left), bars)
    if scaling:
        steps = [r for r in scaling if r.case.batch == 1]
        rows = [r for r in scaling if r.case.seq_len == _ROWS_AT_STEPS]
        _draw_growth(figure.add_subplot(grid[-1, 0]), steps, "steps", lambda r: r.case.seq_len)
        _draw_growth(figure.add_subplot(grid[-1, 1]), rows, "rows", lambda r: r.case.batch)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True


def _draw_ratios(axes: Any, results: Sequence[Result]) -> None:
    """Bars from 1, to the right where rnnpack is faster; the best peer as a dot on each."""
    places = range(len(results))
    gains = [(r.ratio(BASELINE) or 1) - 1 for r in results]
    axes.barh(places, gains, left=1, color="tab:blue", label=BASELINE)
    best = [(r.ratio(peer) if (peer := r.best_peer()) else None) or 1 for r in results]
    axes.plot(best, places, "o", color="tab:orange", markersize=4, label="best peer")
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks(places, [r.case.id for r in results], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("times as fast as")
    axes.legend()


def _draw_shares(axes: Any, results: Sequence[Result]) -> None:
    shares = [r.share_of_limit() or 0 for r in results]
    axes.barh(range(len(results)), shares, color="tab:green")
    axes.tick_params(labelleft=False)
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of the limit")


def _draw_growth(
    axes: Any, results: Sequence[Result], unit: str, size: Callable[[Result], int]
) -> None:
    """Time per step or row: flat means that time grows in proportion."""
    names = sorted({name for r in results for name in r.figures})
    for name in names:
        points = [(size(r), r.figures[name].median) for r in results if name in r.figures]
        points.sort()
        sizes, seconds = zip(*points, strict=True)
        each = [1e6 * s / n for s, n in zip(seconds, sizes, strict=True)]
        axes.plot(sizes, each, "o-", label=name, linewidth=2.5 if name == OURS else 1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(unit)
    axes.set_ylabel(f"us per {unit.removesuffix('s')}")
    axes.legend()
