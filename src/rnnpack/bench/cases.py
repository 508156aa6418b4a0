"""The named cases of the benchmark, in suites, each with the reason why it is there."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Mode = Literal["infer", "train", "stream"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One layer, one size of input, and what is done with them.

    `cell` is lstm, gru, rnn_tanh or rnn_relu for a layer, or one of these with `_cell` for a cell
    module. `mode` is infer (forward without gradients), train (forward and backward; gradients of
    the input and of every parameter) or stream (one step a call, the state carried from call to
    call). An infer case gives nobody an explicit state unless `states` is set. `dtype` is that of
    rnnpack's layer and its input; the others run in float32. `measure` is time;
    memory: the growth of resident memory in one call; or deployment: the layer with a Linear behind
    it, compiled and exported in every way.
    """

    name: str
    suite: str
    reason: str
    cell: str
    seq_len: int
    batch: int
    input_size: int
    hidden_size: int
    layers: int = 1
    bidirectional: bool = False
    proj_size: int = 0
    mode: Mode = "infer"
    states: bool = False
    recompute: bool = False
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    measure: Literal["time", "memory", "deployment"] = "time"

    @property
    def id(self) -> str:
        """`suite/name`, unique among all cases."""
        return f"{self.suite}/{self.name}"

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def gates(self) -> int:
        """Rows of the weight matrices in units of `hidden_size`."""
        return {"lstm": 4, "gru": 3}.get(self.cell.removesuffix("_cell"), 1)

    @property
    def output_size(self) -> int:
        """Features of `h` of one direction."""
        return self.proj_size or self.hidden_size

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """Features of each state: of `h` and `c` for LSTM, of `h` else."""
        lstm = self.cell.startswith("lstm")
        return (self.output_size, self.hidden_size) if lstm else (self.output_size,)


def _case(
    suite: str, reason: str, cell: str, size: tuple[int, int, int], **options: object
) -> Case:
    """A case of `size = (seq_len, batch, hidden_size)` with a name made of what sets it apart."""
    seq_len, batch, hidden_size = size
    case = Case(
        name="", suite=suite, reason=reason, cell=cell, seq_len=seq_len, batch=batch,
        input_size=hidden_size, hidden_size=hidden_size,
    )  # fmt: skip
    case = dataclasses.replace(case, **options)  # type: ignore[arg-type]
    parts = [cell.replace("_", "-"), f"{seq_len}x{batch}x{hidden_size}"]
    parts += [f"{case.layers}-layers"] if case.layers > 1 else []
    parts += ["bidirectional"] if case.bidirectional else []
    parts += [f"projected-{case.proj_size}"] if case.proj_size else []
    parts += ["train"] if case.mode == "train" and suite == "cells" else []
    parts += ["recompute"] if case.recompute else []
    parts += [case.dtype] if case.dtype != "float32" else []
    return dataclasses.replace(case, name="-".join(parts))


def _step() -> Iterator[Case]:
    reason = "one step of one row: all overhead and one read of the weights"
    for layers in (1, 2):
        for hidden in (64, 128, 256, 512):
            yield _case("step", reason, "lstm", (1, 1, hidden), layers=layers)


def _sequence() -> Iterator[Case]:
    for hidden in (64, 128, 256, 512):
        reason = "one sequence: bound by reading the recurrent weights at every step"
        yield _case("sequence", reason, "lstm", (100, 1, hidden))


def _small_batch() -> Iterator[Case]:
    for hidden in (128, 256, 512):
        for batch in (4, 8):
            reason = "a few rows: each weight that is loaded serves all of them"
            yield _case("small-batch", reason, "lstm", (100, batch, hidden))


def _large_batch() -> Iterator[Case]:
    for hidden in (128, 256, 512):
        for batch in (32, 128):
            reason = "many rows: a matrix product with a cell behind it, bound by arithmetic"
            yield _case("large-batch", reason, "lstm", (100, batch, hidden))


