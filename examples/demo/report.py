"""The results as two tables for the terminal and one chart."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # writes files; needs no display

from matplotlib import pyplot as plt
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from measure import Result


def print_tables(results: list[Result], console: Console) -> None:
    """First whether the numbers agree, then the times, then what was computed and on which path."""
    console.print(numbers(results))
    console.print(
        "Errors: largest distance from torch.nn in float64. Allowed: 3 x error of torch.nn + "
        "4 eps x largest value.\n"
    )
    console.print(speeds(results))
    for result in results:
        wrong = "" if result.finding.good else "[bold red]WRONG:[/] "
        console.print(f"[bold]{result.job.name}[/] {wrong}{result.finding.text}", highlight=False)
        console.print(f"    {result.job.layers}, path: {result.paths}", highlight=False)


def numbers(results: list[Result]) -> Table:
    table = table_of(
        "Final output in float32, rnnpack beside torch.nn",
        "largest\ndifference",
        "\nallowed",
        "error of\ntorch.nn",
        "error of\nrnnpack",
        "from publisher's\nown program",
        "",
    )
    for result in results:
        agreement = result.agreement
        published = agreement.published
        table.add_row(
            result.job.name,
            f"{agreement.difference:.1e}",
            f"{agreement.bound:.1e}",
            f"{agreement.error_torch:.1e}",
            f"{agreement.error_rnnpack:.1e}",
            "" if published is None else f"{published:.1e}",
            "[green]agree[/]" if agreement.good else "[bold red]DIFFER[/]",
        )
    return table


def speeds(results: list[Result]) -> Table:
    table = table_of(
        "Time for one unit of work, median and 99th percentile",
        "torch.nn\nmedian",
        "\np99",
        "rnnpack\nmedian",
        "\np99",
        "\nratio",
    )
    for result in results:
        for name, (theirs, ours), ratio in [
            (f"{result.job.name}, {result.job.unit}", result.whole, result.whole.ratio),
            ("  recurrent layers alone", result.layers, result.layers.ratio),
        ]:
            table.add_row(
                name,
                duration(theirs.median),
                duration(theirs.p99),
                duration(ours.median),
                duration(ours.p99),
                # A speed is claimed only where the native engine ran.
                f"{ratio:.2f} x" if result.native else "not native",
            )
    return table


def table_of(title: str, *columns: str) -> Table:
    """A table of a model's name and columns of numbers."""
    table = Table("\nmodel", title=title, title_justify="left", box=SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def duration(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"


def write_chart(results: list[Result], file: Path, title: str) -> None:
    """Left, how many times faster than torch.nn; right, differences beside their bounds."""
    file.parent.mkdir(parents=True, exist_ok=True)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(12, 1.6 + 0.8 * len(results)), sharey=True, layout="constrained"
    )
    rows = range(len(results))
    for offset, label, ratios in [
        (-0.2, "whole model", [result.whole.ratio for result in results]),
        (0.2, "recurrent layers alone", [result.layers.ratio for result in results]),
    ]:
        shown = [x if r.native else 0.0 for x, r in zip(ratios, results, strict=True)]
        bars = left.barh([row + offset for row in rows], shown, height=0.36, label=label)
        left.bar_label(bars, [f"{x:.2f} x" if x else "not native" for x in shown], padding=3)
    left.axvline(1, color="grey", linewidth=1)
    left.set_yticks(rows, [f"{r.job.name}, {r.job.unit}\n{r.job.layers}" for r in results])
    left.invert_yaxis()
    left.margins(x=0.15)
    left.set_xlabel("times faster than torch.nn")

    for row, result in enumerate(results):
        agreement = result.agreement
        right.plot([agreement.bound] * 2, [row - 0.3, row + 0.3], color="C3", linewidth=2)
        right.plot(agreement.difference, row, "o", color="C0")
    right.plot([], [], "o", color="C0", label="difference from torch.nn")
    right.plot([], [], color="C3", label="allowed")
    # Equal bits have no place on a logarithmic axis; below 1e-9 it is linear down to zero.
    right.set_xscale("symlog", linthresh=1e-9)
    right.set_xlim(left=-2e-10)
    right.set_xlabel("largest difference of the final output")
    right.grid(axis="x", alpha=0.3)
    for axes in (left, right):
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False)
    figure.suptitle(title)
    figure.savefig(file, dpi=120)
    plt.close(figure)
