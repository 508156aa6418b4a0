"""Optimizers under amp: gradients scaled and unscaled, steps skipped, master weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from rnnpack.amp.masters import catch_up, master_of, write_back
from rnnpack.amp.scaler import LossScaler

_ATTRIBUTE = "_rnnpack_amp"


def master_params(optimizer: Optimizer) -> Iterator[Tensor]:
    """The tensors that an optimizer updates: master weights at O2, parameters else.

    Clip or look at their gradients after `scale_loss` and before `optimizer.step()`.
    """
    for group in optimizer.param_groups:
        yield from group["params"]


def has_stepper(optimizer: Optimizer) -> bool:
    return hasattr(optimizer, _ATTRIBUTE)


def stepper_of(optimizer: Optimizer) -> Stepper:
    """What amp keeps of an optimizer. Raises RuntimeError where it is not one of `initialize`."""
    stepper = getattr(optimizer, _ATTRIBUTE, None)
    if not isinstance(stepper, Stepper):
        raise RuntimeError(
            f"scale_loss: expected optimizers that amp.initialize returned, got another "
            f"{type(optimizer).__name__}: give it to amp.initialize"
        )
    return stepper


class Stepper:
    """What amp keeps of an optimizer, and what it does in place of its methods.

    Attributes:
        skip: whether the next step is to be left out.
        pending: scaler and scale of gradients that are not unscaled yet; None: there are none.
        checks: overflow checks that wait for the next step.
    """

    def __init__(self, optimizer: Optimizer, *, dynamic: bool, masters: bool) -> None:
        self.optimizer = optimizer
        self.dynamic = dynamic
        self.masters = masters
        self.skip = False
        self.pending: tuple[LossScaler, float] | None = None
        self.checks: list[Check] = []
        self._parameter_of: dict[Tensor, Tensor] = {}
        # Gradients of earlier losses, unscaled: of what the optimizer holds, and of parameters.
        self._earlier: dict[Tensor, Tensor] = {}
        for group in optimizer.param_groups:
            self._own(group)
        self._step = _replace_method(optimizer, "step", self.step)
        self._zero_grad = _replace_method(optimizer, "zero_grad", self.zero_grad)
        self._add = _replace_method(optimizer, "add_param_group", self.add_param_group)
        setattr(optimizer, _ATTRIBUTE, self)

    def _own(self, group: dict[str, Any]) -> None:
        """Put masters in place of the 16-bit parameters of a group, with the optimizer's state."""
        if not self.masters:
            return
        state = self.optimizer.state
        for index, parameter in enumerate(group["params"]):
            master = master_of(parameter)
            if master is None:
                continue
            group["params"][index] = master
            self._parameter_of[master] = parameter
            if parameter in state:
                state[master] = state.pop(parameter)

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Each tensor that backward gives a gradient, and what the optimizer holds of it."""
        for owned in master_params(self.optimizer):
            yield self._parameter_of.get(owned, owned), owned

    # --- In place of the optimizer's methods ------------------------------------------------------

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Step, unless gradients overflowed; masters are then rounded to their parameters."""
        closure = args[0] if args else kwargs.get("closure")
        if closure is not None and (self.dynamic or self.masters):
            raise RuntimeError(
                "expected optimizer.step() without a closure under amp: an overflow within it "
                "could not be undone; use opt_level 'O0', or loss_scale=1.0 without master weights"
            )
        if self.pending is not None:
            raise RuntimeError(
                "gradients are still scaled: expected a scale_loss with delay_unscale=False before "
                "optimizer.step()"
            )
        for check in self.checks:
            check.settle()
        self.checks.clear()
        if self.skip:
            self.skip = False
            return None
        for master, parameter in self._parameter_of.items():
            if parameter.grad is not None and master.grad is None:
                raise RuntimeError(
                    "master weights have no gradients, their parameters have: expected "
                    "scaled_loss.backward() within amp.scale_loss before optimizer.step()"
                )
            catch_up(master, parameter)
        result = self._step(*args, **kwargs)
        for master, parameter in self._parameter_of.items():
            write_back(master, parameter)
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of masters and parameters, and what was known of them."""
        self._zero_grad(set_to_none)
        for parameter in self._parameter_of.values():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.detach_().zero_()
        self.skip = False
        self.pending = None
        self.checks.clear()
        self._earlier.clear()

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Take over more parameters; those in 16 bits get masters."""
        self._add(group)
        self._own(self.optimizer.param_groups[-1])

    # --- Around a backward pass -------------------------------------------------------------------

    def begin(self, scaler: LossScaler) -> None:
        """Put gradients of earlier losses aside: those to come are scaled."""
        if self.pending is not None:
            if self.pending == (scaler, scaler.scale):
                return  # scaled alike: they add up
            earlier, scale = self.pending
            Check(earlier, [self], self.unscale(earlier, scale, set())).settle()
        for parameter, owned in self._pairs():
            if parameter.grad is None:
                owned.grad = None  # cleared through the model
            elif owned.grad is not None:
                self._earlier[owned] = owned.grad
            parameter.grad = None
            owned.grad = None

    @torch.no_grad()
    def unscale(self, scaler: LossScaler, scale: float, seen: set[Tensor]) -> list[Tensor]:
        """Divide new gradients by `scale`, and add those of earlier losses.

        Args:
            scaler: of the loss.
            scale: what the loss was multiplied by.
            seen: what other optimizers unscaled already; it grows by this one's.
        Returns:
            The largest value of each new gradient, infinite or NaN upon overflow; for a fixed
            scale, nothing.
        """
        largest = []
        for parameter, owned in self._pairs():
            earlier = self._earlier.pop(owned, None)
            if owned in seen:
                continue
            seen.add(owned)
            new = parameter.grad
            if new is not None:
                gradient = new.to(owned.dtype)  # the same tensor where there is no master
                if scale != 1.0:
                    gradient.mul_(1 / scale)
                if scaler.dynamic:
                    largest.append(_largest(gradient))
                earlier = gradient if earlier is None else gradient.add_(earlier)
            owned.grad = earlier
            if owned is not parameter:
                parameter.grad = None if earlier is None else earlier.to(parameter.dtype)
        self.pending = None
        return largest

    def abandon(self) -> None:
        """Give back the gradients of earlier losses: the backward pass did not end."""
        for parameter, owned in self._pairs():
            earlier = self._earlier.pop(owned, None)
            owned.grad = earlier
            if owned is not parameter:
                parameter.grad = None if earlier is None else earlier.to(parameter.dtype)
        self.pending = None


