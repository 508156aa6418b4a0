"""The command line: `rnnpack info`, and how `rnnpack bench` is found there."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rnnpack
from rnnpack import cli
from rnnpack.bench.cases import select
from rnnpack.ops import LibraryStatus, library_status

SCRIPT = Path(sys.executable).with_name("rnnpack")


def lines_of(text: str) -> dict[str, str]:
    """Read lines of a name, two or more spaces, and a value."""
    pairs = (line.split("  ", 1) for line in text.splitlines())
    return {name: value.strip() for name, value in pairs}


def check_info(text: str) -> None:
    lines = lines_of(text)
    assert lines["rnnpack"] == rnnpack.__version__
    assert lines["torch"] == torch.__version__
    assert lines["python"] == sys.version.split()[0]
    assert int(lines["threads"]) >= 1
    status = library_status()
    assert lines["instruction set"] == status.isa
    if status.loaded:
        assert lines["native library"] == status.path
        assert lines["processor features"] == " ".join(status.features) or not status.features


@pytest.mark.parametrize(
    "command", [[str(SCRIPT)], [sys.executable, "-m", "rnnpack"]], ids=["script", "module"]
)
def test_info(command: list[str]) -> None:
    if not Path(command[0]).exists():
        pytest.skip("the package is not installed: there is no script")
    done = subprocess.run([*command, "info"], capture_output=True, text=True, check=False)
    assert done.returncode == (0 if library_status().loaded else 1), done.stderr
    assert not done.stderr
    check_info(done.stdout)


def test_info_tells_the_threads_of_this_process(capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(3)
    cli.main(["info"])
    text = capsys.readouterr().out
    check_info(text)
    assert lines_of(text)["threads"] == "3"


def test_info_says_why_there_is_no_library(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status = LibraryStatus(False, reason="it was eaten by mice")
    monkeypatch.setattr(cli, "library_status", lambda: status)
    assert cli.main(["info"]) == 1
    lines = lines_of(capsys.readouterr().out)
    assert lines["native library"] == "not loaded: it was eaten by mice"
    assert lines["instruction set"] == "none"


def test_bench_list_names_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--list"]) == 0
    listed = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    cases = select()
    assert [name for name, _ in listed] == [case.id for case in cases]
    assert all(reason for _, reason in listed)
    assert len({case.id for case in cases}) == len(cases), "two cases have one name"


def test_bench_list_can_be_narrowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--list", "--suite", "gru", "--case", "*32*"]) == 0
    listed = capsys.readouterr().out.split("\n")[:-1]
    assert listed
    assert all(line.startswith("gru/") and "32" in line for line in listed)


def test_bench_without_a_matching_case_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--list", "--case", "no such case"]) == 2
    assert "no such case" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [[], ["launch"], ["bench", "--threads", "0"], ["bench", "--threads", "x"],
     ["bench", "--suite", "none"], ["bench", "--peers", "nobody"]],
    ids=" ".join,
)  # fmt: skip
def test_wrong_use_ends_with_status_2_and_help(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "usage: rnnpack" in capsys.readouterr().err
