"""`pack`: layers that hold packed weights only, for deployment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from rnnpack.cells import Cell, GRUCell, LSTMCell, RNNCell
from rnnpack.convert import Conversion, convert
from rnnpack.derived import drop, plain_class, refresh
from rnnpack.layers import GRU, LSTM, RNN, Recurrent
from rnnpack.ops import CELL_INDEX, check_packed, library_status, pack_weights

_NATIVE = library_status().loaded
_NO_NATIVE = f"packed weights need the native library: {library_status().reason}"


def pack(model: nn.Module, *, keep: bool = False, dtype: torch.dtype | None = None) -> Conversion:
    """Turn every recurrent layer of `model` into an inference layer with packed weights, in place.

    It takes torch.nn's layers and rnnpack's. The packed weights are a snapshot: they hold what the
    parameters were when `pack` was called. They are buffers, saved and loaded by `state_dict`, the
    same on every instruction set. A packed layer runs without packing in the call, gives the same
    bits for any split of the batch and any chunking of the sequence, and refuses to train.

    Args:
        model: any module; may itself be a layer.
        keep: keep the parameters beside the packed weights; else they are freed.
        dtype: torch.bfloat16 or torch.float16: round float32 weights to it, in half the memory.
            Inputs, states, outputs and arithmetic stay float32, and so do biases. None: as they
            are.
    Returns:
        A `Conversion`, as `rnnpack.convert` returns it.
    Raises:
        RuntimeError: there is no native library.
        TypeError: a layer's weights are not float32, bfloat16 or float16 on the CPU, or cannot be
            rounded to `dtype`; or `keep` is set and a layer is pruned or parametrized.
    """
    if not _NATIVE:
        raise RuntimeError(_NO_NATIVE)
    if dtype is not None:
        for name, module in model.named_modules():
            if isinstance(module, _Packed):
                raise TypeError(
                    f"{name or 'the layer'} is packed already and keeps its dtype: give dtype to "
                    "the first rnnpack.pack"
                )
    before = [(module, type(module), module.__dict__.copy()) for module in model.modules()]
    try:
        report = convert(model)
        packed = {
            name: _pack_weights(module, keep=keep, dtype=dtype)
            for name, module in model.named_modules()
            if plain_class(module) in _PACKED
        }
    except TypeError:
        for module, kind, attributes in before:  # all or nothing
            module.__class__ = kind
            module.__dict__ = attributes
        raise
    for name, tensors in packed.items():
        _settle(model.get_submodule(name), tensors, keep=keep)
    return Conversion(model, list(packed), report.left)


def _weight_names(module: nn.Module) -> list[list[str]]:
    """Names of the weights of each layer and direction."""
    if isinstance(module, Recurrent):
        return module._all_weights
    names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
    return [names if module.bias else names[:2]]


def _pack_weights(module: nn.Module, *, keep: bool, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """The packed weights of a layer or cell, by the names of the buffers they will be."""
    assert isinstance(module, Recurrent | Cell)
    groups = _weight_names(module)
    if keep and not all(name in module._parameters for group in groups for name in group):
        raise TypeError(
            f"keep=True needs plain parameters, and {type(module).__name__} computes "
            f"{groups[0][0]} or others from them: remove pruning and parametrizations first"
        )
    refresh(module)
    weights = [getattr(module, name) for group in groups for name in group]
    packed = pack_weights(module._cell(), weights, len(groups), dtype)
    names = ["packed" + group[0].removeprefix("weight_ih") for group in groups]
    return dict(zip(names, packed, strict=True))


def _settle(module: nn.Module, packed: dict[str, Tensor], *, keep: bool) -> None:
    """Make a packed layer of a layer whose weights have been packed."""
    names = [name for group in _weight_names(module) for name in group]
    dtype = getattr(module, names[0]).dtype
    module.__class__ = _PACKED[plain_class(module)]
    if not keep:
        drop(module)
        module._parameters.clear()
        module._buffers.clear()
        for name in names:
            module.__dict__.pop(name, None)
    module.packed_from = dtype
    for name, tensor in packed.items():
        module.register_buffer(name, tensor)


class _Packed:
    """What packed layers and cells share; mixed in before the layer's class."""

    def _packed(self: Any) -> list[Tensor]:
        return [buffer for name, buffer in self._buffers.items() if name.startswith("packed")]

    def _dtype(self: Any, weights: list[Tensor]) -> torch.dtype:
        return self.packed_from  # type: ignore[no-any-return]

    def _call_at_once(self: Any, input: Any, hx: Any, *_: Any) -> Any:
        if getattr(input, "dtype", None) is not self.packed_from:
            return None
        names = [name for name in self._buffers if name.startswith("packed")]
        return super()._call_at_once(input, hx, self._buffers, names)  # type: ignore[misc]

    def forward(self: Any, input: Any, hx: Any = None, **options: Any) -> Any:
        """Run as the layer does, on the packed weights; refuse where a gradient would be needed."""
        if not _NATIVE:
            raise RuntimeError(_NO_NATIVE)
        data = input.data if isinstance(input, PackedSequence) else input
        tensors = [data, *hx] if isinstance(hx, tuple | list) else [data, hx]
        if torch.is_grad_enabled() and any(
            tensor.requires_grad for tensor in tensors if isinstance(tensor, Tensor)
        ):
            raise RuntimeError(
                "a packed layer holds a snapshot of its weights and cannot be trained through: run "
                "it under torch.no_grad(), detach its input, or use the layer that it was packed "
                "from"
            )
        return super().forward(input, hx, **options)  # type: ignore[misc]

    def check_input(self: Any, input: Tensor, batch_sizes: Tensor | None) -> None:
        """Raise on wrong rank or size, as `torch.nn.RNNBase` does; there are no weights to ask."""
        dimensions = 2 if batch_sizes is not None else 3
        if input.dim() != dimensions:
            raise RuntimeError(f"input must have {dimensions} dimensions, got {input.dim()}")
        raise RuntimeError(
            "input.size(-1) must be equal to input_size. "
            f"Expected {self.input_size}, got {input.size(-1)}"
        )

    def _load_from_state_dict(
        self: Any, state_dict: dict[str, Any], prefix: str, *rest: Any
    ) -> None:
        for name in self._buffers:
            given = state_dict.get(prefix + name)
            if name.startswith("packed") and given is not None:
                self._check_given(prefix + name, given, self._sizes(name))
        super()._load_from_state_dict(state_dict, prefix, *rest)  # type: ignore[misc]

    def _sizes(self: Any, name: str) -> tuple[int, int, int]:
        """(input_size, hidden_size, proj_size) of what the buffer `name` holds."""
        if not isinstance(self, Recurrent):
            return self.input_size, self.hidden_size, 0
        below = (self.proj_size or self.hidden_size) * (2 if self.bidirectional else 1)
        input_size = self.input_size if name.startswith("packed_l0") else below
        return input_size, self.hidden_size, self.proj_size

    def _check_given(self: Any, name: str, given: Tensor, expected: tuple[int, int, int]) -> None:
        try:
            sizes = tuple(check_packed(given.contiguous(), CELL_INDEX[self._cell()]))
        except RuntimeError as error:
            raise RuntimeError(f"cannot load {name}: {str(error).splitlines()[0]}") from error
        if sizes != expected:
            raise RuntimeError(
                f"cannot load {name}: packed for (input_size, hidden_size, proj_size) = "
                f"{sizes}, this layer has {expected}"
            )

    def register_parameter(self: Any, name: str, param: nn.Parameter | None) -> None:
        """Refuse a new weight, which would have no effect."""
        names = [weight for group in _weight_names(self) for weight in group]
        if name in names and name not in self._parameters:
            raise TypeError(
                f"cannot set {name}: a packed layer holds a snapshot of its weights; set it before "
                "rnnpack.pack"
            )
        super().register_parameter(name, param)  # type: ignore[misc]


