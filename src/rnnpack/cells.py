"""`LSTMCell`, `GRUCell` and `RNNCell`: one step at a time, run by the native engine."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn.modules.rnn import RNNCellBase

from rnnpack import functional
from rnnpack.derived import copyable_state, deep_copy
from rnnpack.functional import Call, Path, step_call
from rnnpack.ops import CELL_INDEX, calls
from rnnpack.tracing import call_later, is_symbolic, not_scriptable

_UNBATCHED, _BATCHED = 1, 2  # dimensions of the input
_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class Cell(RNNCellBase):
    """What the three cells share. Use `LSTMCell`, `GRUCell` or `RNNCell`."""

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        """Take one step.

        Args:
            input: [N, H_in], or [H_in] unbatched.
            hx: the state h [N, hidden_size] (LSTM: a tuple (h, c)), without N if unbatched;
                None: zero.
        Returns:
            The next state, in the form of `hx`.
        Raises:
            ValueError: rank.
            RuntimeError: sizes.
            TypeError: kind of an argument.
        """
        if not is_compiling():
            names = _NAMES if self.bias else _NAMES[:2]
            result = self._call_at_once(input, hx, self._parameters, names)
            if result is not None:
                return result
        if is_symbolic(input):
            return call_later(self, input, hx)
        h, c = functional.run_step(self._call(input, hx))
        if input.dim() == _UNBATCHED:
            h = h.squeeze(0)
            c = None if c is None else c.squeeze(0)
        return h if c is None else (h, c)

    def __prepare_scriptable__(self) -> Any:
        raise not_scriptable(self)

    def __getstate__(self) -> dict[str, Any]:
        return copyable_state(self, _NAMES)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return deep_copy(self, _NAMES, memo)

    def explain(self, input: Tensor, hx: Any = None) -> Path:
        """The path that `forward` takes for these arguments, and why."""
        return functional.explain(self._call(input, hx).as_sequence())

    def _call_at_once(
        self, input: Tensor, hx: Any, home: dict[str, Any], names: tuple[str, ...]
    ) -> Any:
        """The short way of the commonest call, eager and without gradients; None: the long way.

        home, names: where the weights are, see `calls.cell`.
        """
        return calls.cell(self, home, names, input, hx, CELL_INDEX[self._cell()])

    def _cell(self) -> str:
        raise NotImplementedError

    def _dtype(self, weights: list[Tensor]) -> torch.dtype:
        return weights[0].dtype

    def _weights(self) -> list[Tensor]:
        names = _NAMES if self.bias else _NAMES[:2]
        if not is_compiling():
            parameters = self._parameters
            try:
                return [parameters[name] for name in names]  # type: ignore[misc]
            except KeyError:  # pruned, normed, parametrized or replicated: an attribute makes it
                pass
        return [getattr(self, name) for name in names]

    def _name(self) -> str:
        return self._cell().partition("_")[0].upper() + "Cell"

    def _call(self, input: Tensor, hx: Any) -> Call:
        """One step, checked as `torch.nn` does, in its words."""
        if not isinstance(input, Tensor):
            raise TypeError(
                f"{self._name()}: expected input to be a Tensor, got {type(input).__name__}"
            )
        if input.dim() not in (_UNBATCHED, _BATCHED):
            raise ValueError(
                f"{self._name()}: Expected input to be 1D or 2D, got {input.dim()}D instead"
            )
        h_0, c_0 = self._split_state(hx)
        if input.dim() == _UNBATCHED:
            input = input.unsqueeze(0)
            h_0 = None if h_0 is None else h_0.unsqueeze(0)
            c_0 = None if c_0 is None else c_0.unsqueeze(0)
        if input.size(1) != self.input_size:
            raise RuntimeError(
                f"input has inconsistent input_size: got {input.size(1)} expected {self.input_size}"
            )
        for index, state in enumerate((h_0, c_0)):
            if state is not None:
                self._check_state(input, state, index)
        weights = self._weights()
        self._check_dtypes(self._dtype(weights), input, h_0, c_0)
        return step_call(self._cell(), self.hidden_size, input, h_0, c_0, weights)

    def _check_dtypes(self, dtype: torch.dtype, input: Tensor, *states: Tensor | None) -> None:
        for name, tensor in zip(("input", "h", "c"), (input, *states), strict=True):
            if tensor is None:
                continue
            if not functional.fits(dtype if tensor is input else tensor.dtype, input):
                raise RuntimeError(
                    f"{self._name()}: expected {name} in the weights' dtype {dtype}, got "
                    f"{tensor.dtype}; use {name}.to({dtype})"
                )

    def _check_state(self, input: Tensor, state: Tensor, index: int) -> None:
        if state.dim() != _BATCHED or state.size(0) != input.size(0):
            raise RuntimeError(
                f"Input batch size {input.size(0)} doesn't match "
                f"hidden{index} batch size {state.size(0)}"
            )
        if state.size(1) != self.hidden_size:
            raise RuntimeError(
                f"hidden{index} has inconsistent hidden_size: "
                f"got {state.size(1)}, expected {self.hidden_size}"
            )

    def _split_state(self, hx: Any) -> tuple[Tensor | None, Tensor | None]:
        if hx is None:
            return None, None
        if not isinstance(hx, Tensor):
            raise TypeError(
                f"{self._name()}: expected hx to be one Tensor h, got {type(hx).__name__}"
            )
        if hx.dim() not in (_UNBATCHED, _BATCHED):
            raise ValueError(
                f"{self._name()}: Expected hidden to be 1D or 2D, got {hx.dim()}D instead"
            )
        return hx, None


class LSTMCell(Cell):
    """One step of an LSTM; takes the place of `torch.nn.LSTMCell`. Equations: `rnnpack.LSTM`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, num_chunks=4, device=device, dtype=dtype)

    def _cell(self) -> str:
        return "lstm"

    def _split_state(self, hx: Any) -> tuple[Tensor | None, Tensor | None]:
        if hx is None:
            return None, None
        if not isinstance(hx, tuple | list) or len(hx) != 2:
            came = type(hx).__name__ if not isinstance(hx, tuple | list) else f"{len(hx)} values"
            raise TypeError(f"LSTMCell: expected hx to be a tuple (h, c), got {came}")
        for index, state in enumerate(hx):
            if not isinstance(state, Tensor):
                raise TypeError(
                    f"LSTMCell: expected hx to be a tuple (h, c) of Tensors, got "
                    f"{type(state).__name__} at [{index}]"
                )
            if state.dim() not in (_UNBATCHED, _BATCHED):
                raise ValueError(
                    f"LSTMCell: Expected hx[{index}] to be 1D or 2D, got {state.dim()}D instead"
                )
        return hx[0], hx[1]


class GRUCell(Cell):
    """One step of a GRU; takes the place of `torch.nn.GRUCell`. Equations: `rnnpack.GRU`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, num_chunks=3, device=device, dtype=dtype)

    def _cell(self) -> str:
        return "gru"


class RNNCell(Cell):
    """One step of an Elman network; takes the place of `torch.nn.RNNCell`.

    Equations: `rnnpack.RNN`.
    """

    nonlinearity: str

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, num_chunks=1, device=device, dtype=dtype)
        self.nonlinearity = nonlinearity

    def _cell(self) -> str:
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        return f"rnn_{self.nonlinearity}"
