"""ONNX Runtime and OpenVINO, given the same ONNX model, each called in its own fastest way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rnnpack.bench.contestant import Contestant, Values, require
from rnnpack.bench.onnx_model import build_model, state_names
from rnnpack.bench.problem import Problem


def onnxruntime_session(model: bytes, threads: int) -> Any:
    """A session on the CPU provider with `threads` threads inside an operator."""
    runtime = require("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def onnxruntime_contestant(problem: Problem, threads: int) -> Contestant:
    """The model of the problem, in a session of ONNX Runtime."""
    session = onnxruntime_session(build_model(problem), threads)
    feed = _feed(problem)
    carried = [name for name, _ in state_names(problem)]

    def infer() -> Any:
        return session.run(None, feed)

    def step() -> Any:
        results = session.run(None, feed)
        feed.update(zip(carried, results[1:], strict=True))
        return results

    call = step if problem.case.mode == "stream" else infer
    return Contestant(call, lambda results: _values(results, problem))


def openvino_contestant(problem: Problem, threads: int) -> Contestant:
    """One request of a model compiled for latency, its inputs and outputs in its own memory."""
    runtime = require("openvino")
    core = runtime.Core()
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",  # else bfloat16 on a CPU that has it
    }
    model = core.read_model(model=build_model(problem), weights=b"")
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    for name, array in _feed(problem).items():
        request.get_tensor(name).data[:] = array
    names = state_names(problem)
    results = [request.get_tensor(name).data for name in ("output", *(name for _, name in names))]
    carried = [request.get_tensor(name).data for name, _ in names]

    def infer() -> Any:
        request.infer(share_outputs=True)
        return results

    def step() -> Any:
        request.infer(share_outputs=True)
        for array, result in zip(carried, results[1:], strict=True):
            array[:] = result
        return results

    call = step if problem.case.mode == "stream" else infer
    return Contestant(call, lambda arrays: _values(arrays, problem))


def _feed(problem: Problem) -> dict[str, Any]:
    layers = problem.case.layers
    states = [layer for state in problem.states for layer in state.chunk(layers)]
    names = [name for name, _ in state_names(problem)]
    return {"input": problem.input.numpy()} | {
        name: state.clone().numpy() for name, state in zip(names, states, strict=True)
    }


def _values(results: Sequence[Any], problem: Problem) -> Values:
    output, *states = (torch.from_numpy(result.copy()) for result in results)
    layers = problem.case.layers
    values = {"output": output}
    for k, name in enumerate(("h_n", "c_n")[: len(problem.states)]):
        values[name] = torch.cat(states[k * layers : (k + 1) * layers])
    return values
