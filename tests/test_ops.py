"""The ops as the dispatcher calls them: registration, sizes, bits, and wrong arguments.

The ops stand behind public functions, but anybody can call them, a saved graph among others, so
each checks all that it is given.
"""

import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import assert_same_bits
from rnnpack.ops import CELL_INDEX, CELLS, is_direct, layout, library_status
from spoiled import CHANGES_OF_TENSORS, Fence, strided

pytestmark = pytest.mark.skipif(
    not library_status().loaded, reason=f"no native library: {library_status().reason}"
)

Arguments = dict[str, Any]

CELL_NAMES = tuple(CELL_INDEX)
DIFFERENTIABLE = (
    "input", "h_0", "c_0", "weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr",
)  # fmt: skip


@dataclass(frozen=True)
class Spec:
    """What a call is about; the tensors follow from it."""

    cell: str = "lstm"
    input_size: int = 5
    hidden_size: int = 9
    proj_size: int = 0
    num_layers: int = 1
    bidirectional: bool = False
    steps: int = 4
    batch: int = 3
    form: str = "equal"  # or lengths, batch_sizes; of train alone: step
    bias: bool = True
    states: bool = True
    packed: bool = False
    batch_first: bool = False
    reverse: bool = False
    recompute: bool = False
    dtype: torch.dtype | None = None  # in which weights are kept or multiplied

    @property
    def code(self) -> int:
        return CELL_INDEX[self.cell]

    @property
    def out(self) -> int:
        return self.proj_size or self.hidden_size

    @property
    def lengths(self) -> list[int]:
        """Of each row, any order, down to zero; for batch_sizes, longest first, from one on."""
        if self.form == "step":
            return [1] * self.batch
        if self.form == "equal":
            return [self.steps] * self.batch
        if self.form == "lengths":
            return [(self.steps - 3 * row) % (self.steps + 1) for row in range(self.batch)]
        return [max(1, self.steps - row) for row in range(self.batch)]

    def input(self) -> torch.Tensor:
        if self.form in ("batch_sizes", "step"):
            return torch.randn(sum(self.lengths), self.input_size)
        input = torch.randn(self.steps, self.batch, self.input_size)
        if self.form == "lengths":  # what lies past an end must not be read
            for row, length in enumerate(self.lengths):
                input[length:, row] = float("nan")
        return input.transpose(0, 1).contiguous() if self.batch_first else input

    def sequence(self) -> Arguments:
        lengths = torch.tensor(self.lengths)
        batch_sizes = (lengths > torch.arange(self.steps).unsqueeze(1)).sum(1)
        return {
            "lengths": lengths if self.form == "lengths" else None,
            "batch_sizes": batch_sizes if self.form == "batch_sizes" else None,
        }

    def weights(self, input_size: int) -> Arguments:
        rows = CELLS[self.code].gates * self.hidden_size
        scale = self.hidden_size**-0.5
        return {
            "weight_ih": torch.randn(rows, input_size) * scale,
            "weight_hh": torch.randn(rows, self.out) * scale,
            "bias_ih": torch.randn(rows) * scale if self.bias else None,
            "bias_hh": torch.randn(rows) * scale if self.bias else None,
            "weight_hr": torch.randn(self.proj_size, self.hidden_size) if self.proj_size else None,
        }

    def state(self, *leading: int) -> Arguments:
        has_c = CELLS[self.code].has_cell_state
        return {
            "h_0": torch.randn(*leading, self.out) if self.states else None,
            "c_0": torch.randn(*leading, self.hidden_size) if self.states and has_c else None,
        }


def call(name: str, arguments: Arguments) -> Any:
    return op(name)(*ordered(name, arguments))


def op(name: str) -> Any:
    return getattr(torch.ops.rnnpack, name).default


def ordered(name: str, arguments: Arguments) -> tuple[Any, ...]:
    return tuple(arguments[argument.name] for argument in op(name)._schema.arguments)


def pack_arguments(spec: Spec) -> Arguments:
    return {"cell": spec.code, **spec.weights(spec.input_size), "dtype": spec.dtype}


def check_packed_arguments(spec: Spec) -> Arguments:
    return {"packed": call("pack", pack_arguments(spec)), "cell": spec.code}


