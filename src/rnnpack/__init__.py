"""Recurrent layers for PyTorch on one native engine: drop-in LSTM, GRU, RNN and their cells."""

__version__ = "0.1.0"

from rnnpack.cells import GRUCell, LSTMCell, RNNCell
from rnnpack.convert import Conversion, convert, revert
from rnnpack.explain import explain
from rnnpack.functional import Path
from rnnpack.layers import GRU, LSTM, RNN
from rnnpack.packing import pack
from rnnpack.stream import Stream

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "Conversion",
    "GRUCell",
    "LSTMCell",
    "Path",
    "RNNCell",
    "Stream",
    "__version__",
    "convert",
    "explain",
    "pack",
    "revert",
]
