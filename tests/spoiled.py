"""Tensors that a call did not expect: what may be done to one before it is handed over."""

import torch


def grown(tensor: torch.Tensor, by: int) -> torch.Tensor:
    """Make some dimension longer or shorter, where there is one."""
    if tensor.dim() == 0:
        return tensor
    dim = tensor.numel() % tensor.dim()
    size = max(0, tensor.size(dim) + by)
    indices = torch.arange(size).clamp(max=max(tensor.size(dim) - 1, 0))
    return tensor.index_select(dim, indices) if tensor.size(dim) else tensor


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """Keep the values, with a gap after each."""
    wide = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)
    wide[..., 0] = tensor
    return wide[..., 0]


def freed_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Free the storage, as sharded training does between two uses of a weight."""
    freed = tensor.clone()
    freed.untyped_storage().resize_(0)
    return freed


CHANGES_OF_TENSORS = {
    **{
        f"as {dtype}": (lambda tensor, dtype=dtype: tensor.to(dtype))
        for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
                      torch.uint8, torch.bool, torch.complex64, torch.float32)
    },
    "on meta": lambda tensor: tensor.to("meta"),
    "sparse": lambda tensor: tensor.to_sparse(),
    "one longer": lambda tensor: grown(tensor, 1),
    "one shorter": lambda tensor: grown(tensor, -1),
    "much longer": lambda tensor: grown(tensor, 100),
    "empty": lambda tensor: tensor[:0] if tensor.dim() else tensor,
    "a dimension more": lambda tensor: tensor.unsqueeze(-1),
    "a dimension in front": lambda tensor: tensor.unsqueeze(0),
    "flat": lambda tensor: tensor.flatten(),
    "a scalar": lambda tensor: torch.zeros((), dtype=tensor.dtype),
    "transposed": lambda tensor: tensor.transpose(0, -1) if tensor.dim() else tensor,
    "column by column": lambda tensor: tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if tensor.dim() else tensor,
    "strided": strided,
    "without memory": freed_storage,
    "all one row": lambda tensor: tensor[:1].expand_as(tensor) if tensor.numel() else tensor,
    "all one number": lambda tensor: tensor.new_ones(()).expand(tensor.shape),
    "offset by one": lambda tensor: torch.cat([tensor.flatten()[:1], tensor.flatten()])[1:]
    .view(tensor.shape),
    "negated lazily": lambda tensor: torch.complex(torch.zeros_like(tensor), -tensor).conj().imag
    if tensor.dtype == torch.float32 else tensor,
    "requiring gradients": lambda tensor: tensor.requires_grad_()
    if tensor.is_floating_point() else tensor,
    "absent": lambda tensor: None,
    "no tensor": lambda tensor: 1.5,
    "reversed": lambda tensor: tensor.flip(0) if tensor.dim() else tensor,
    "negative": lambda tensor: -tensor if tensor.dtype != torch.bool else tensor,
    "plus one": lambda tensor: tensor + 1,
    "zeros": torch.zeros_like,
    "huge": lambda tensor: torch.full_like(tensor, 127 if tensor.dtype == torch.uint8 else 2.0**62),
}  # fmt: skip
