"""What tracers of models see of a layer: `torch.fx` one node, `torch.jit.script` a refusal."""

from __future__ import annotations

from typing import Any, TypeGuard

from torch import nn
from torch.fx import Proxy


def is_symbolic(input: Any) -> TypeGuard[Proxy]:
    """Whether `torch.fx.symbolic_trace` makes this call."""
    return isinstance(input, Proxy)


def call_later(module: nn.Module, input: Proxy, *args: Any, **kwargs: Any) -> Any:
    """The node that calls the module when the graph runs, as `torch.nn`'s layers are one node."""
    tracer = input.tracer
    path = tracer.path_of_module(module)  # type: ignore[attr-defined]  # of all that trace modules
    return tracer.create_proxy("call_module", path, (input, *args), kwargs)


def not_scriptable(module: nn.Module) -> RuntimeError:
    """What to say to `torch.jit.script`, which compiles Python code that it knows every line of."""
    return RuntimeError(
        f"torch.jit.script cannot compile rnnpack's {type(module).__name__}: use torch.jit.trace, "
        "torch.export or torch.compile, which keep the native engine, or "
        "torch.jit.script(rnnpack.revert(model).model), which runs on torch's kernels"
    )
