"""Models on their way out of Python: AOTInductor packages in Python and C++, and the demo's models.

The four published models of examples/demo do their real work, whole pieces of music and calls,
through every way of deployment; weights and sound come from the packages that the demo takes.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import rnnpack
from helpers import assert_as_accurate
from rnnpack.ops import library_status

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
sys.path.append(str(EXAMPLES / "demo"))

import beats  # noqa: E402  # where these lie is known from here on
import phonemes  # noqa: E402
import speaker  # noqa: E402
import voice_activity  # noqa: E402
from job import Job  # noqa: E402

ANY = torch.export.Dim.DYNAMIC

# --- The example in C++ ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the example, its package and its program, and let it run as its Makefile does."""
    folder = tmp_path_factory.mktemp("deploy")
    assert shutil.which(os.environ.get("CXX", "g++")), "the example in C++ needs g++, as we do"
    done = subprocess.run(
        ["make", "-C", str(EXAMPLES / "deploy"), f"PYTHON={sys.executable}", f"OUT={folder}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "printed.txt").write_text(done.stdout)
    return folder


def run_program(folder: Path, *files: Path | str) -> subprocess.CompletedProcess[str]:
    command = [folder / "run", *files]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_program_in_cpp_agrees_with_python_at_every_length(built: Path) -> None:
    lines = [line for line in (built / "printed.txt").read_text().splitlines() if "differs" in line]
    expected = torch.load(built / "expected.pt")
    assert len({input.shape for input, _ in expected}) == len(lines) == 3
    for line, (input, _) in zip(lines, expected, strict=True):
        assert line.startswith(f"{input.size(0)} steps, {input.size(1)} rows:")


def test_the_program_sees_a_wrong_value(built: Path, tmp_path: Path) -> None:
    cases = torch.load(built / "expected.pt")
    cases[1][1][-1, 0, -1] += 1e-4
    torch.save(cases, tmp_path / "expected.pt")
    operators = library_status().path or ""
    done = run_program(built, operators, built / "compiled.pt2", tmp_path / "expected.pt")
    assert done.returncode == 1, done.stdout + done.stderr


def test_the_program_says_what_it_cannot_load(built: Path, tmp_path: Path) -> None:
    done = run_program(built, tmp_path / "absent.so", built / "compiled.pt2", "expected.pt")
    assert done.returncode == 2
    assert "operators" in done.stderr and "absent.so" in done.stderr


def test_the_package_runs_in_python_at_other_lengths_and_batches(built: Path) -> None:
    package = torch._inductor.aoti_load_package(str(built / "compiled.pt2"))
    eager = torch.export.load(built / "model.pt2").module()
    for steps, rows in ((1, 1), (2, 9), (23, 5), (151, 3), (17, 1)):
        input = torch.randn(steps, rows, 40)
        with torch.no_grad():
            # Of the example's own module, the rounding of one Linear apart.
            torch.testing.assert_close(package(input), eager(input), rtol=1e-6, atol=1e-6)


# --- The models of the demo -----------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """What goes out in one piece: tensors in, a tuple of tensors out.

    arguments: an example. dynamic: of each argument, the dimensions that may have any size.
    """

    module: nn.Module
    arguments: tuple[Tensor, ...]
    dynamic: tuple[dict[int, Any], ...]


Run = Callable[..., tuple[Tensor, ...]]


class Speaker(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, mels: Tensor) -> tuple[Tensor]:
        return (self.model(mels),)


class Beats(nn.Module):
    """The publisher's class with its states, plain attributes there, as arguments and results."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.model.hidden, self.model.cell = h, c
        return self.model(features), self.model.hidden, self.model.cell


class VoiceActivity(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, samples: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        probability, (h, c) = self.model(samples, (h, c))
        return probability, h, c


class Letters(nn.Module):
    """The encoder: letter numbers [words, letters] to the decoder's first state [words, 256]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.letters, self.encoder = model.graphemes, model.encoder

    def forward(self, letters: Tensor) -> tuple[Tensor]:
        return (self.encoder(self.letters(letters))[1][0],)


class Phoneme(nn.Module):
    """One step of the decoder; the loop over phonemes looks at its results, so it stays outside."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.phonemes, self.decoder, self.logits = model.phonemes, model.decoder, model.logits

    def forward(self, said: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = self.decoder(self.phonemes(said), h)
        return self.logits(h), h


def state(*sizes: int) -> tuple[Tensor, Tensor]:
    return torch.randn(*sizes), torch.randn(*sizes)


def parts_of(name: str, model: nn.Module) -> list[Part]:
    """How a model goes out: whole, or, where Python loops over its results, in two parts."""
    match name:
        case "speaker":
            return [Part(Speaker(model), (torch.randn(3, 50, 40),), ({0: ANY, 1: ANY},))]
        case "beats":
            arguments = (torch.randn(1, 20, 272), *state(2, 1, 150))
            return [Part(Beats(model), arguments, ({1: ANY}, {}, {}))]
        case "voice_activity":
            arguments = (torch.randn(3, 576), *state(3, 128))
            return [Part(VoiceActivity(model), arguments, ({0: ANY},) * 3)]
        case "phonemes":
            return [
                Part(Letters(model), (torch.tensor([[5, 7, 6], [4, 9, 2]]),), ({0: ANY, 1: ANY},)),
                Part(Phoneme(model), (torch.tensor([4, 9]), torch.randn(2, 256)), ({0: ANY},) * 2),
            ]
    raise AssertionError(name)


def with_parts(name: str, model: nn.Module, runs: list[Run]) -> nn.Module:
    """A copy of the model, as the demo's job calls it, whose work `runs` do."""
    twin = deepcopy(model)

    def embed(mels: Tensor) -> Tensor:
        return runs[0](mels)[0]

    def activations(features: Tensor) -> Tensor:
        output, twin.hidden, twin.cell = runs[0](features, twin.hidden, twin.cell)
        return output

    def probability(samples: Tensor, hx: tuple[Tensor, Tensor]) -> Any:
        output, h, c = runs[0](samples, *hx)
        return output, (h, c)

    def scores(letters: Tensor) -> Tensor:
        (h,), said, found = runs[0](letters), torch.tensor([phonemes.START]), []
        while len(found) < phonemes.LONGEST and int(said) != phonemes.STOP:
            score, h = runs[1](said, h)
            found.append(score)
            said = score.argmax(dim=1)
        return torch.cat(found)

    twin.forward = {
        "speaker": embed,
        "beats": activations,
        "voice_activity": probability,
        "phonemes": scores,
    }[name]
    return twin


# --- Ways of deployment ---------------------------------------------------------------------------


def program_of(part: Part) -> torch.export.ExportedProgram:
    return torch.export.export(part.module, part.arguments, dynamic_shapes=part.dynamic)


def compiled(part: Part, folder: Path) -> Run:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("inductor")
    run = torch.compile(part.module, backend=counter, fullgraph=True)

    def counted(*arguments: Tensor) -> Any:
        results = run(*arguments)
        assert counter.frame_count <= 2
        return results

    return counted


def exported(part: Part, folder: Path) -> Run:
    torch.export.save(program_of(part), folder / "model.pt2")
    return torch.export.load(folder / "model.pt2").module()


def packaged(part: Part, folder: Path) -> Run:
    file = str(folder / "compiled.pt2")
    torch._inductor.aoti_compile_and_package(program_of(part), package_path=file)
    return torch._inductor.aoti_load_package(file)


def in_onnx(part: Part, folder: Path) -> Run:
    file = folder / "model.onnx"
    torch.onnx.export(
        part.module,
        part.arguments,
        file,
        dynamo=True,
        dynamic_shapes=part.dynamic,
        verbose=False,
        external_data=False,
    )
    kinds = {node.op_type for node in onnx.load(file).graph.node}
    assert kinds & {"LSTM", "GRU"}, f"expected ONNX's own recurrent operator among {kinds}"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]

    def run(*arguments: Tensor) -> tuple[Tensor, ...]:
        feed = {name: given.numpy() for name, given in zip(names, arguments, strict=True)}
        return tuple(torch.from_numpy(array) for array in session.run(None, feed))

    return run


WAYS = {"compile": compiled, "export": exported, "aotinductor": packaged, "onnx": in_onnx}
MODELS = ("speaker", "beats", "voice_activity", "phonemes")


@pytest.fixture(scope="module")
def jobs() -> dict[str, list[Job]]:
    return {
        "speaker": [speaker.job()],
        "beats": beats.jobs(),
        "voice_activity": [voice_activity.job()],
        "phonemes": [phonemes.job()],
    }


@pytest.fixture
def inference() -> Iterator[None]:
    """No gradients; one thread, as two that wait for each other are slow on a busy machine."""
    torch.set_num_threads(1)
    with torch.no_grad():
        yield


@pytest.mark.usefixtures("inference")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_a_published_model_does_its_work(
    name: str, way: str, jobs: dict[str, list[Job]], tmp_path: Path
) -> None:
    model = jobs[name][0].model
    ours = deepcopy(model)
    swapped = rnnpack.convert(ours).swapped
    assert swapped
    runs = []
    for number, part in enumerate(parts_of(name, ours)):
        part.module.eval()
        folder = tmp_path / str(number)
        folder.mkdir()
        runs.append(WAYS[way](part, folder))
    deployed = with_parts(name, model, runs)
    for job in jobs[name]:
        output, torchs, truth = (
            torch.cat(list(job.units(each))) for each in (deployed, model, deepcopy(model).double())
        )
        assert_as_accurate({"output": output}, {"output": torchs}, {"output": truth})
        finding = job.judge(output)
        assert finding.good, finding.text
