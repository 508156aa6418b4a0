"""Growth of resident memory in one call of a case, measured in a process that does nothing else.

Run as `python -m rnnpack.bench.memory <suite/name> <contestant> <threads>`; it prints the growth in
bytes.
"""

from __future__ import annotations

import dataclasses
import gc
import subprocess
import sys
from pathlib import Path

import torch

from rnnpack.bench.cases import Case, select
from rnnpack.bench.contestant import Absent
from rnnpack.bench.peers import CONTESTANTS
from rnnpack.bench.problem import build_problem

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


def measure_in_process(case: Case, name: str, threads: int) -> int:
    """Bytes by which one call of `case` raises the resident set of a fresh process, at its peak.

    Raises:
        Absent: the system keeps no such figure, or the process failed.
    """
    if not _STATUS.exists() or not _RESET.exists():
        raise Absent("the peak of resident memory is read from Linux's /proc, which is not here")
    command = [sys.executable, "-m", "rnnpack.bench.memory", case.id, name, str(threads)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    if done.returncode:
        raise Absent(f"the process that measures memory failed: {done.stderr.strip()[-300:]}")
    return int(done.stdout.split()[-1])


def _resident(field: str) -> int:
    """`VmRSS`, what is resident now, or `VmHWM`, its peak, in bytes."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def _growth(case: Case, name: str, threads: int) -> int:
    torch.set_num_threads(threads)
    build = CONTESTANTS[name]
    with torch.set_grad_enabled(case.mode == "train"):
        # Threads, code and the allocators' first blocks belong to the process, not to the call.
        build(build_problem(dataclasses.replace(case, seq_len=2)), threads).call()
        contestant = build(build_problem(case), threads)
        gc.collect()
        before = _resident("VmRSS")
        _RESET.write_text("5")  # the peak starts anew from what is resident now
        kept = contestant.call()
        growth = _resident("VmHWM") - before
    del kept
    return growth


if __name__ == "__main__":
    case_id, contestant_name, thread_count = sys.argv[1:]
    print(_growth(select(pattern=case_id)[0], contestant_name, int(thread_count)))
