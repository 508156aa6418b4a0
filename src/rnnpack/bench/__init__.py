"""`rnnpack bench`: rnnpack beside its peers, in one run, on this machine."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path

from rnnpack.bench.cases import SUITES, Case, select
from rnnpack.bench.peers import CONTESTANTS, OURS

_PEERS = tuple(name for name in CONTESTANTS if name != OURS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to a parser."""
    parser.add_argument(
        "--suite", action="append", choices=SUITES, help="a suite of cases; repeatable; default all"
    )
    parser.add_argument(
        "--case", metavar="GLOB", help="only cases whose name or suite/name matches"
    )
    parser.add_argument(
        "--threads",
        type=_positive,
        help="threads of every contestant (default: torch's, at most 2)",
    )
    parser.add_argument(
        "--peers",
        nargs="+",
        choices=_PEERS,
        default=_PEERS,
        metavar="PEER",
        help=f"who runs beside rnnpack: {', '.join(_PEERS)} (torch.nn always does)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--chart", type=Path, metavar="FILE.png", help="draw the results there")
    parser.add_argument("--list", action="store_true", help="print the cases and run nothing")
    parser.add_argument(
        "--quick", action="store_true", help="one block of one call: shows that it runs, no more"
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


def main(args: argparse.Namespace) -> int:
    """Run the command.

    Returns 0; 1 if rnnpack failed or computed a wrong value in any case; 2 if there was nothing to
    run or a package is missing.
    """
    cases = select(args.suite, args.case)
    if not cases:
        print(
            f"expected a pattern that matches a case, got {args.case!r}; see --list",
            file=sys.stderr,
        )
        return 2
    if args.list:
        print("\n".join(f"{case.id:<50} {case.reason}" for case in cases))
        return 0
    needed = ["rich"] + (["matplotlib"] if args.chart else [])
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        install = "pip install 'rnnpack[bench]'"
        print(f"rnnpack bench needs {', '.join(missing)}; install with: {install}", file=sys.stderr)
        return 2
    return _run(args, cases)


def _run(args: argparse.Namespace, cases: list[Case]) -> int:
    # Imported here, so that the parser of the command line costs nothing.
    import torch
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from rnnpack.bench import chart, deployment, limits, machine, report, runner
    from rnnpack.ops import library_status

    threads = args.threads or min(2, torch.get_num_threads())
    plan = runner.Plan(threads=threads, peers=tuple(args.peers))
    if args.quick:
        plan = runner.Plan(threads, plan.peers, blocks=1, block_seconds=0.0, pause=0.0, warm=0.0)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)  # a file or a pipe has no edge to wrap at
    facts = machine.facts()
    library = library_status().path
    probes = limits.measure(library, threads, quick=args.quick) if library else None
    report.print_machine(console, facts, probes, plan)
    results = []
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(cases))
        for case in cases:

            def tell(text: str, name: str = case.id) -> None:
                progress.update(task, description=f"{name}: {text}")

            if case.measure == "deployment":
                result = deployment.run_case(case, plan, tell=tell)
            else:
                result = runner.run_case(case, plan, probes, tell=tell)
            if library and threads > 1:
                time.sleep(plan.pause)  # idle threads that still spin would be in the way
                result.handover = limits.handover(library)
            results.append(result)
            progress.console.print(report.line(result), highlight=False, soft_wrap=True)
            progress.advance(task)
    report.print_results(console, results)
    if args.quick:
        console.print("One call each (--quick): these figures show that it runs, and no speed.")
    if args.json:
        report.write_json(args.json, results, facts, probes, plan)
    if args.chart:
        drawn = chart.write_chart(args.chart, results, f"{facts['cpu']}, threads: {threads}")
        if not drawn:
            console.print("No chart: no timed case has a figure of rnnpack.")
    return 1 if any(result.failed for result in results) else 0
