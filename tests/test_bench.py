"""The benchmark itself: what it writes, and that it reports no speed which means nothing."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import rnnpack
from rnnpack import cli
from rnnpack.bench import peers, runner
from rnnpack.bench.cases import Case
from rnnpack.bench.contestant import Absent, Contestant
from rnnpack.ops import library_status

pytestmark = [
    pytest.mark.skipif(
        not library_status().loaded, reason=f"no native library: {library_status().reason}"
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("rich") is None, reason="rich, of the bench extra, is missing"
    ),
]

OURS, BASELINE = peers.OURS, peers.BASELINE
ONCE = runner.Plan(threads=1, peers=(), blocks=1, block_seconds=0.0, pause=0.0)


def tiny(**options: Any) -> Case:
    sizes = {"seq_len": 3, "batch": 2, "input_size": 5, "hidden_size": 7}
    settings = {"name": "tiny", "suite": "tests", "reason": "small", "cell": "lstm"}
    return Case(**settings | sizes | options)


def run_bench(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the command on one thread; returns its exit status and what it wrote."""
    file = tmp_path / "results.json"
    options = ("--quick", "--threads", "1", "--peers", BASELINE, "--json", str(file))
    status = cli.main(["bench", *options, *arguments])
    return status, json.loads(file.read_text())


# --- What it writes -------------------------------------------------------------------------------


def test_results_of_several_threads_say_how_far_apart_cores_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, document = run_bench(tmp_path, "--case", "step/lstm-1x1x64", "--threads", "2")
    assert status == 0
    (result,) = document["results"]
    assert 1e-9 < result["handover"] < 1.0
    assert "from core to core" in capsys.readouterr().out


def test_results_have_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, document = run_bench(tmp_path, "--suite", "step", "--case", "lstm-1x1x64")
    assert status == 0
    assert set(document) == {"machine", "plan", "probes", "results"}
    assert document["plan"]["threads"] == 1
    machine = document["machine"]
    assert machine["isa"] == library_status().isa
    assert machine["cores"] >= 1 and machine["cpu"]
    assert machine["versions"]["torch"] == torch.__version__
    assert machine["versions"]["rnnpack"] == rnnpack.__version__
    assert document["probes"]["flops"] > 1e8
    assert all(bandwidth > 1e7 for bandwidth in document["probes"]["bandwidths"])

    (result,) = document["results"]
    assert result["handover"] is None  # one thread
    assert result["id"] == "step/lstm-1x1x64"
    assert result["case"]["hidden_size"] == 64
    assert not result["failed"]
    assert set(result["figures"]) == {OURS, BASELINE}
    for figure in result["figures"].values():
        assert 0 < figure["p10"] <= figure["median"] <= figure["p90"] < 10
        assert figure["calls"] >= 1 and figure["first"] > 0
    ratio = result["figures"][BASELINE]["median"] / result["figures"][OURS]["median"]
    assert result["ratio_to_torch_nn"] == pytest.approx(ratio)
    assert result["best_peer"] == BASELINE
    assert result["limit"]["seconds"] > 0
    assert result["share_of_limit"] == pytest.approx(
        result["limit"]["seconds"] / result["figures"][OURS]["median"]
    )
    assert result["errors"][OURS] <= 1e-4
    assert result["path"].startswith("infer-direct")

    printed = capsys.readouterr().out
    assert "lstm-1x1x64" in printed
    assert "no speed" in printed, "--quick must say that its figures are none"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cell": "gru", "bidirectional": True, "layers": 2},
        {"cell": "rnn_relu", "mode": "train"},
        {"proj_size": 3, "mode": "train", "recompute": True},
        {"cell": "lstm_cell", "seq_len": 1, "states": True},
        {"cell": "gru_cell", "seq_len": 1, "states": True, "mode": "train"},
        {"seq_len": 1, "mode": "stream", "layers": 2},
    ],
    ids=str,
)
def test_every_mode_runs_and_agrees_with_torch(options: dict[str, Any]) -> None:
    result = runner.run_case(tiny(**options), ONCE, None)
    assert not result.failed, result.absent
    assert set(result.figures) == {OURS, BASELINE}, result.absent
    assert result.errors[OURS] <= 1e-4


# --- What it refuses ------------------------------------------------------------------------------


def replace_ours(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    monkeypatch.setitem(peers.CONTESTANTS, OURS, make)


@pytest.mark.parametrize("wrong", [1e-3, float("nan"), float("inf")])
def test_no_speed_of_a_wrong_value(
    wrong: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def make(problem: Any, threads: int) -> Contestant:
        right = peers.torch_nn(problem, threads)

        def values(raw: Any) -> dict[str, torch.Tensor]:
            changed = {name: value.clone() for name, value in right.values(raw).items()}
            changed["output"].flatten()[0] += wrong
            return changed

        return Contestant(right.call, values, path="infer: made up")

    replace_ours(monkeypatch, make)
    status, document = run_bench(tmp_path, "--case", "step/lstm-1x1x64")
    assert status == 1
    (result,) = document["results"]
    assert result["failed"]
    assert OURS not in result["figures"]
    assert "differ" in result["absent"][OURS]
    assert result["ratio_to_torch_nn"] is None and result["share_of_limit"] is None


def test_no_speed_of_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def make(problem: Any, threads: int) -> Contestant:
        raise ZeroDivisionError("nothing divided")

    replace_ours(monkeypatch, make)
    status, document = run_bench(tmp_path, "--case", "step/lstm-1x1x64")
    assert status == 1
    (result,) = document["results"]
    assert result["failed"] and OURS not in result["figures"]
    assert "nothing divided" in result["absent"][OURS]


def test_no_speed_of_a_path_that_is_not_native(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = rnnpack.Path("torch", "it is Sunday")
    monkeypatch.setattr(rnnpack, "explain", lambda *args, **kwargs: path)
    _, document = run_bench(tmp_path, "--case", "step/lstm-1x1x64")
    (result,) = document["results"]
    assert set(result["figures"]) == {BASELINE}
    assert "not native" in result["absent"][OURS] and "it is Sunday" in result["absent"][OURS]
    assert result["ratio_to_torch_nn"] is None
    assert "it is Sunday" in capsys.readouterr().out


def test_an_absent_peer_is_said_to_be_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(problem: Any, threads: int) -> Contestant:
        raise Absent("onnxruntime is not installed")

    monkeypatch.setitem(peers.CONTESTANTS, "onnxruntime", make)
    plan = runner.Plan(1, ("onnxruntime",), blocks=1, block_seconds=0.0, pause=0.0)
    result = runner.run_case(tiny(), plan, None)
    assert result.absent == {"onnxruntime": "onnxruntime is not installed"}
    assert not result.failed and OURS in result.figures
