"""Tensors that a call did not expect, and memory that shows whether it keeps within them."""

import ctypes
import mmap

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


class Fence:
    """Memory that ends at a page which nobody may touch: one byte too far ends the process."""

    def __init__(self) -> None:
        self._mprotect = ctypes.CDLL(None, use_errno=True).mprotect
        self._mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._maps: list[mmap.mmap] = []

    def before(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy `tensor` to lie directly before such a page."""
        size = tensor.numel() * tensor.element_size()
        if size == 0:
            return tensor
        whole = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = mmap.mmap(-1, whole + mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        assert self._mprotect(address + whole, mmap.PAGESIZE, 0) == 0, ctypes.get_errno()
        self._maps.append(memory)
        flat = torch.frombuffer(
            memory, dtype=tensor.dtype, offset=whole - size, count=tensor.numel()
        )
        return flat.view(tensor.shape).copy_(tensor)
