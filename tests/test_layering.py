"""Who may import whom: read from the sources, so it holds in code that no test runs, too."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "rnnpack"

# What each module of rnnpack may import of the others, a package standing for all in it.
# "rnnpack" is the package as its users see it: the public names, and no module behind them.
BELOW_LAYERS = {"functional", "sequences", "stream", "derived", "tracing", "ops"}
MAY_IMPORT = {
    "reference": set(),
    "ops": {"reference"},
    "onnx": {"ops", "reference"},
    "sequences": set(),
    "derived": set(),
    "tracing": set(),
    "stream": {"ops"},
    "functional": {"ops", "onnx"},
    "layers": BELOW_LAYERS,
    "cells": BELOW_LAYERS,
    "explain": BELOW_LAYERS | {"layers", "cells"},
    "convert": BELOW_LAYERS | {"layers", "cells"},
    "amp": {"convert"},
    "packing": BELOW_LAYERS | {"layers", "cells", "convert"},
    "bench": {"rnnpack"},
    "cli": {"rnnpack", "bench"},
    "__main__": {"cli"},
}
# The commands: `import rnnpack` leaves them alone, and only they may use more than torch.
COMMANDS = {"bench", "cli", "__main__"}
# Public names that __init__ does not export.
PUBLIC_IN_MODULES = {
    "rnnpack.ops.library_status",
    "rnnpack.ops.eager_calls",
    "rnnpack.reference.layer",
}

# C++, inner ring first: a file includes its own ring and those before it.
RINGS = ["base", "kernels", "engine", "ops", "python"]
TORCH = re.compile(r"(torch|ATen|c10|caffe2)/")
STABLE_ABI = ("torch/csrc/stable/", "torch/headeronly/", "torch/csrc/inductor/aoti_torch/c/")
INTRINSICS = re.compile(r"\w+intrin\.h|arm_(neon|sve|bf16|fp16|acle)\.h")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


# --- Python ---------------------------------------------------------------------------------------


def module_of(path: Path, root: Path) -> str:
    """The module or subpackage that a file belongs to: `layers`, `ops`, `__init__`."""
    return path.relative_to(root).parts[0].removesuffix(".py")


def names_used(source: str, package: str) -> Iterator[str]:
    """The dotted names that a file of `package` imports, or reaches from rnnpack or torch.ops."""
    tree = ast.parse(source)
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            # `import a.b` binds a: what is used of it is seen as an attribute below.
            yield from (a.name if a.asname else a.name.split(".")[0] for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level]
            base = ".".join([*(parents if node.level else []), *filter(None, [node.module])])
            yield from (f"{base}.{a.name}" for a in node.names)
        elif isinstance(node, ast.Attribute) and id(node) not in inner:
            dotted = ast.unparse(node)
            if re.match(r"(rnnpack|torch\.ops)\.[\w.]+$", dotted):
                yield dotted


def exported(source: str) -> set[str]:
    """The names in the `__all__` of `__init__.py`, and the version, as users write them."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return {f"rnnpack.{name}" for name in [*ast.literal_eval(node.value), "__version__"]}
    raise AssertionError("expected rnnpack/__init__.py to assign a literal __all__, found none")


def import_violation(module: str, name: str, public: set[str]) -> str | None:
    """Why `module` of rnnpack may not use the dotted `name`; None if it may."""
    top, *rest = name.split(".")
    if name.startswith("torch.ops.rnnpack") and module != "ops":
        return "torch.ops.rnnpack is reached through rnnpack.ops only"
    if top != "rnnpack":
        always_there = top == "torch" or top in sys.stdlib_module_names
        return None if always_there or module in COMMANDS else "run-time code needs torch alone"
    if module == "__init__":
        return "import rnnpack must not load the commands" if {*rest[:1]} & COMMANDS else None
    allowed = MAY_IMPORT.get(module, set())
    is_public = not rest or any(f"{name}.".startswith(f"{known}.") for known in public)
    if {*rest[:1]} & {module, *allowed} or ("rnnpack" in allowed and is_public):
        return None
    return f"{module} may import {sorted(allowed)}; of rnnpack itself only public names"


