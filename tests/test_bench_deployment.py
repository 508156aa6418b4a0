"""The suite `deployment` of the benchmark: values first, then times, then what compiling takes."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rnnpack import cli
from rnnpack.bench import deployment, peers, runner
from rnnpack.bench.cases import select
from rnnpack.bench.contestant import Contestant

OURS, BASELINE, PACKED = peers.OURS, peers.BASELINE, "rnnpack, packed"


@pytest.fixture
def quick_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the ways that compile nothing; tests/test_deploy.py runs the others."""
    ways = {name: deployment.WAYS[name] for name in (BASELINE, OURS, PACKED)}
    monkeypatch.setattr(deployment, "WAYS", ways)
    monkeypatch.setattr(deployment, "COMPILED", (PACKED,))


@pytest.mark.usefixtures("quick_ways")
def test_the_suite_runs_and_says_what_each_way_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.json"
    options = ["--quick", "--threads", "1", "--json", str(file)]
    assert cli.main(["bench", "--suite", "deployment", *options]) == 0
    (result,) = json.loads(file.read_text())["results"]
    assert set(result["figures"]) == {BASELINE, OURS, PACKED}
    assert max(result["errors"].values()) <= 1e-4
    assert result["path"].startswith("infer")
    assert set(result["compile_seconds"]) == {PACKED}
    assert result["compile_seconds"][PACKED] > 0
    assert result["best_peer"] == BASELINE, "rnnpack in another form is not a peer"
    printed = capsys.readouterr().out
    assert PACKED in printed and "until the first result" in printed


def test_no_speed_of_a_way_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(problem: Any, threads: int) -> Contestant:
        right = deployment.WAYS[OURS](problem, threads)
        return Contestant(right.call, lambda raw: {"output": raw + 1e-2})

    ways = {BASELINE: deployment.WAYS[BASELINE], "rnnpack, wrong": wrong}
    case = dataclasses.replace(select(["deployment"])[0], seq_len=3, input_size=5, hidden_size=7)
    plan = runner.Plan(threads=1, peers=(), blocks=1, block_seconds=0.0, pause=0.0)
    problem, result = deployment.build(case), runner.Result(case)
    with torch.no_grad():
        admitted = runner.admit(problem, ways, plan, result, lambda _: None)
    assert result.failed and "rnnpack, wrong" not in admitted
    assert "differ" in result.absent["rnnpack, wrong"]
