"""Each layer in plain torch operations: the definition of truth, in any floating dtype."""

from rnnpack.reference.cells import CELLS, LayerWeights
from rnnpack.reference.packed import pack_rows, unpack_rows
from rnnpack.reference.sequence import layer

__all__ = ["CELLS", "LayerWeights", "layer", "pack_rows", "unpack_rows"]