def python_violations(root: Path) -> list[str]:
    public = exported((root / "__init__.py").read_text()) | PUBLIC_IN_MODULES
    found = []
    for path in sorted(root.rglob("*.py")):
        package = ".".join(["rnnpack", *path.parent.relative_to(root).parts])
        for name in names_used(path.read_text(), package):
            if reason := import_violation(module_of(path, root), name, public):
                found.append(f"{path.relative_to(root)}: {name}: {reason}")
    return found


def test_every_module_has_its_place():
    modules = {module_of(path, PACKAGE) for path in PACKAGE.rglob("*.py")} - {"__init__"}
    assert modules <= MAY_IMPORT.keys(), "a new module: say in MAY_IMPORT what it may import"


def test_python_imports_point_downwards():
    assert python_violations(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("layers.py", "import numpy"),
        ("layers.py", "import rnnpack"),
        ("layers.py", "from rnnpack.convert import convert"),
        ("functional.py", "from rnnpack import layers"),
        ("functional.py", "from . import layers"),
        ("functional.py", "import rnnpack.layers as l"),
        ("functional.py", "def f():\n    from .layers import LSTM"),
        ("functional.py", "import torch\ntorch.ops.rnnpack.infer()"),
        ("reference/cells.py", "from ..ops import infer"),
        ("reference/cells.py", "from rnnpack import ops"),
        ("bench/cases.py", "from rnnpack.functional import lstm"),
        ("bench/cases.py", "import rnnpack\nrnnpack.ops.infer()"),
        ("cli.py", "from rnnpack import functional"),
        ("__init__.py", "__all__ = []\nfrom rnnpack.bench import run"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path, file, line):
    (tmp_path / "__init__.py").write_text("__all__ = ['LSTM']\n")
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(line)
    assert len(python_violations(tmp_path)) == 1


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("layers.py", "import math\nfrom torch import nn\nfrom .functional import lstm"),
        ("ops/library.py", "import torch\nfrom . import status\ntorch.ops.rnnpack.infer()"),
        ("reference/cells.py", "from .sequence import layer\nimport torch"),
        ("bench/cases.py", "import onnx\nimport rnnpack\nrnnpack.LSTM(1, 1).forward"),
        ("cli.py", "import rnnpack.ops\nrnnpack.ops.library_status().isa"),
        ("cli.py", "from rnnpack.bench import run\nfrom rnnpack import LSTM, __version__"),
    ],
)
def test_an_allowed_import_is_not(tmp_path, file, line):
    (tmp_path / "__init__.py").write_text("__all__ = ['LSTM']\n")
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(line)
    assert python_violations(tmp_path) == []


# --- C++ ------------------------------------------------------------------------------------------


def cxx_files(root: Path) -> list[Path]:
    files = [*(root / "csrc").rglob("*"), *(root / "tests" / "native").rglob("*")]
    return sorted(path for path in files if path.suffix in {".h", ".inc", ".cpp"})


def included(path: Path, root: Path) -> Iterator[tuple[str, Path | None]]:
    """Each include of a file: its text, and the file of ours that it means; None for <...>."""
    for mark, name in INCLUDE.findall(path.read_text()):
        beside, below_root = path.parent / name, root / "csrc" / name
        yield name, None if mark == "<" else beside if beside.exists() else below_root


def ring_of(path: Path, root: Path) -> int:
    """The ring of a file; native tests stand where the engine stands, since they know no torch."""
    parts = path.relative_to(root).parts
    return RINGS.index(parts[1]) if parts[0] == "csrc" else RINGS.index("engine")


def include_violation(path: Path, name: str, target: Path | None, root: Path) -> str | None:
    """Why a file may not include this; None if it may."""
    ring = RINGS[ring_of(path, root)]
    if target is not None and not target.exists():
        return "no such file in csrc; system headers are written <...>"
    if target is not None:
        outwards = target.is_relative_to(root / "csrc") and ring_of(target, root) > ring_of(
            path, root
        )
        return f"{ring} includes only {RINGS[: RINGS.index(ring) + 1]}" if outwards else None
    torch = TORCH.match(name) is not None
    rules = [
        (name != "Python.h" or ring == "python", "Python is known to csrc/python only"),
        (not torch or ring == "ops", "torch is known to csrc/ops only"),
        (not torch or name.startswith(STABLE_ABI), f"only the stable ABI: {STABLE_ABI}"),
        (
            not INTRINSICS.fullmatch(name) or path.parent == root / "csrc" / "base" / "simd",
            "intrinsics stand in csrc/base/simd only",
        ),
        (name != "omp.h" or ring in {"engine", "ops"}, "threads begin in the engine"),
    ]
    return next((reason for kept, reason in rules if not kept), None)