class Check:
    """Whether a loss's gradients overflowed, asked once, now or when an optimizer steps.

    Args:
        scaler: of the loss.
        steppers: those whose steps are skipped upon overflow.
        largest: as `Stepper.unscale` returns it.
    """

    def __init__(
        self, scaler: LossScaler, steppers: Iterable[Stepper], largest: list[Tensor]
    ) -> None:
        self._scaler = scaler
        self._steppers = list(steppers)
        self._largest = largest
        self._settled = False

    def settle(self) -> bool:
        """Tell the scaler, and skip steps upon overflow; returns whether there was one.

        A fixed scale does not ask.
        """
        if self._settled or not self._scaler.dynamic:
            return False
        self._settled = True
        overflow = not _finite(self._largest)
        self._scaler.update(overflow=overflow)
        if overflow:
            for stepper in self._steppers:
                stepper.skip = True
        return overflow


def _largest(gradient: Tensor) -> Tensor:
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    if values.numel() == 0:
        return values.new_zeros(())
    return torch.linalg.vector_norm(values.detach(), float("inf"))  # type: ignore[no-any-return]


def _finite(scalars: list[Tensor]) -> bool:
    """Whether all are finite; each device is asked once."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for scalar in scalars:
        by_device.setdefault(scalar.device, []).append(scalar.float())
    return all(bool(torch.stack(group).isfinite().all()) for group in by_device.values())


def _replace_method(
    optimizer: Optimizer, name: str, replacement: Callable[..., Any]
) -> Callable[..., Any]:
    """Replace a method of one object; returns the one before."""
    before: Callable[..., Any] = getattr(optimizer, name)

    @wraps(before)
    def method(_: Optimizer, *args: Any, **kwargs: Any) -> Any:
        return replacement(*args, **kwargs)

    # A method, not a function: schedulers of torch.optim take it apart to count steps.
    setattr(optimizer, name, MethodType(method, optimizer))
    return before
