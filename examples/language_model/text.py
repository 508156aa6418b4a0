"""The text: characters as numbers, and the streams in which it is read."""

from pathlib import Path

import torch
from torch import Tensor


class Text:
    """Characters as numbers, int64.

    Attributes:
        alphabet: the characters in the text; a character's number is its place here.
        training: the first nine tenths of the text.
        validation: the last tenth, which training never sees.
    """

    def __init__(self, path: Path) -> None:
        characters = read(path)
        self.alphabet = "".join(sorted(set(characters)))
        place = {character: index for index, character in enumerate(self.alphabet)}
        codes = torch.tensor([place[character] for character in characters])
        self.training, self.validation = codes.tensor_split([codes.numel() * 9 // 10])

    def decode(self, codes: Tensor) -> str:
        return "".join(self.alphabet[code] for code in codes.tolist())


def read(path: Path) -> str:
    """Read a file, or the files of a folder in order of their names.

    Links are left out: those of a folder of licences are second names of its files.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and not file.is_symlink())
    else:
        files = [path] if path.exists() else []
    text = "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    if not text:
        raise SystemExit(f"{path}: expected text, found none; name a file or a folder with --text")
    return text


class Streams:
    """A text cut into equally long pieces that are read side by side, a window at a time.

    Window k continues where window k - 1 ended, in every row, so states carry over. A few
    characters at the end, less than a window for each row, are left out.

    Args:
        codes: the text [characters].
        rows: how many pieces, over all processes.
        window: characters of each piece read at a time.
        rank, world_size: this process, which reads rows / world_size of the pieces, and how many.
    """

    def __init__(
        self, codes: Tensor, rows: int, window: int, *, rank: int = 0, world_size: int = 1
    ) -> None:
        if rows % world_size:
            raise SystemExit(f"--rows {rows}: expected a multiple of the {world_size} processes")
        # The last character of a piece has a next one too, hence - 1.
        self.windows = (codes.numel() - 1) // rows // window
        if self.windows == 0:
            raise SystemExit(
                f"{codes.numel()} characters are too few for {rows} rows of {window}: "
                "expected a longer --text, fewer --rows or a shorter --window"
            )
        used = rows * self.windows * window
        own = slice(rank * (rows // world_size), (rank + 1) * (rows // world_size))
        self.window = window
        self.input = codes[:used].view(rows, -1)[own].t().contiguous()
        self.target = codes[1 : used + 1].view(rows, -1)[own].t().contiguous()

    @property
    def rows(self) -> int:
        """How many pieces this process reads."""
        return self.input.size(1)

    def begins(self, step: int) -> bool:
        """Whether a step reads the beginnings of the pieces, so that no state carries over."""
        return step % self.windows == 0

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        """Characters and those after them, both [window, rows]; past the last window, the first."""
        start = step % self.windows * self.window
        part = slice(start, start + self.window)
        return self.input[part], self.target[part]