def cxx_violations(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}: {name}: {reason}"
        for path in cxx_files(root)
        for name, target in included(path, root)
        if (reason := include_violation(path, name, target, root))
    ]


def reachable(path: Path, root: Path) -> set[Path]:
    """The files of ours that a file includes, directly or through others."""
    seen: set[Path] = set()
    todo = [path]
    while todo:
        new = {target for _, target in included(todo.pop(), root) if target is not None} - seen
        seen |= new
        todo += new
    return seen


def test_cxx_includes_point_inwards():
    assert cxx_files(ROOT), "expected C++ sources in csrc, found none"
    assert cxx_violations(ROOT) == []


def test_vectors_are_compiled_in_isa_sources_only():
    # Elsewhere an inline function of vec.h would exist a second time, with other instructions.
    csrc = ROOT / "csrc"
    sources = [p for p in csrc.rglob("*.cpp") if p.parent != csrc / "kernels" / "isa"]
    users = [p for p in sources if any(csrc / "base/simd" in t.parents for t in reachable(p, ROOT))]
    assert users == []


def test_every_isa_source_is_built():
    cmake = (ROOT / "CMakeLists.txt").read_text()
    names = [path.name for path in (ROOT / "csrc" / "kernels" / "isa").glob("*.cpp")]
    assert names and [name for name in names if f"{{isa}}/{name}" not in cmake] == []


@pytest.mark.parametrize(
    ("file", "include"),
    [
        ("csrc/base/x.h", '"kernels/gemm.h"'),
        ("csrc/kernels/x.cpp", '"engine/team.h"'),
        ("csrc/engine/x.cpp", '"ops/checks.h"'),
        ("csrc/engine/x.cpp", '"base/absent.h"'),
        ("tests/native/x.cpp", '"ops/checks.h"'),
        ("csrc/engine/x.cpp", "<torch/csrc/stable/tensor.h>"),
        ("csrc/ops/x.cpp", "<torch/extension.h>"),
        ("csrc/ops/x.cpp", "<ATen/ATen.h>"),
        ("csrc/ops/x.cpp", "<Python.h>"),
        ("csrc/ops/x.cpp", '"python/x.h"'),
        ("csrc/python/x.cpp", "<torch/csrc/stable/tensor.h>"),
        ("csrc/base/x.h", "<immintrin.h>"),
        ("csrc/kernels/isa/neon.cpp", "<arm_neon.h>"),
        ("csrc/kernels/x.cpp", "<omp.h>"),
    ],
)
def test_a_forbidden_include_is_found(tmp_path, file, include):
    tree = ["csrc/kernels/gemm.h", "csrc/engine/team.h", "csrc/ops/checks.h", file]
    for path in (tmp_path / name for name in tree):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / file).write_text(f"// {file}\n#include {include}\n")
    assert len(cxx_violations(tmp_path)) == 1


# --- All files ------------------------------------------------------------------------------------

# Folders in which people and machines keep their work.
MACHINE_PATH = re.compile(r"(?<![\w.~:/-])/(?:work|tmp|root|mnt|home/\w+|Users/\w+)/\w+")


def test_no_file_names_a_path_of_one_machine():
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    found = []
    for name in filter(None, listing.stdout.split("\0")):
        try:
            text = (ROOT / name).read_text()
        except (UnicodeDecodeError, FileNotFoundError):
            continue  # not text, or deleted but still in the index
        found += [f"{name}: {match[0]}" for match in MACHINE_PATH.finditer(text)]
    assert found == []


@pytest.mark.parametrize("folder", ["work", "tmp", "root", "home/anna", "Users/anna"])
def test_a_machine_path_is_found(folder):
    assert MACHINE_PATH.search(f'open("/{folder}/data.json")')
    assert not MACHINE_PATH.search(f"build/{folder}/data.json")
