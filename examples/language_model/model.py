"""The model, how processes share it, and how it writes."""

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import rnnpack

State = tuple[Tensor, Tensor]


class CharacterModel(nn.Module):
    """Predicts the next character: embedding, two layers of projected LSTM, linear.

    The LSTM keeps `hidden` values a character in its cell state; what it hands on, to its next step
    and layer, is projected to the fewer `projection`.
    """

    LAYERS = 2

    def __init__(self, characters: int, hidden: int, projection: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, projection)
        self.lstm = rnnpack.LSTM(projection, hidden, self.LAYERS, proj_size=projection)
        self.head = nn.Linear(projection, characters)

    def forward(self, input: Tensor, state: State) -> tuple[Tensor, State]:
        """From characters [L, N] to logits [L * N, characters] of the next ones, and the state."""
        output, state = self.lstm(self.embedding(input), state)
        return self.head(output.flatten(0, 1)), state

    def initial_state(self, rows: int, dtype: torch.dtype = torch.float32) -> State:
        sizes = (self.lstm.proj_size, self.lstm.hidden_size)
        h_0, c_0 = (torch.zeros(self.LAYERS, rows, size, dtype=dtype) for size in sizes)
        return h_0, c_0


def share(model: CharacterModel, how: str, mesh: DeviceMesh) -> nn.Module:
    """Let the processes of `mesh` train one model; its gradient is the mean of theirs.

    With "ddp" each process holds all weights; with "fsdp" each holds a part of every weight and
    gathers a layer's before its use. The model must have the same weights in every process.
    """
    if how == "ddp":
        return DistributedDataParallel(model, process_group=mesh.get_group())
    fully_shard(model.lstm, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


@torch.no_grad()
def write(model: nn.Module, start: Tensor, state: State, length: int, seed: int) -> Tensor:
    """Draw `length` characters, one at a time, to follow the characters `start`.

    With "fsdp" every process must call this at once: they gather the weights together. The same
    seed draws the same characters in each.
    """
    generator = torch.Generator().manual_seed(seed)
    written = []
    input = start
    for _ in range(length):
        logits, state = model(input.unsqueeze(1), state)
        input = torch.multinomial(logits[-1].float().softmax(0), 1, generator=generator)
        written.append(input)
    return torch.cat(written)
