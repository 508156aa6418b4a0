"""A model with recurrent layers leaves Python: exported, compiled, and beside it what to expect.

Writes into the folder given as argument:

    model.pt2         the exported program, for torch.export.load
    compiled.pt2      the compiled package, for Python and C++ (AOTInductor)
    expected.pt       inputs of two lengths and batch sizes, and what the eager model makes of them
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

import rnnpack

FEATURES, CLASSES = 40, 11
EXAMPLE = (23, 5)  # steps and rows of the example; any others will do
SHAPES = ((23, 5), (101, 1), (7, 12))  # what the result is tried with


class Tagger(nn.Module):
    """Scores of each class at each step: [steps, rows, 40] to [steps, rows, 11]."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = rnnpack.LSTM(FEATURES, 128)
        self.projected = rnnpack.LSTM(128, 96, proj_size=48)
        self.linear = nn.Linear(48, CLASSES)

    def forward(self, input: Tensor) -> Tensor:
        output, _ = self.lstm(input)
        output, _ = self.projected(output)
        return self.linear(output)


# Without gradients the graph gets the op for inference; with them, the one for training.
@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the files go")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(0)
    model = Tagger().eval()
    rnnpack.pack(model)  # packed once, here; the C++ program packs nothing

    free = torch.export.Dim.DYNAMIC
    example = torch.randn(*EXAMPLE, FEATURES)
    program = torch.export.export(model, (example,), dynamic_shapes=({0: free, 1: free},))
    torch.export.save(program, folder / "model.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "compiled.pt2"))

    inputs = [torch.randn(*shape, FEATURES) for shape in SHAPES]
    torch.save([(input, model(input)) for input in inputs], folder / "expected.pt")


if __name__ == "__main__":
    main()
