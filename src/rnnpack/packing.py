"""`pack`: layers that hold packed weights only, for deployment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from rnnpack.cells import Cell, GRUCell, LSTMCell, RNNCell
from rnnpack.convert import Conversion, convert
from rnnpack.layers import GRU, LSTM, RNN, Recurrent
from rnnpack.ops import CELL_INDEX, check_packed, library_status, pack_weights


def pack(model: nn.Module, *, keep: bool = False) -> Conversion:
    """Turn every recurrent layer of `model` into an inference layer with packed weights, in place.

    It takes torch.nn's layers and rnnpack's. The packed weights are a snapshot: they hold what the
    parameters were when `pack` was called. They are buffers, saved and loaded by `state_dict`, the
    same on every instruction set. A packed layer runs without packing in the call, gives the same
    bits for any split of the batch and any chunking of the sequence, and refuses to train.

    Args:
        model: any module; may itself be a layer.
        keep: keep the parameters beside the packed weights; else they are freed.
    Returns:
        A `Conversion`, as `rnnpack.convert` returns it.
    Raises:
        RuntimeError: there is no native library.
        TypeError: a layer's weights are not float32 on the CPU; or `keep` is set and a layer is
            pruned or parametrized.
    """
    if not library_status().loaded:
        raise RuntimeError(f"packed weights need the native library: {library_status().reason}")
    report = convert(model)
    swapped = []
    for name, module in model.named_modules():
        plain = type(module).__mro__[1] if parametrize.is_parametrized(module) else type(module)
        if plain in _PACKED:
            _pack_in_place(module, _PACKED[plain], keep=keep)
            swapped.append(name)
    return Conversion(model, swapped, report.left)


def _pack_in_place(module: nn.Module, target: type[Recurrent] | type[Cell], *, keep: bool) -> None:
    if isinstance(module, Recurrent):
        weights, names = module._flat_weights, module._flat_weights_names
        suffixes = [own[0].removeprefix("weight_ih") for own in module._all_weights]
    else:
        assert isinstance(module, Cell)
        weights, suffixes = module._weights(), [""]
        names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
    packed = pack_weights(module._cell(), weights, len(suffixes))
    if keep and not all(name in module._parameters for name in names):
        raise TypeError(
            "keep=True needs plain parameters: remove pruning and parametrizations first"
        )

    module.__class__ = target
    if not keep:
        # Hooks that compute a weight from others (pruning, weight_norm) have done their work, and
        # so have their parameters.
        for key, hook in list(module._forward_pre_hooks.items()):
            if type(hook).__module__.startswith("torch.nn.utils"):
                del module._forward_pre_hooks[key]
        module._modules.pop("parametrizations", None)
        module._parameters.clear()
        module._buffers.clear()
        for name in names:
            module.__dict__.pop(name, None)
    for suffix, tensor in zip(suffixes, packed, strict=True):
        module.register_buffer(f"packed{suffix}", tensor)


class _Packed:
    """What packed layers and cells share; mixed in before the layer's class."""

    def _packed(self: Any) -> list[Tensor]:
        return [buffer for name, buffer in self._buffers.items() if name.startswith("packed")]

    def _dtype(self: Any, weights: list[Tensor]) -> torch.dtype:
        return torch.float32

    def forward(self: Any, input: Any, hx: Any = None, **options: Any) -> Any:
        """Run as the layer does, on the packed weights; refuse where a gradient would be needed."""
        tensors = [input, *hx] if isinstance(hx, tuple | list) else [input, hx]
        if torch.is_grad_enabled() and any(
            tensor.requires_grad for tensor in tensors if isinstance(tensor, Tensor)
        ):
            raise RuntimeError(
                "a packed layer holds a snapshot of its weights and cannot be trained through: run "
                "it under torch.no_grad(), detach its input, or use the layer that it was packed "
                "from"
            )
        return super().forward(input, hx, **options)  # type: ignore[misc]

    def _load_from_state_dict(
        self: Any, state_dict: dict[str, Any], prefix: str, *rest: Any
    ) -> None:
        for name, own in self._buffers.items():
            given = state_dict.get(prefix + name)
            if name.startswith("packed") and given is not None:
                self._check_given(prefix + name, given, own)
        super()._load_from_state_dict(state_dict, prefix, *rest)  # type: ignore[misc]

    def _check_given(self: Any, name: str, given: Tensor, own: Tensor) -> None:
        cell = CELL_INDEX[self._cell()]
        try:
            sizes = check_packed(given.contiguous(), cell)
        except RuntimeError as error:
            raise RuntimeError(f"cannot load {name}: {str(error).splitlines()[0]}") from error
        expected = check_packed(own, cell)
        if sizes != expected:
            raise RuntimeError(
                f"cannot load {name}: packed for (input_size, hidden_size, proj_size) = "
                f"{tuple(sizes)}, this layer has {tuple(expected)}"
            )


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
