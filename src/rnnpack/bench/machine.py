"""What the figures were measured on: the machine, the versions, the commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from rnnpack.ops import library_status

_PACKAGES = ("rnnpack", "torch", "numpy", "onnx", "onnxruntime", "openvino", "jax", "jaxlib")


def facts() -> dict[str, Any]:
    """Machine, versions and commit, ready for JSON; what cannot be known here is None."""
    status = library_status()
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "caches": _caches(),
        "isa": status.isa,
        "cpu_features": list(status.features),
        "system": platform.platform(),
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "commit": _commit(),
    }


def cpu_model() -> str:
    """The name the processor gives itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _caches() -> list[str]:
    """One line a cache of the first core: level, kind, size, who shares it (Linux)."""
    found = []
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size, shared = (
            (folder / name).read_text().strip()
            for name in ("level", "type", "size", "shared_cpu_list")
        )
        found.append(f"L{level} {kind} {size}, cores {shared}")
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the checkout in which this file lies, if it lies in one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--tags"]
    try:
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
