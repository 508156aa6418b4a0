"""Checkpoints: a run's weights, optimizer and states on disk, never half of them."""

import re
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from model import State
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.optim import Optimizer

from rnnpack import amp


def newest(folder: Path) -> Path | None:
    """The newest checkpoint in a folder, which need not exist."""
    return _complete(folder)[-1] if _complete(folder) else None


def step_of(checkpoint: Path) -> int:
    """How many steps led to a checkpoint."""
    return int(checkpoint.name.removeprefix("step-"))


def save(
    folder: Path, step: int, model: nn.Module, optimizer: Optimizer, state: State, mesh: DeviceMesh
) -> None:
    """Write a checkpoint and remove older ones; every process of `mesh` calls this at once.

    It gets its name when it is complete: whenever the run is killed, the newest one is whole.
    """
    partial = folder / "partial"
    if dist.get_rank() == 0:
        shutil.rmtree(partial, ignore_errors=True)
    dcp.save(_contents(model, optimizer, state, mesh), checkpoint_id=partial)
    if dist.get_rank() == 0:
        partial.rename(folder / f"step-{step:08d}")
        for older in _complete(folder)[:-1]:
            shutil.rmtree(older)


def load(
    checkpoint: Path, model: nn.Module, optimizer: Optimizer, state: State, mesh: DeviceMesh
) -> State:
    """Read a checkpoint into model and optimizer, and return its state, of the kind of `state`."""
    # It is read into the tensors at hand; those of `state` are the caller's.
    h_0, c_0 = state
    own = (torch.empty_like(h_0), torch.empty_like(c_0))
    contents = _contents(model, optimizer, own, mesh)
    dcp.load(contents, checkpoint_id=checkpoint)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=contents["model"],
        optim_state_dict=contents["optimizer"],
    )
    amp.load_state_dict(contents["amp"])
    return own


def _contents(
    model: nn.Module, optimizer: Optimizer, state: State, mesh: DeviceMesh
) -> dict[str, Any]:
    """Everything by its place in the whole: other processes can go on, more or fewer."""
    weights, moments = get_state_dict(model, optimizer)
    rows = [DTensor.from_local(tensor, mesh, [Shard(1)]) for tensor in state]
    return {"model": weights, "optimizer": moments, "state": rows, "amp": amp.state_dict()}


def _complete(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    found = [path for path in folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name)]
    return sorted(found, key=step_of)
