"""The scale of a loss: fixed, or halved upon overflow and doubled after a while without."""

from __future__ import annotations

# Those of torch.amp.GradScaler.
FIRST_SCALE = 2.0**16
SCALE_WINDOW = 2000  # steps without overflow before the scale doubles

# The smallest normal float32. Scaled losses are float32, and 1 / scale must stay finite.
SMALLEST_SCALE = 2.0**-126


class LossScaler:
    """The scale of one loss.

    Args:
        fixed: the scale for good; None: dynamic, from 65536 on.
        minimum, maximum: limits of a dynamic scale; None: as small as float32 can tell.
    Attributes:
        scale: what the loss is multiplied by.
        unskipped: steps since the scale changed.
    """

    def __init__(self, fixed: float | None, minimum: float | None, maximum: float) -> None:
        self.dynamic = fixed is None
        self.minimum = SMALLEST_SCALE if minimum is None else minimum
        self.maximum = maximum
        self.scale = min(FIRST_SCALE, maximum) if fixed is None else fixed
        self.unskipped = 0

    def update(self, *, overflow: bool) -> None:
        """Count a step: halve a dynamic scale upon overflow, double it after 2000 without."""
        if not self.dynamic:
            return
        self.unskipped = 0 if overflow else self.unskipped + 1
        if overflow:
            self.scale = max(self.scale / 2, self.minimum)
        elif self.unskipped == SCALE_WINDOW:
            self.scale = min(self.scale * 2, self.maximum)
            self.unskipped = 0

    def state_dict(self) -> dict[str, float]:
        return {"loss_scale": self.scale, "unskipped": self.unskipped}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.scale = float(state["loss_scale"])
        self.unskipped = int(state["unskipped"])
