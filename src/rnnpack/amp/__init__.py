"""Mixed precision behind the functions of `apex.amp`, on `torch.amp`; see docs/amp.md."""

from rnnpack.amp.flatten import flatten_weights
from rnnpack.amp.initialize import initialize
from rnnpack.amp.loss import scale_loss
from rnnpack.amp.registry import (
    float_function,
    half_function,
    promote_function,
    register_float_function,
    register_half_function,
    register_promote_function,
)
from rnnpack.amp.session import disable_casts, load_state_dict, reset, state_dict
from rnnpack.amp.stepping import master_params

__all__ = [
    "disable_casts",
    "flatten_weights",
    "float_function",
    "half_function",
    "initialize",
    "load_state_dict",
    "master_params",
    "promote_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
    "reset",
    "scale_loss",
    "state_dict",
]
