"""JAX: a `lax.scan` over steps with the input product taken out of it, compiled by `jit`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from rnnpack.bench.contestant import Contestant, Values, require
from rnnpack.bench.problem import Problem


def jax_contestant(problem: Problem, threads: int) -> Contestant:
    """A jitted function of the parameters and the input, compiled at its first call."""
    # Read once, when JAX starts its CPU client; it has no setting of its own for the size of the
    # pool.
    os.environ["NPROC"] = str(threads)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    jax = require("jax")
    parameters = {
        n: jax.numpy.asarray(p.detach().numpy()) for n, p in problem.layer.named_parameters()
    }
    input = jax.numpy.asarray(problem.input.detach().numpy())
    states = [jax.numpy.asarray(state.numpy()) for state in problem.states]
    forward = _forward(jax, problem)
    if problem.case.mode == "train":
        grad = jax.numpy.asarray(problem.grad.numpy())
        return _training(jax, lambda p, x: forward(p, x, states)[0], parameters, input, grad)
    compiled = jax.jit(forward)

    def infer() -> Any:
        return jax.block_until_ready(compiled(parameters, input, states))

    def step() -> Any:
        nonlocal states
        result = infer()
        states = result[1]
        return result

    return Contestant(step if problem.case.mode == "stream" else infer, _values)


def _training(
    jax: Any, output: Callable[..., Any], parameters: Any, input: Any, grad: Any
) -> Contestant:
    def train(parameters: Any, input: Any) -> Any:
        result, pullback = jax.vjp(output, parameters, input)
        return result, *pullback(grad)

    compiled = jax.jit(train)

    def values(result: Any) -> Values:
        output, grads, input_grad = result
        named = {f"grad.{name}": _tensor(value) for name, value in grads.items()}
        return {"output": _tensor(output), "grad.input": _tensor(input_grad)} | named

    return Contestant(lambda: jax.block_until_ready(compiled(parameters, input)), values)


def _forward(jax: Any, problem: Problem) -> Callable[..., Any]:
    """`(parameters, input, states) -> (output, states)`, as torch.nn; no states means zeros."""
    case = problem.case
    cell = _cell(jax, case.cell.removesuffix("_cell"))
    numpy = jax.numpy

    def forward(parameters: Any, input: Any, states: Any) -> Any:
        value, finals = input, []
        for k in range(case.layers):
            outputs = []
            for direction in range(case.directions):
                layer = "" if problem.is_cell else f"_l{k}"
                suffix = layer + ("_reverse" if direction else "")
                weights = {
                    n.removesuffix(suffix): p for n, p in parameters.items() if n.endswith(suffix)
                }
                row = k * case.directions + direction
                zeros = (numpy.zeros((case.batch, size)) for size in case.state_sizes)
                start = tuple(s[row] for s in states) if states else tuple(zeros)
                input_part, step = cell(weights)
                final, output = jax.lax.scan(step, start, input_part(value), reverse=direction == 1)
                outputs.append(output)
                finals.append(final)
            value = numpy.concatenate(outputs, -1)
        return value, [numpy.stack(state) for state in zip(*finals, strict=True)]

    return forward


def _cell(jax: Any, name: str) -> Callable[[dict[str, Any]], tuple[Any, Any]]:
    """From the weights of one direction: the input product and `(state, gates) -> (state, h)`."""
    split, sigmoid, tanh = jax.numpy.split, jax.nn.sigmoid, jax.numpy.tanh

    def lstm(w: dict[str, Any]) -> tuple[Any, Any]:
        def step(state: Any, gates: Any) -> Any:
            h, c = state
            i, f, g, o = split(gates + h @ w["weight_hh"].T, 4, -1)
            c = sigmoid(f) * c + sigmoid(i) * tanh(g)
            h = sigmoid(o) * tanh(c)
            h = h @ w["weight_hr"].T if "weight_hr" in w else h
            return (h, c), h

        return lambda x: x @ w["weight_ih"].T + (w["bias_ih"] + w["bias_hh"]), step

    def gru(w: dict[str, Any]) -> tuple[Any, Any]:
        def step(state: Any, gates: Any) -> Any:
            (h,) = state
            r, z, n = split(gates, 3, -1)
            hr, hz, hn = split(h @ w["weight_hh"].T + w["bias_hh"], 3, -1)
            z = sigmoid(z + hz)
            h = (1 - z) * tanh(n + sigmoid(r + hr) * hn) + z * h
            return (h,), h

        return lambda x: x @ w["weight_ih"].T + w["bias_ih"], step

    def rnn(w: dict[str, Any]) -> tuple[Any, Any]:
        activation = jax.nn.relu if name == "rnn_relu" else tanh

        def step(state: Any, gates: Any) -> Any:
            h = activation(gates + state[0] @ w["weight_hh"].T)
            return (h,), h

        return lambda x: x @ w["weight_ih"].T + (w["bias_ih"] + w["bias_hh"]), step

    return {"lstm": lstm, "gru": gru}.get(name, rnn)


def _values(result: Any) -> Values:
    output, states = result
    names = ("output", "h_n", "c_n")[: 1 + len(states)]
    return {name: _tensor(value) for name, value in zip(names, [output, *states], strict=True)}


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(require("numpy").array(array))
