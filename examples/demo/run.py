"""Four published models at their real work, with torch.nn and with rnnpack.

Prints how far the final outputs differ and how long a unit of work takes, writes a chart, and
exits with status 1 if an output differs by more than rounding or does not mean what it should.
"""

import argparse
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import beats
import phonemes
import rnnpack
import speaker
import voice_activity
from measure import measure
from report import print_tables, write_chart


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="where the chart goes")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    # Without a terminal, in a log, the tables keep their width.
    console = Console(width=None if sys.stdout.isatty() else 100)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        loading = progress.add_task("models, sound, features", total=1)
        jobs = [speaker.job(), *beats.jobs(), voice_activity.job(), phonemes.job()]
        progress.advance(loading)
        results = []
        for job in jobs:
            task = progress.add_task(job.name, total=1)
            results.append(measure(job))
            progress.advance(task)

    conditions = f"rnnpack {rnnpack.__version__}, torch {torch.__version__}, "
    conditions += f"threads: {torch.get_num_threads()}"
    console.print(f"\n{conditions}\n", highlight=False)
    print_tables(results, console)
    chart = arguments.out / "chart.png"
    write_chart(results, chart, conditions)
    console.print(f"\nchart: {chart}")
    return 0 if all(result.good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
