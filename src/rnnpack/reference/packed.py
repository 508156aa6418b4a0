"""Rows of packed sequences as padded batches, and back."""

import torch
from torch import Tensor


def unpack_rows(data: Tensor, batch_sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [sum(batch_sizes), F] as a padded batch [L, N, F] with zeros, and its lengths [N]."""
    seq_len, batch = batch_sizes.size(0), int(batch_sizes[0])
    places = _places(batch_sizes, batch).to(data.device)
    padded = data.new_zeros((seq_len * batch, data.size(1))).index_copy(0, places, data)
    lengths = (torch.arange(batch) < batch_sizes.unsqueeze(1)).sum(0)
    return padded.reshape((seq_len, batch, data.size(1))), lengths


def pack_rows(padded: Tensor, batch_sizes: Tensor) -> Tensor:
    """A padded batch [L, N, F] as rows [sum(batch_sizes), F]; undoes `unpack_rows`."""
    return padded.flatten(0, 1)[_places(batch_sizes, padded.size(1)).to(padded.device)]


def _places(batch_sizes: Tensor, batch: int) -> Tensor:
    """Where each row of a packed sequence lies among the L * N of the padded batch."""
    live = torch.arange(batch) < batch_sizes.unsqueeze(1)  # [L, N]
    return live.flatten().nonzero().squeeze(1)
