"""The command line: `rnnpack info`, `rnnpack bench`."""

from __future__ import annotations

import argparse
import platform
import sys

import torch

import rnnpack
from rnnpack import bench as bench_package
from rnnpack.ops import eager_calls, library_status


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="rnnpack", description="Recurrent layers for PyTorch on one native engine."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions, processor features, the instruction set chosen")
    bench = commands.add_parser("bench", help="measure against torch.nn and other runtimes")
    bench_package.add_arguments(bench)
    chosen = parser.parse_args(arguments)
    return info() if chosen.command == "info" else bench_package.main(chosen)


def info() -> int:
    """Print what a report of a problem needs; fails if the native library did not load."""
    status = library_status()
    lines = {
        "rnnpack": rnnpack.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "processor features": " ".join(status.features) or "none that matter",
        "native library": status.path if status.loaded else f"not loaded: {status.reason}",
        "instruction set": status.isa,
        "eager calls": eager_calls,
    }
    width = max(map(len, lines))
    for name, value in lines.items():
        sys.stdout.write(f"{name:{width}}  {value}\n")
    return 0 if status.loaded else 1