def infer_arguments(spec: Spec) -> Arguments:
    directions = 2 if spec.bidirectional else 1
    stacks = spec.num_layers * directions
    weights = []
    for stack in range(stacks):
        size = spec.input_size if stack < directions else directions * spec.out
        own = spec.weights(size)
        if spec.packed:
            weights.append(call("pack", {"cell": spec.code, **own, "dtype": spec.dtype}))
        else:
            weights += [weight for weight in own.values() if weight is not None]
    return {
        "input": spec.input(),
        **spec.state(stacks, spec.batch),
        "weights": weights,
        **spec.sequence(),
        "cell": spec.code,
        "num_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "proj_size": spec.proj_size,
        "bidirectional": spec.bidirectional,
        "batch_first": spec.batch_first,
    }


def train_arguments(spec: Spec) -> Arguments:
    spec = replace(spec, batch_first=False)
    return {
        "input": spec.input(),
        **spec.state(spec.batch),
        **spec.weights(spec.input_size),
        **spec.sequence(),
        "cell": spec.code,
        "reverse": spec.reverse,
        "recompute": spec.recompute,
        "dtype": spec.dtype,
    }


def train_backward_arguments(spec: Spec) -> Arguments:
    arguments = train_arguments(spec)
    output, h_n, c_n, reserve = call("train", arguments)
    present = (arguments[name] is not None for name in DIFFERENTIABLE)
    return arguments | {
        "grad_output": torch.randn_like(output),
        "grad_h_n": torch.randn_like(h_n),
        "grad_c_n": torch.randn_like(c_n) if CELLS[spec.code].has_cell_state else None,
        "output": output,
        "reserve": reserve,
        "wanted": sum(there << bit for bit, there in enumerate(present)),
    }


ARGUMENTS = {
    "pack": pack_arguments,
    "check_packed": check_packed_arguments,
    "infer": infer_arguments,
    "run": infer_arguments,
    "train": train_arguments,
    "train_backward": train_backward_arguments,
}


# --- Registration ---------------------------------------------------------------------------------

SINGLE = [
    Spec(cell, form=form, reverse=form != "equal", recompute=form == "lengths", bias=cell != "gru")
    for cell in CELL_NAMES
    for form in ("equal", "lengths", "batch_sizes")
] + [
    Spec("lstm", proj_size=4, form="lengths", reverse=True),
    Spec("lstm", proj_size=4, form="batch_sizes", recompute=True),
    Spec("lstm", states=False),
    Spec("gru", states=False, hidden_size=17, form="lengths"),
    Spec("lstm", proj_size=4, dtype=torch.bfloat16),
    Spec("gru", hidden_size=17, form="lengths", dtype=torch.float16, recompute=True),
]
STEPS = [
    Spec("lstm", form="step"),
    Spec("gru", form="step", states=False, bias=False, recompute=True),
]
STACKS = [
    Spec(cell, num_layers=2, bidirectional=True, form=form, batch_first=form != "batch_sizes")
    for cell in CELL_NAMES
    for form in ("equal", "lengths", "batch_sizes")
] + [
    Spec("lstm", num_layers=2, proj_size=4, packed=True),
    Spec("gru", num_layers=2, packed=True, form="lengths", states=False),
    Spec("lstm", num_layers=2, proj_size=4, packed=True, dtype=torch.bfloat16),
    Spec("gru", packed=True, dtype=torch.float16),
    Spec("rnn_relu", steps=1, batch=1, states=False, bias=False),
]


def differentiable(arguments: Arguments) -> Arguments:
    present = (name for name in DIFFERENTIABLE if arguments[name] is not None)
    return arguments | {name: arguments[name].requires_grad_() for name in present}


@pytest.mark.parametrize("spec", SINGLE + STEPS, ids=str)
def test_opcheck_train(spec: Spec) -> None:
    arguments = differentiable(train_arguments(spec))
    utils = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(op("train"), ordered("train", arguments), test_utils=utils)

    # Traced and run again, results must be equal. A reserve has places that nobody writes (units
    # that pad, rows past an end), so here there are none.
    arguments = differentiable(train_arguments(replace(spec, hidden_size=16)))
    if arguments["lengths"] is not None:
        arguments["lengths"].fill_(spec.steps)
        arguments["input"] = torch.randn(arguments["input"].shape, requires_grad=True)
    torch.library.opcheck(
        op("train"), ordered("train", arguments), test_utils="test_aot_dispatch_dynamic"
    )


@pytest.mark.parametrize("spec", SINGLE + STEPS, ids=str)
def test_opcheck_train_backward(spec: Spec) -> None:
    torch.library.opcheck(
        op("train_backward"), ordered("train_backward", train_backward_arguments(spec))
    )


@pytest.mark.parametrize("spec", STACKS, ids=str)
def test_opcheck_infer(spec: Spec) -> None:
    torch.library.opcheck(op("infer"), ordered("infer", infer_arguments(spec)))


