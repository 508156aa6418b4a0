"""`scale_loss`: a backward pass whose gradients do not vanish in 16 bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn
from torch.optim import Optimizer

from rnnpack.amp.session import Session, current
from rnnpack.amp.stepping import Check, Stepper, stepper_of


@contextmanager
def scale_loss(
    loss: Tensor,
    optimizers: Optimizer | Sequence[Optimizer],
    loss_id: int = 0,
    model: nn.Module | Sequence[nn.Module] | None = None,
    delay_unscale: bool = False,
    delay_overflow_check: bool = False,
) -> Iterator[Tensor]:
    """Give `loss.float() * scale`, to call backward on; unscale the gradients at the end.

        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()

    Afterwards gradients are those of the loss itself, added to those that were there. If a dynamic
    scale made one overflow (infinite or NaN), the scale halves and the next step of each of
    `optimizers` is skipped, once; after 2000 backward passes without overflow it doubles.

    Args:
        loss: any floating tensor, usually a scalar.
        optimizers: all those whose parameters get gradients.
        loss_id: which of `num_losses` scales to use.
        model: not used; there so that calls written for apex run.
        delay_unscale: leave the gradients scaled: a later scale_loss unscales them, with its own,
            before the optimizer steps.
        delay_overflow_check: look for overflow when one of `optimizers` steps, not now.
    Yields:
        The scaled loss, float32; after enabled=False, the loss as it is.
    Raises:
        RuntimeError: `initialize` has not been called, or not with these optimizers.
        ValueError: there is no such loss_id.
    """
    session = current("scale_loss")
    if session.options is None:
        yield loss
        return
    if not 0 <= loss_id < len(session.scalers):
        raise ValueError(
            f"loss_id: expected 0 to {len(session.scalers) - 1}, got {loss_id}: say num_losses to "
            "amp.initialize"
        )
    scaler = session.scalers[loss_id]
    chosen = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)
    steppers = [stepper_of(optimizer) for optimizer in chosen]
    for stepper in steppers:
        stepper.begin(scaler)
    scale = scaler.scale
    try:
        yield loss.float() * scale
    except BaseException:
        for stepper in steppers:
            stepper.abandon()
        raise
    if delay_unscale:
        for stepper in steppers:
            stepper.pending = (scaler, scale)
        return
    _finish(session, steppers, loss_id, scale, delay_overflow_check)


def _finish(
    session: Session, steppers: list[Stepper], loss_id: int, scale: float, delay: bool
) -> None:
    """Unscale gradients, each once, and look for overflow, now or when an optimizer steps."""
    scaler = session.scalers[loss_id]
    seen: set[Tensor] = set()
    largest = [value for stepper in steppers for value in stepper.unscale(scaler, scale, seen)]
    check = Check(scaler, steppers, largest)
    if delay:
        for stepper in steppers:
            stepper.checks.append(check)
    elif check.settle():
        session.say(
            f"amp: gradients overflowed, skipping a step; the scale of loss {loss_id} is now "
            f"{scaler.scale:g}"
        )
