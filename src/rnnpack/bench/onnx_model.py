"""A problem as an ONNX model, with the same weights, for the runtimes that read ONNX."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rnnpack.bench.contestant import Absent, require
from rnnpack.bench.problem import Problem

# By gates of the cell: ONNX's operator, and where its gates lie in torch's order (LSTM i, o, f, c
# from i, f, g, o; GRU z, r, h from r, z, n).
_OPERATOR = {4: "LSTM", 3: "GRU", 1: "RNN"}
_GATE_ORDER = {4: (0, 3, 1, 2), 3: (1, 0, 2), 1: (0,)}
_OPSET = 17
_IR_VERSION = 9  # what readers of that opset understand


def state_names(problem: Problem) -> list[tuple[str, str]]:
    """Input and output name of every state that the case gives: `("h_0.<layer>", "h_n.<layer>")`.

    Each has shape `[directions, batch, features]`: one a layer, so that the model needs no split or
    concatenation.
    """
    letters = ("h", "c")[: len(problem.states)]
    return [(f"{s}_0.{k}", f"{s}_n.{k}") for s in letters for k in range(problem.case.layers)]


def build_model(problem: Problem) -> bytes:
    """The serialized model; `input` and the given states go in, `output` and those states come out.

    All sizes are fixed, which leaves a runtime every choice. Gates follow ONNX's order, and GRU
    resets after its product (`linear_before_reset`) as torch does.

    Raises:
        Absent: ONNX has no operator for the case, or the onnx package is missing.
    """
    case = problem.case
    if case.mode == "train":
        raise Absent("it runs ONNX models, which it cannot train")
    if case.proj_size:
        raise Absent("ONNX has no LSTM with projection")
    onnx = require("onnx")
    helper = onnx.helper

    def value(name: str, *shape: int) -> Any:
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

    state = (case.directions, case.batch, case.hidden_size)
    output = (case.seq_len, case.batch, case.directions * case.hidden_size)
    names = state_names(problem)
    graph = helper.make_graph(
        [node for layer in range(case.layers) for node in _nodes(helper, problem, layer)],
        case.name,
        [value("input", *problem.input.shape), *(value(name, *state) for name, _ in names)],
        [value("output", *output), *(value(name, *state) for _, name in names)],
        _constants(problem),
    )
    opset = [helper.make_opsetid("", _OPSET)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=_IR_VERSION)
    onnx.checker.check_model(model)
    serialized = model.SerializeToString()
    assert isinstance(serialized, bytes)
    return serialized


def _nodes(helper: Any, problem: Problem, layer: int) -> list[Any]:
    """The recurrent node of a layer, and what brings its output to `[seq_len, batch, features]`."""
    case = problem.case
    attributes: dict[str, Any] = {
        "hidden_size": case.hidden_size,
        "direction": "bidirectional" if case.bidirectional else "forward",
    }
    operator = _OPERATOR[case.gates]
    if operator == "GRU":
        attributes["linear_before_reset"] = 1
    if operator == "RNN":
        activation = "Relu" if "relu" in case.cell else "Tanh"
        attributes["activations"] = [activation] * case.directions
    states = [pair for pair in state_names(problem) if pair[0].endswith(f".{layer}")]
    inputs = [f"x.{layer}" if layer else "input", f"W.{layer}", f"R.{layer}", f"B.{layer}"]
    inputs += ["", *(name for name, _ in states)]  # the empty name: no sequence lengths
    split = f"y.{layer}"
    outputs = [split, *(name for _, name in states)]
    nodes = [helper.make_node(operator, inputs, outputs, **attributes)]
    merged = "output" if layer == case.layers - 1 else f"x.{layer + 1}"
    if case.bidirectional:
        nodes.append(helper.make_node("Transpose", [split], [f"t.{layer}"], perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", [f"t.{layer}", "merge"], [merged]))
    else:
        nodes.append(helper.make_node("Squeeze", [split, "merge"], [merged]))
    return nodes


def _constants(problem: Problem) -> list[Any]:
    """W, R and B of every layer, and what `_nodes` merges by: a shape, or the axis to drop."""
    case = problem.case
    merge = [case.seq_len, case.batch, -1] if case.bidirectional else [1]
    tensors = {"merge": torch.tensor(merge)}
    weights = {name: value.detach() for name, value in problem.layer.state_dict().items()}

    def gather(name: str, layer: int) -> Tensor:
        """One kind of weight of a layer, `[directions, gates * hidden, ...]` in ONNX's order."""
        suffix = "" if problem.is_cell else f"_l{layer}"
        suffixes = (suffix, suffix + "_reverse")[: case.directions]
        gates = [weights[name + suffix].chunk(case.gates) for suffix in suffixes]
        order = _GATE_ORDER[case.gates]
        return torch.stack([torch.cat([chunks[k] for k in order]) for chunks in gates])

    for layer in range(case.layers):
        tensors[f"W.{layer}"] = gather("weight_ih", layer)
        tensors[f"R.{layer}"] = gather("weight_hh", layer)
        biases = gather("bias_ih", layer), gather("bias_hh", layer)
        tensors[f"B.{layer}"] = torch.cat(biases, dim=1)
    from_array = require("onnx.numpy_helper").from_array
    return [from_array(tensor.numpy(), name) for name, tensor in tensors.items()]