@pytest.mark.parametrize("spec", STACKS, ids=str)
def test_opcheck_run(spec: Spec) -> None:
    arguments = infer_arguments(spec)
    given = [arguments["input"], arguments["h_0"], arguments["c_0"], *arguments["weights"]]
    for tensor in given:
        if tensor is not None and tensor.is_floating_point() and not spec.packed:
            tensor.requires_grad_()
    torch.library.opcheck(op("run"), ordered("run", arguments))


@pytest.mark.parametrize("name", CELL_NAMES)
@pytest.mark.parametrize("bias", [True, False])
def test_opcheck_pack(name: str, bias: bool) -> None:
    torch.library.opcheck(op("pack"), ordered("pack", pack_arguments(Spec(name, bias=bias))))


def test_opcheck_check_packed() -> None:
    """Its results are numbers read from memory: it has no fake kernel, only a schema to keep."""
    arguments = ordered("check_packed", check_packed_arguments(Spec()))
    torch.library.opcheck(op("check_packed"), arguments, test_utils="test_schema")


# --- Sizes and bits -------------------------------------------------------------------------------

SIZES = [*range(1, 36), 47, 48, 49, 63, 64, 65, 97, 150]


@pytest.mark.parametrize("name", CELL_NAMES)
def test_layout_in_python_is_the_native_one(name: str) -> None:
    code = CELL_INDEX[name]
    for hidden in SIZES:
        sizes = {0} if name != "lstm" else {0, *(size for size in (1, 16, hidden // 2, hidden - 1))}
        for proj_size in (size for size in sizes if size < hidden):
            sizes_of = (hidden % 7, hidden, proj_size)
            for dtype in layout.DTYPE_INDEX:
                spec = Spec(name, *sizes_of, dtype=dtype)
                packed = call("pack", pack_arguments(spec))
                assert packed.dtype == torch.uint8
                assert packed.numel() == layout.packed_bytes(code, *sizes_of, dtype), spec
        for recompute in (False, True):
            spec = Spec(
                name,
                hidden_size=hidden,
                proj_size=hidden // 3 if name == "lstm" else 0,
                recompute=recompute,
                steps=2,
                form="lengths",
            )
            reserve = call("train", train_arguments(spec))[3]
            expected = layout.reserve_floats(code, hidden, spec.out, recompute=recompute)
            assert reserve.numel() == spec.steps * spec.batch * expected, spec


@pytest.mark.parametrize("form", ["equal", "lengths", "batch_sizes"])
@pytest.mark.parametrize("name", CELL_NAMES)
def test_packed_weights_give_the_bits_of_plain_ones(name: str, form: str) -> None:
    for hidden in (1, 7, 17, 150):
        for proj_size in {0, hidden // 3} if name == "lstm" else {0}:
            spec = Spec(
                name, hidden_size=hidden, proj_size=proj_size, num_layers=2, bidirectional=True,
                steps=9, batch=5, form=form,
            )  # fmt: skip
            assert not is_direct(sum(spec.lengths)), "too short: plain weights would run directly"
            plain = infer_arguments(spec)
            each = len(plain["weights"]) // 4
            groups = [plain["weights"][i : i + each] for i in range(0, 4 * each, each)]
            packed = [
                call("pack", {"cell": spec.code, "weight_hr": None, "dtype": None}
                     | dict(zip(spec.weights(1), group, strict=False)))
                for group in groups
            ]  # fmt: skip
            assert_same_bits(call("infer", plain | {"weights": packed}), call("infer", plain))


def test_check_packed_tells_sizes_and_sees_damage() -> None:
    spec = Spec("lstm", input_size=6, hidden_size=17, proj_size=5)
    packed = call("pack", pack_arguments(spec))
    assert call("check_packed", {"packed": packed, "cell": spec.code}) == (6, 17, 5)
    for place in (0, 8, 12, 24, 64, 1000, packed.numel() - 1):
        damaged = packed.clone()
        damaged[place] ^= 1
        with pytest.raises(RuntimeError, match="packed weights"):
            call("check_packed", {"packed": damaged, "cell": spec.code})
    with pytest.raises(RuntimeError, match="cell"):
        call("check_packed", {"packed": packed, "cell": CELL_INDEX["gru"]})


def test_train_gives_the_bits_of_infer() -> None:
    for name in CELL_NAMES:
        spec = Spec(name, hidden_size=19, steps=9, batch=3, form="lengths")
        trained = train_arguments(spec)
        weights = [trained[key] for key in spec.weights(1) if trained[key] is not None]
        states = {
            key: None if trained[key] is None else trained[key].unsqueeze(0)
            for key in ("h_0", "c_0")
        }
        inferred = infer_arguments(spec) | {"input": trained["input"], "weights": weights} | states
        output, h_n, c_n = call("infer", inferred)
        expected = call("train", trained)
        assert_same_bits(output, expected[0])
        assert_same_bits(h_n[0], expected[1])
        if CELLS[spec.code].has_cell_state:
            assert_same_bits(c_n[0], expected[2])


def test_train_of_one_step_gives_the_bits_of_a_sequence_of_one() -> None:
    for name in CELL_NAMES:
        for recompute in (False, True):
            step = train_backward_arguments(
                Spec(name, hidden_size=19, form="step", recompute=recompute)
            )
            as_sequence = {
                key: step[key].unsqueeze(0) for key in ("input", "grad_output", "output")
            }
            for op_name in ("train", "train_backward"):
                expected = list(call(op_name, step | as_sequence))
                expected[0] = expected[0].squeeze(0)  # output, or the input's gradient
                assert_same_bits(call(op_name, step)[:3], expected[:3])
                if op_name == "train_backward":
                    assert_same_bits(call(op_name, step), expected)


# --- Memory past the end --------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="protects pages with mprotect")
@pytest.mark.parametrize("name", [name for name in ARGUMENTS if name != "check_packed"])
def test_reads_nothing_past_its_tensors(name: str) -> None:
    fence = Fence()
    for cell in CELL_NAMES:
        forms = ((1, "equal"), (6, "lengths"), (17, "batch_sizes"), (35, "equal"))
        for hidden, form in (*forms, *([(9, "step")] if name.startswith("train") else [])):
            for steps in (1, 9):
                for packed in (False, True):
                    proj_size = hidden // 2 if cell == "lstm" else 0
                    spec = Spec(
                        cell, hidden_size=hidden, proj_size=proj_size, form=form, steps=steps,
                        packed=packed and name == "infer",
                    )  # fmt: skip
                    arguments = {
                        key: fence.before(value) if isinstance(value, torch.Tensor)
                        else [fence.before(one) for one in value] if isinstance(value, list)
                        else value
                        for key, value in ARGUMENTS[name](spec).items()
                    }  # fmt: skip
                    call(name, arguments)


# --- Wrong arguments ------------------------------------------------------------------------------

CLEAR = (RuntimeError, ValueError, TypeError, NotImplementedError)
# A call with a tensor on the meta device ends in a fake kernel, which is Python, reads no memory
# and looks at sizes only: there a dimension may be missing, or a tensor.
FAKE = (*CLEAR, IndexError, AttributeError)
CALLS = 2500

specs = st.builds(
    Spec,
    cell=st.sampled_from(CELL_NAMES),
    input_size=st.sampled_from([0, 1, 5, 17]),
    hidden_size=st.sampled_from([1, 4, 9, 17]),
    proj_size=st.sampled_from([0, 0, 1, 3]),
    num_layers=st.sampled_from([1, 1, 2]),
    bidirectional=st.booleans(),
    steps=st.sampled_from([1, 2, 5]),
    batch=st.sampled_from([1, 3]),
    form=st.sampled_from(["equal", "lengths", "batch_sizes"]),
    bias=st.booleans(),
    states=st.booleans(),
    packed=st.booleans(),
    batch_first=st.booleans(),
    reverse=st.booleans(),
    recompute=st.booleans(),
).map(lambda spec: spec if spec.cell == "lstm" and spec.proj_size < spec.hidden_size
      else Spec(**(vars(spec) | {"proj_size": 0})))  # fmt: skip

NUMBERS = (-(2**63), -1, 0, 1, 2, 3, 4, 5, 255, 256, 4096, 4097, 2**31, 2**40, 2**62, 2**63 - 1)

HEADER_PLACES = (0, 4, 8, 12, 16, 20, 24, 32, 40, 48, 56)


def _header_field(packed: torch.Tensor, place: int, number: int) -> torch.Tensor:
    changed = packed.clone()
    changed[place : place + 8] = torch.tensor([number]).view(torch.uint8)
    return changed


def _bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def spoiled_packed(packed: torch.Tensor) -> st.SearchStrategy[torch.Tensor]:
    """Draw another packed tensor, damaged or of other sizes."""
    return st.one_of(
        st.integers(0, packed.numel()).map(lambda size: packed[:size].clone()),
        st.binary(min_size=1, max_size=300).map(_bytes),
        # A right beginning, random bytes behind it.
        st.binary(min_size=56, max_size=56).map(
            lambda data: torch.cat([packed[:8], _bytes(data), packed[64:]])
        ),
        st.tuples(st.sampled_from(HEADER_PLACES), st.sampled_from(NUMBERS)).map(
            lambda change: _header_field(packed, *change)
        ),
        specs.map(lambda spec: call("pack", pack_arguments(spec))),
        st.just(torch.cat([packed[:1], packed])[1:]),  # not on a word
        st.just(strided(packed)),
    )


@st.composite
def spoiled_tensor(draw: st.DrawFn, tensor: torch.Tensor | None) -> Any:
    if tensor is None:
        return draw(st.sampled_from([torch.zeros(3), torch.zeros(3, 9), torch.tensor([4, 2, 1])]))
    if tensor.dtype == torch.uint8 and draw(st.booleans()):
        return draw(spoiled_packed(tensor))
    return CHANGES_OF_TENSORS[draw(st.sampled_from(sorted(CHANGES_OF_TENSORS)))](tensor)


@st.composite
def spoiled_list(draw: st.DrawFn, tensors: list[torch.Tensor]) -> Any:
    place = draw(st.integers(0, len(tensors) - 1))
    match draw(st.integers(0, 3)):
        case 0:
            return tensors[:place]
        case 1:
            return tensors + tensors[place:]
        case 2:
            return [*tensors[:place], tensors[-1], *tensors[place:]]
        case _:
            return [*tensors[:place], draw(spoiled_tensor(tensors[place])), *tensors[place + 1 :]]


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, Arguments]:
    """Draw a call that is right but for one to three of its arguments."""
    name = draw(st.sampled_from(sorted(ARGUMENTS)))
    arguments = ARGUMENTS[name](draw(specs))
    names = [argument.name for argument in op(name)._schema.arguments]
    for key in draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)):
        value = arguments[key]
        if isinstance(value, bool):
            arguments[key] = not value
        elif isinstance(value, int):
            arguments[key] = draw(st.sampled_from(NUMBERS))
        elif isinstance(value, list):
            arguments[key] = draw(spoiled_list(value)) if value else [torch.zeros(1)]
        else:
            arguments[key] = draw(spoiled_tensor(value))
    return name, arguments


def on_meta(arguments: Arguments) -> bool:
    weights = arguments.get("weights")
    every = [*arguments.values(), *(weights if isinstance(weights, list) else ())]
    return any(isinstance(one, torch.Tensor) and one.is_meta for one in every)


def plain(value: Any) -> Any:
    """Copy tensors into memory of their own, dense and in order."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().resolve_neg().clone(memory_format=torch.contiguous_format)


def test_wrong_arguments_raise_and_never_crash() -> None:
    """Call the ops with anything: they raise a clear error, or it happens to be right.

    Right is also a tensor of another layout in memory; its values must then count, no others.
    """
    raised: dict[str, int] = {}
    succeeded: dict[str, int] = {}

    @settings(max_examples=CALLS)
    @given(calls())
    def try_one(drawn: tuple[str, Arguments]) -> None:
        name, arguments = drawn
        try:
            results = call(name, arguments)
        except FAKE as error:
            assert isinstance(error, CLEAR) or on_meta(arguments)
            assert str(error).strip(), "an error must say something"
            raised[name] = raised.get(name, 0) + 1
            return
        succeeded[name] = succeeded.get(name, 0) + 1
        if not on_meta(arguments):
            again = call(name, {key: plain(value) for key, value in arguments.items()})
            torch.testing.assert_close(results, again, rtol=0, atol=0, equal_nan=True)

    try_one()
    assert sum(raised.values()) + sum(succeeded.values()) >= 2000
    # Both happen for every op, or the arguments that the changes start from are wrong themselves.
    assert raised.keys() == succeeded.keys() == ARGUMENTS.keys()


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_right_arguments_succeed(name: str) -> None:
    """What the wrong calls start from is right."""
    for spec in (*SINGLE, *STACKS, *(STEPS if name.startswith("train") else [])):
        results = call(name, ARGUMENTS[name](spec))
        for result in results if isinstance(results, tuple) else (results,):
            if isinstance(result, torch.Tensor) and result.is_floating_point():
                reserve = name == "train" and result.dim() == 1  # has places that nobody writes
                assert reserve or not result.isnan().any(), f"{name} left NaN for {spec}"
