"""What an opt level means, and what may be overridden in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Options:
    """An opt level with its overrides.

    Attributes:
        opt_level: "O0" to "O3".
        cast_model_type: what weights are cast to (O1: what autocast computes in); None: the 16-bit
            type of autocast on the model's device.
        patch_torch_functions: O1's casts: autocast around each forward, losses in float32,
            registered functions.
        keep_batchnorm_fp32: whether batch norms are left out of the cast; None: nothing is cast.
        master_weights: whether optimizers hold float32 copies of 16-bit weights; None: no weight
            is in 16 bits.
        loss_scale: the scale of every loss; None: dynamic.
        cast_model_outputs: what outputs are cast to; None: float32 where inputs are cast, as they
            come at O1.
    """

    opt_level: str
    cast_model_type: torch.dtype | None
    patch_torch_functions: bool
    keep_batchnorm_fp32: bool | None
    master_weights: bool | None
    loss_scale: float | None
    cast_model_outputs: torch.dtype | None = None

    def dtype_on(self, device_type: str) -> torch.dtype:
        """The type that models on a device are cast to, or computed in at O1."""
        return self.cast_model_type or torch.get_autocast_dtype(device_type)


_LEVELS = {
    level.opt_level: level
    for level in (
        Options("O0", torch.float32, False, None, False, 1.0),
        Options("O1", None, True, None, None, None),
        Options("O2", None, False, True, True, None),
        Options("O3", None, False, False, False, 1.0),
    )
}


def resolve(
    opt_level: str,
    *,
    cast_model_type: torch.dtype | None,
    patch_torch_functions: bool | None,
    keep_batchnorm_fp32: bool | str | None,
    master_weights: bool | None,
    loss_scale: float | str | None,
    cast_model_outputs: torch.dtype | None,
) -> Options:
    """An opt level with overrides, None leaving what the level says.

    Raises:
        RuntimeError: no such level, or an override that contradicts it.
        TypeError: an override of the wrong kind.
        ValueError: a value that an override cannot have.
    """
    if opt_level not in _LEVELS:
        raise RuntimeError(
            f"expected opt_level {', '.join(map(repr, _LEVELS))} (the letter O, then a digit), "
            f"got {opt_level!r}"
        )
    keep_batchnorm_fp32 = _flag("keep_batchnorm_fp32", keep_batchnorm_fp32)
    for name, flag in (
        ("patch_torch_functions", patch_torch_functions),
        ("master_weights", master_weights),
    ):
        if flag is not None and not isinstance(flag, bool):
            raise TypeError(f"{name}: expected True, False or None, got {flag!r}")
    for name, dtype in (
        ("cast_model_type", cast_model_type),
        ("cast_model_outputs", cast_model_outputs),
    ):
        if dtype is not None and dtype not in DTYPES:
            raise ValueError(f"{name}: expected one of {DTYPES} or None, got {dtype!r}")
    if opt_level == "O1":
        _check_o1(cast_model_type, keep_batchnorm_fp32, master_weights)
    elif patch_torch_functions:
        raise RuntimeError(
            f"patch_torch_functions=True belongs to opt_level 'O1', got {opt_level!r}: choose 'O1'"
        )
    overrides = {
        "cast_model_type": cast_model_type,
        "patch_torch_functions": patch_torch_functions,
        "keep_batchnorm_fp32": keep_batchnorm_fp32,
        "master_weights": master_weights,
        "cast_model_outputs": cast_model_outputs,
    }
    options = replace(
        _LEVELS[opt_level],
        **{name: value for name, value in overrides.items() if value is not None},  # type: ignore[arg-type]  # checked above
    )
    return options if loss_scale is None else replace(options, loss_scale=_scale(loss_scale))


def _check_o1(
    cast_model_type: torch.dtype | None,
    keep_batchnorm_fp32: bool | None,
    master_weights: bool | None,
) -> None:
    """O1 leaves weights in float32: what is said of weights in 16 bits contradicts it."""
    if cast_model_type is torch.float32:
        raise RuntimeError(
            "O1 computes in 16 bits: expected cast_model_type torch.float16, torch.bfloat16 or "
            "None, got torch.float32; for float32 choose opt_level 'O0'"
        )
    for name, value in (
        ("keep_batchnorm_fp32", keep_batchnorm_fp32),
        ("master_weights", master_weights),
    ):
        if value is not None:
            raise RuntimeError(
                f"O1 keeps every weight in float32: expected {name}=None, got {value}; leave it "
                "out, or choose opt_level 'O2'"
            )


def _flag(name: str, value: bool | str | None) -> bool | None:
    """A flag as given by a program or, "True" or "False", by a command line."""
    if value is None or isinstance(value, bool):
        return value
    if value in ("True", "False"):
        return value == "True"
    raise TypeError(f"{name}: expected True, False, 'True', 'False' or None, got {value!r}")


def _scale(value: float | str) -> float | None:
    """A loss scale as given by a program or a command line; None: dynamic."""
    if value == "dynamic":
        return None
    try:
        scale = float(value)
    except (TypeError, ValueError):
        scale = 0.0
    if not 0 < scale < float("inf"):
        raise ValueError(f"loss_scale: expected 'dynamic' or a positive number, got {value!r}")
    return scale
