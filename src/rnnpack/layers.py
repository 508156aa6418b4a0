"""`LSTM`, `GRU` and `RNN`: `torch.nn`'s layers, run by the native engine."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn.utils.rnn import PackedSequence

from rnnpack import functional
from rnnpack.derived import copyable_state, deep_copy, refresh
from rnnpack.functional import Call, Path, Stack
from rnnpack.ops import CELL_INDEX, CELLS, calls, library_status, pack_weights
from rnnpack.sequences import check_lengths
from rnnpack.stream import Stream
from rnnpack.tracing import call_later, is_symbolic, not_scriptable

_UNBATCHED, _BATCHED = 2, 3  # dimensions of the input
_CELL_OF_MODE = {name.upper(): index for name, index in CELL_INDEX.items()}


class Recurrent(torch.nn.RNNBase):
    """What the three layers share: arguments, checks and states. Use `LSTM`, `GRU` or `RNN`.

    A weight lives in its parameter and nowhere else: every call reads the parameters as they are
    then.
    """

    recompute: bool

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
        *,
        recompute: bool = False,
    ) -> None:
        super().__init__(
            mode,
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
            device,
            dtype,
        )
        self.recompute = recompute
        self.__dict__.pop("_flat_weight_refs", None)

    # torch.nn.RNNBase keeps a second list of its weights and holds it up to date from these places.

    __setattr__ = torch.nn.Module.__setattr__  # type: ignore[assignment]  # RNNBase's is untyped
    _apply = torch.nn.Module._apply
    _replicate_for_data_parallel = torch.nn.Module._replicate_for_data_parallel

    def _init_flat_weights(self) -> None:
        pass

    def _update_flat_weights(self) -> None:
        pass

    @property
    def _flat_weights(self) -> list[Tensor]:  # type: ignore[override]  # an attribute in RNNBase
        """The current weights, by layer and direction, in `torch.nn`'s order."""
        if not is_compiling():
            parameters = self._parameters
            try:
                return [parameters[name] for name in self._flat_weights_names]  # type: ignore[misc]
            except KeyError:  # pruned, normed, parametrized or replicated: an attribute makes it
                pass
        return [getattr(self, name) for name in self._flat_weights_names]

    def flatten_parameters(self) -> None:
        """Do nothing: no flat buffer exists."""

    def __prepare_scriptable__(self) -> Any:
        raise not_scriptable(self)

    def __getstate__(self) -> dict[str, Any]:
        return copyable_state(self, self._flat_weights_names)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return deep_copy(self, self._flat_weights_names, memo)

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.nn.Module.__setstate__(self, state)  # type: ignore[no-untyped-call]
        self.__dict__.setdefault("recompute", False)

    def forward(
        self, input: Any, hx: Any = None, *, lengths: Tensor | None = None
    ) -> tuple[Any, Any]:
        """Run the layers over a batch of sequences.

        Args:
            input: [L, N, H_in], [N, L, H_in] if `batch_first`, [L, H_in] unbatched, or a
                `PackedSequence`.
            hx: initial state(s), [directions * num_layers, N, .] (without N if unbatched); None:
                zero.
            lengths: int64 [N] on the CPU, each from 0 to L, in any order: steps of each row of a
                padded batch. The output is zero past a row's end, its final state is that of its
                last step, and the reverse direction starts there. None: all L.
        Returns:
            `(output, state)`, as `torch.nn` returns them. L = 0 gives an empty output and the
            initial state.
        Raises:
            ValueError: rank or dtype of the input.
            RuntimeError: sizes.
            TypeError: kind of an argument.
        """
        if lengths is None and not is_compiling():
            result = self._call_at_once(input, hx, self._parameters, self._flat_weights_names)
            if result is not None:
                return result
        if is_symbolic(input):
            options = {} if lengths is None else {"lengths": lengths}
            return call_later(self, input, hx, **options)  # type: ignore[no-any-return]
        call = self._call(input, hx, lengths)
        batch_sizes = call.batch_sizes
        output, h_n, c_n = functional.run(call)
        if batch_sizes is not None:
            if input.unsorted_indices is not None:
                h_n = h_n.index_select(1, input.unsorted_indices)
                c_n = None if c_n is None else c_n.index_select(1, input.unsorted_indices)
            packed = PackedSequence(
                output, batch_sizes, input.sorted_indices, input.unsorted_indices
            )
            return packed, self._state(h_n, c_n)
        if input.dim() == _UNBATCHED:
            output = output.squeeze(0 if self.batch_first else 1)
            h_n = h_n.squeeze(1)
            c_n = None if c_n is None else c_n.squeeze(1)
        return output, self._state(h_n, c_n)

    def _call_at_once(
        self, input: Any, hx: Any, home: dict[str, Any], names: list[str]
    ) -> tuple[Tensor, Any] | None:
        """The short way of the commonest call, eager and without gradients; None: the long way.

        home, names: where the weights are, see `calls.infer`.
        """
        if self.training and self.dropout > 0:
            return None
        return calls.infer(  # type: ignore[no-any-return]
            self,
            home,
            names,
            input,
            hx,
            _CELL_OF_MODE[self.mode],
            self.num_layers,
            self.hidden_size,
            self.proj_size,
            self.bidirectional,
            self.batch_first,
        )

    def explain(self, input: Any, hx: Any = None, *, lengths: Tensor | None = None) -> Path:
        """The path that `forward` takes for these arguments, and why."""
        return functional.explain(self._call(input, hx, lengths))

    def _stack(self) -> Stack:
        return Stack(
            self._cell(),
            self.num_layers,
            self.hidden_size,
            self.proj_size,
            self.bidirectional,
            self.batch_first,
            # Not read where it has no effect: a traced float is one more thing to compile for.
            self.dropout if self.training and self.num_layers > 1 else 0.0,
            self.recompute,
        )

    def _cell(self) -> str:
        return self.mode.lower()

    def _dtype(self, weights: list[Tensor]) -> torch.dtype:
        return weights[0].dtype

    def stream(self, batch_size: int = 1) -> Stream:
        """A stream of this layer: fed one step or one chunk at a time, it carries the state along.

        Args:
            batch_size: rows that run side by side.
        Returns:
            A `Stream` with zero state. It holds the weights as they are now. Dropout is off.
        Raises:
            ValueError: the layer is bidirectional (its reverse direction needs the end of the
                sequence), or batch_size < 1.
            RuntimeError: there is no native library.
            TypeError: the weights are not float32, bfloat16 or float16 on the CPU.
        """
        if self.bidirectional:
            raise ValueError(
                "a bidirectional layer cannot be streamed: its reverse direction starts at the end "
                "of the sequence"
            )
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if not library_status().loaded:
            raise RuntimeError(f"a stream needs the native library: {library_status().reason}")
        cell = CELL_INDEX[self._cell()]
        refresh(self)
        packed = self._flat_weights
        dtype = self._dtype(packed)
        if packed[0].dtype != torch.uint8:
            packed = pack_weights(self._cell(), packed, self.num_layers)
        elif packed[0].device.type != "cpu":
            raise TypeError(
                f"a stream runs on the CPU, the packed weights are on {packed[0].device}; "
                "use layer.cpu()"
            )
        else:
            # Loaded buffers may be anything: the op checks them, a stream uses their memory.
            nothing = torch.empty((0, batch_size, self.input_size), dtype=dtype, device="cpu")
            with torch.no_grad():
                functional.run(
                    Call(self._stack()._replace(dropout=0.0), nothing, None, None, packed)
                )
        sizes = (self.input_size, self.hidden_size, self.proj_size)
        return Stream(
            cell, dtype, sizes, batch_size, packed, has_cell_state=CELLS[cell].has_cell_state
        )

    @staticmethod
    def _state(h_n: Tensor, c_n: Tensor | None) -> Any:
        return h_n if c_n is None else (h_n, c_n)

    def _call(self, input: Any, hx: Any, lengths: Tensor | None) -> Call:
        """The call as the engine takes it, checked as `torch.nn` does, in its words."""
        h_0, c_0 = self._split_state(hx)
        weights = self._flat_weights
        batch_sizes = None
        if isinstance(input, PackedSequence):
            data, batch_sizes, sorted_indices, _ = input
            if lengths is not None:
                raise ValueError("a PackedSequence has its own lengths: expected lengths=None")
            if sorted_indices is not None:
                h_0 = None if h_0 is None else h_0.index_select(1, sorted_indices)
                c_0 = None if c_0 is None else c_0.index_select(1, sorted_indices)
        else:
            data, h_0, c_0 = self._batched(input, h_0, c_0, lengths)
        dtype = self._dtype(weights)
        if not functional.fits(dtype, data):
            fixed = weights[0].dtype == torch.uint8  # packed
            # As torch.nn, whose own check stands back in an autocast region.
            error = RuntimeError if torch._C._is_any_autocast_enabled() else ValueError
            raise error(
                f"RNN input dtype ({data.dtype}) does not match weight dtype ({dtype}). "
                f"Convert input: input.to({dtype})"
                + ("" if fixed else f", or convert model: model.to({data.dtype})")
            )
        if data.device != weights[0].device:
            raise RuntimeError(
                "Input and parameter tensors are not at the same device, found input tensor at "
                f"{data.device} and parameter tensor at {weights[0].device}"
            )
        if data.size(-1) != self.input_size or data.dim() != (3 if batch_sizes is None else 2):
            self.check_input(data, batch_sizes)
        if h_0 is not None:
            self._check_states(data, h_0, c_0, batch_sizes)
        if lengths is not None:
            time, batch = (1, 0) if self.batch_first else (0, 1)
            check_lengths(lengths, data.size(time), data.size(batch))
        return Call(self._stack(), data, h_0, c_0, weights, lengths, batch_sizes)

    def _batched(
        self, input: Any, h_0: Tensor | None, c_0: Tensor | None, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Input with a batch dimension, after checks of rank and kind."""
        if not isinstance(input, Tensor):
            raise TypeError(
                f"{self._name()}: expected input to be a Tensor or a PackedSequence, "
                f"got {type(input).__name__}"
            )
        dim = input.dim()
        if dim not in (_UNBATCHED, _BATCHED):
            raise ValueError(self._rank_message(dim))
        if input.layout is not torch.strided:
            raise TypeError(
                f"{self._name()}: expected a dense input, got layout {input.layout}; "
                "use input.to_dense()"
            )
        if h_0 is not None:
            self._check_ranks(dim, h_0, c_0)
        if dim == _UNBATCHED:
            if lengths is not None:
                raise ValueError("lengths is for a batch: expected a 3-D input, got a 2-D one")
            input = input.unsqueeze(0 if self.batch_first else 1)
            h_0 = None if h_0 is None else h_0.unsqueeze(1)
            c_0 = None if c_0 is None else c_0.unsqueeze(1)
        return input, h_0, c_0

    # Single-state layers; LSTM has its own.

    def _name(self) -> str:
        return self.mode.partition("_")[0]

    def _rank_message(self, dim: int) -> str:
        raise NotImplementedError

    def _split_state(self, hx: Any) -> tuple[Tensor | None, Tensor | None]:
        if hx is not None and not isinstance(hx, Tensor):
            raise TypeError(
                f"{self._name()}: expected hx to be one Tensor h_0, got {type(hx).__name__}"
                f"{'; only an LSTM has a second state c_0' if isinstance(hx, tuple) else ''}"
            )
        return hx, None

    def _check_ranks(self, dim: int, h_0: Tensor, c_0: Tensor | None) -> None:
        if h_0.dim() != dim:
            kind = "unbatched 2-D" if dim == _UNBATCHED else "batched 3-D"
            raise RuntimeError(
                f"For {kind} input, hx should also be {dim}-D but got {h_0.dim()}-D tensor"
            )

    def _check_states(
        self, data: Tensor, h_0: Tensor, c_0: Tensor | None, batch_sizes: Tensor | None
    ) -> None:
        self.check_hidden_size(h_0, self.get_expected_hidden_size(data, batch_sizes))
        _check_kind("hx", h_0, data)


def _check_kind(name: str, state: Tensor, data: Tensor) -> None:
    if state.device != data.device:
        raise RuntimeError(
            f"{name} must be on the input's device {data.device}, got {state.device}; "
            f"use {name}.to(input.device)"
        )
    if not functional.fits(state.dtype, data):
        raise RuntimeError(
            f"{name} must have the input's dtype {data.dtype}, got {state.dtype}; "
            f"use {name}.to(input.dtype)"
        )


class LSTM(Recurrent):
    """Long short-term memory, one or more layers; takes the place of `torch.nn.LSTM`.

        i, f, o = sigmoid(.)   g = tanh(.)   of   weight_ih x + bias_ih + weight_hh h + bias_hh
        c' = f * c + i * g,    h' = o * tanh(c'),    with proj_size: h' = weight_hr (o * tanh(c'))

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size,
            device, dtype: as in `torch.nn.LSTM`.
        recompute: in training, rebuild gates in the backward pass instead of keeping
            `4 * hidden_size` values a step; same bits.

    Parameters, their names, initial values and state dict are those of `torch.nn.LSTM`. Results
    differ from it by rounding; the same call gives the same bits for any number of threads.

    Example:
        >>> layer = rnnpack.LSTM(10, 20, num_layers=2)
        >>> output, (h_n, c_n) = layer(torch.randn(5, 3, 10))
        >>> output.shape, h_n.shape
        (torch.Size([5, 3, 20]), torch.Size([2, 3, 20]))

    Source: Hochreiter & Schmidhuber 1997; Gers et al. 2000; projection: Sak et al. 2014.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("LSTM", *args, **kwargs)

    def _rank_message(self, dim: int) -> str:
        return f"LSTM: Expected input to be 2D or 3D, got {dim}D instead"

    def _split_state(self, hx: Any) -> tuple[Tensor | None, Tensor | None]:
        if hx is None:
            return None, None
        if not isinstance(hx, tuple | list):
            raise TypeError(f"LSTM: expected hx to be a tuple (h_0, c_0), got {type(hx).__name__}")
        if len(hx) != 2 or not all(isinstance(state, Tensor) for state in hx):
            kinds = ", ".join(type(state).__name__ for state in hx)
            raise TypeError(f"LSTM: expected hx to be a tuple (h_0, c_0) of Tensors, got ({kinds})")
        return hx[0], hx[1]

    def _check_ranks(self, dim: int, h_0: Tensor, c_0: Tensor | None) -> None:
        ranks = (h_0.dim(), c_0.dim() if c_0 is not None else dim)
        if ranks != (dim, dim):
            kind = "unbatched 2-D" if dim == _UNBATCHED else "batched 3-D"
            raise RuntimeError(
                f"For {kind} input, hx and cx should also be {dim}-D "
                f"but got ({ranks[0]}-D, {ranks[1]}-D) tensors"
            )

    def _check_states(
        self, data: Tensor, h_0: Tensor, c_0: Tensor | None, batch_sizes: Tensor | None
    ) -> None:
        stacks, batch, width = self.get_expected_hidden_size(data, batch_sizes)
        if h_0.size() != (stacks, batch, width):
            self.check_hidden_size(
                h_0, (stacks, batch, width), "Expected hidden[0] size {}, got {}"
            )
        _check_kind("h_0", h_0, data)
        if c_0 is not None:
            if c_0.size() != (stacks, batch, self.hidden_size):
                self.check_hidden_size(
                    c_0, (stacks, batch, self.hidden_size), "Expected hidden[1] size {}, got {}"
                )
            _check_kind("c_0", c_0, data)


class GRU(Recurrent):
    """Gated recurrent unit, one or more layers; takes the place of `torch.nn.GRU`.

        r, z = sigmoid(.)   of   weight_ih x + bias_ih + weight_hh h + bias_hh
        n = tanh(W_in x + b_in + r * (W_hn h + b_hn)),    h' = (1 - z) * n + z * h

    Arguments as in `torch.nn.GRU`, and `recompute` as in `LSTM`.

    Raises:
        ValueError: `proj_size` is given: only an LSTM has a projection.

    Source: Cho et al. 2014, with the reset after the linear, as cuDNN and torch have it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if "proj_size" in kwargs:
            raise ValueError(_NO_PROJECTION)
        super().__init__("GRU", *args, **kwargs)

    def _rank_message(self, dim: int) -> str:
        return f"GRU: Expected input to be 2D or 3D, got {dim}D instead"


class RNN(Recurrent):
    """Elman network with tanh or relu, one or more layers; takes the place of `torch.nn.RNN`.

        h' = tanh(weight_ih x + bias_ih + weight_hh h + bias_hh),    or relu of the same

    Arguments as in `torch.nn.RNN` (`nonlinearity` is "tanh" or "relu"), and `recompute` as in
    `LSTM`.

    Source: Elman 1990.
    """

    nonlinearity: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if "proj_size" in kwargs:
            raise ValueError(_NO_PROJECTION)
        position = 3  # of nonlinearity among torch.nn.RNN's arguments
        if len(args) > position:
            nonlinearity = args[position]
            args = args[:position] + args[position + 1 :]
        else:
            nonlinearity = kwargs.pop("nonlinearity", "tanh")
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(
                f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'."
            )
        super().__init__(f"RNN_{nonlinearity.upper()}", *args, **kwargs)
        self.nonlinearity = nonlinearity

    def _rank_message(self, dim: int) -> str:
        return f"RNN: Expected input to be 2D or 3D, got {dim}D tensor instead"


_NO_PROJECTION = "proj_size argument is only supported for LSTM, not RNN or GRU"