def _projection() -> Iterator[Case]:
    for hidden in (64, 128, 256):
        for batch in (1, 32):
            reason = "projection to half, which few libraries have a fast path for"
            yield _case("projection", reason, "lstm", (100, batch, hidden), proj_size=hidden // 2)


def _stacks() -> Iterator[Case]:
    shapes: tuple[dict[str, object], ...] = ({"layers": 2}, {"layers": 3}, {"bidirectional": True})
    for hidden in (150, 200, 320):
        for batch in (1, 8):
            for shape in shapes:
                reason = "layers and directions side by side; sizes that are no power of two"
                yield _case("stacks", reason, "lstm", (100, batch, hidden), **shape)


def _gru() -> Iterator[Case]:
    yield _case("gru", "one step of one row", "gru", (1, 1, 128))
    for hidden in (64, 128, 256):
        for batch in (1, 32):
            reason = "the second cell: three gates, one of them reset behind its product"
            yield _case("gru", reason, "gru", (100, batch, hidden))


def _rnn() -> Iterator[Case]:
    for cell in ("rnn_tanh", "rnn_relu"):
        for batch in (1, 32):
            reason = "the smallest cell: little work between two barriers"
            yield _case("rnn", reason, cell, (100, batch, 128))


def _cells() -> Iterator[Case]:
    for cell in ("lstm_cell", "gru_cell", "rnn_tanh_cell"):
        reason = "a cell module with its state given, as loops and decoders call it"
        yield _case("cells", reason, cell, (1, 1, 128), states=True)
    yield _case("cells", "a batch of decoders", "lstm_cell", (1, 32, 128), states=True)
    yield _case(
        "cells", "one step that is trained", "lstm_cell", (1, 32, 128), states=True, mode="train"
    )


def _training() -> Iterator[Case]:
    def case(
        cell: str, seq_len: int, batch: int, hidden: int, reason: str, **options: object
    ) -> Case:
        return _case("training", reason, cell, (seq_len, batch, hidden), mode="train", **options)

    yield case("lstm", 100, 1, 128, "one sequence")
    yield case("lstm", 100, 16, 64, "a small model")
    yield case("lstm", 100, 32, 128, "a usual batch")
    yield case("lstm", 100, 32, 256, "a usual batch, larger weights")
    yield case("lstm", 400, 16, 256, "long sequences: what is kept for backward leaves the caches")
    yield case("lstm", 400, 16, 256, "the price of keeping no gates", recompute=True)
    yield case("lstm", 100, 1, 128, "projection to half", proj_size=64)
    yield case("lstm", 100, 32, 128, "projection to half", proj_size=64)
    yield case("lstm", 400, 16, 256, "projection to half", proj_size=128)
    reason = "what custom layers in TorchScript are written for"
    yield case("lstm", 1000, 8, 128, reason, proj_size=64, bidirectional=True)
    yield case("gru", 100, 1, 128, "one sequence")
    yield case("gru", 100, 32, 128, "a usual batch")
    yield case("gru", 400, 16, 256, "long sequences")
    yield case("rnn_tanh", 100, 1, 128, "one sequence")


def _sixteen_bit() -> Iterator[Case]:
    for dtype in ("bfloat16", "float16"):
        for hidden in (512, 1024):
            reason = "16-bit weights where reading them is the limit"
            yield _case("sixteen-bit", reason, "lstm", (100, 1, hidden), dtype=dtype)
    reason = "16-bit weights where arithmetic, which stays float32, is the limit"
    yield _case("sixteen-bit", reason, "lstm", (100, 32, 256), dtype="bfloat16")


def _streaming() -> Iterator[Case]:
    reason = "one step a call with the state carried: speech, control, decoding"
    for hidden in (64, 128, 256, 512):
        yield _case("streaming", reason, "lstm", (1, 1, hidden), mode="stream")
    yield _case("streaming", "a stack", "lstm", (1, 1, 128), mode="stream", layers=2)
    for cell in ("gru", "rnn_tanh"):
        yield _case("streaming", reason, cell, (1, 1, 128), mode="stream")


def _scaling() -> Iterator[Case]:
    for seq_len in (1, 10, 100, 1_000, 10_000, 100_000):
        yield _case("scaling", "time must grow in proportion to steps", "lstm", (seq_len, 1, 128))
    for batch in (4, 16, 64, 256, 1_024):
        yield _case("scaling", "time must not grow faster than rows", "lstm", (100, batch, 128))


def _memory() -> Iterator[Case]:
    def case(cell: str, reason: str, **options: object) -> Case:
        return _case("memory", reason, cell, (1000, 16, 256), measure="memory", **options)

    yield case("lstm", "what one training step keeps and needs at its peak", mode="train")
    yield case("lstm", "the same, gates not kept", mode="train", recompute=True)
    yield case("lstm", "the same, projected to half", mode="train", proj_size=128)
    yield case("gru", "what one training step keeps and needs at its peak", mode="train")


def _deployment() -> Iterator[Case]:
    reason = "a small model compiled and exported: what is left of the layer's speed"
    yield _case("deployment", reason, "lstm", (100, 1, 128), measure="deployment")


_SUITES = {
    "step": _step,
    "sequence": _sequence,
    "small-batch": _small_batch,
    "large-batch": _large_batch,
    "projection": _projection,
    "stacks": _stacks,
    "gru": _gru,
    "rnn": _rnn,
    "cells": _cells,
    "training": _training,
    "sixteen-bit": _sixteen_bit,
    "streaming": _streaming,
    "scaling": _scaling,
    "memory": _memory,
    "deployment": _deployment,
}

SUITES = tuple(_SUITES)


def select(suites: Sequence[str] | None = None, pattern: str | None = None) -> list[Case]:
    """The cases of `suites` (all if none) whose name or `suite/name` matches the glob `pattern`."""
    cases = [case for suite in suites or SUITES for case in _SUITES[suite]()]
    if pattern is None:
        return cases
    return [c for c in cases if any(fnmatch.fnmatchcase(text, pattern) for text in (c.name, c.id))]