class _PackedLayer(_Packed, Recurrent):
    @property
    def _flat_weights(self) -> list[Tensor]:  # type: ignore[override]  # an attribute in RNNBase
        return self._packed()

    @property
    def all_weights(self) -> list[list[Tensor]]:  # type: ignore[override]  # no Parameters here
        """The packed weights, by layer and direction."""
        return [[tensor] for tensor in self._packed()]


class _PackedCell(_Packed):
    def _weights(self) -> list[Tensor]:
        return self._packed()


class PackedLSTM(_PackedLayer, LSTM):
    """An LSTM with packed weights; made by `rnnpack.pack`."""


class PackedGRU(_PackedLayer, GRU):
    """A GRU with packed weights; made by `rnnpack.pack`."""


class PackedRNN(_PackedLayer, RNN):
    """An RNN with packed weights; made by `rnnpack.pack`."""


class PackedLSTMCell(_PackedCell, LSTMCell):
    """An LSTMCell with packed weights; made by `rnnpack.pack`."""


class PackedGRUCell(_PackedCell, GRUCell):
    """A GRUCell with packed weights; made by `rnnpack.pack`."""


class PackedRNNCell(_PackedCell, RNNCell):
    """An RNNCell with packed weights; made by `rnnpack.pack`."""


_PACKED: Mapping[type[nn.Module], type[Recurrent] | type[Cell]] = {
    LSTM: PackedLSTM,
    GRU: PackedGRU,
    RNN: PackedRNN,
    LSTMCell: PackedLSTMCell,
    GRUCell: PackedGRUCell,
    RNNCell: PackedRNNCell,
}
