"""Whether an export to ONNX runs, and programs that were exported before it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule

from rnnpack.onnx.trace import trace_layer, trace_stack
from rnnpack.ops import TrainInputs
from rnnpack.reference import LayerWeights


def is_exporting() -> bool:
    """Whether `torch.onnx.export` runs."""
    onnx = sys.modules.get("torch.onnx")  # torch imports it at its first use
    return onnx is not None and onnx.is_in_onnx_export()


# As torch.compiler.assume_constant_result does, which first imports the compiler, a second's work.
is_exporting._dynamo_marked_constant = True  # type: ignore[attr-defined]


def lower(program: ExportedProgram) -> ExportedProgram:
    """Replace the ops of rnnpack in an exported program by operators of ONNX.

    `torch.onnx.export(rnnpack.onnx.lower(program))` gives the model that `torch.onnx.export` gives
    for the module; a module needs no `lower`. The result can be exported to ONNX and nothing else:
    run in torch, its recurrent layers give zeros.

    Raises:
        RuntimeError: a layer is packed, or its input is a packed sequence.
    """
    graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, GraphModule)]
    # Those within, too: an autocast region has a graph of its own.
    targets = {n.target for graph in graphs for n in graph.nodes if n.op == "call_function"}
    rules = {target: _RULES[str(target)] for target in targets if str(target) in _RULES}
    return program.run_decompositions(rules)  # type: ignore[no-any-return]


def _train(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    a = TrainInputs(*arguments)
    weights = LayerWeights(a.weight_ih, a.weight_hh, a.bias_ih, a.bias_hh, a.weight_hr)
    states = tuple(state.unsqueeze(0) for state in (a.h_0, a.c_0) if state is not None)
    output, (h_n, *c_n) = trace_layer(
        a.cell,
        a.input,
        states or None,
        [weights],
        reverse=a.reverse,
        lengths=a.lengths,
        batch_sizes=a.batch_sizes,
    )
    nothing = a.input.new_empty((0,))
    return output, h_n.squeeze(0), c_n[0].squeeze(0) if c_n else nothing, nothing


_RULES: dict[str, Callable[..., Any]] = {
    "rnnpack.infer.default": trace_stack,
    "rnnpack.train.default": _train,
}
