"""Where the files of an installed package lie, found without importing the package."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def package_file(package: str, path: str) -> Path:
    """The file `path` inside the installed distribution `package`.

    Raises:
        SystemExit: the package or the file is not there; the text says how to get it.
    """
    advice = "run `make demo`, or `pip install --no-deps -r examples/demo/requirements.txt`"
    try:
        file = Path(str(distribution(package).locate_file(path)))
    except PackageNotFoundError:
        raise SystemExit(
            f"the demo needs the package {package}, which is absent: {advice}"
        ) from None
    if not file.is_file():
        raise SystemExit(f"the package {package} has no file {path}: {advice}")
    return file
