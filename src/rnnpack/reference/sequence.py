"""One layer and direction over a batch of sequences: the time loop that every cell shares."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from rnnpack.reference.cells import CELLS, LayerWeights, State


def layer(
    cell: str,
    input: Tensor,
    hx: State,
    weights: LayerWeights,
    *,
    reverse: bool = False,
    lengths: Tensor | None = None,
) -> tuple[Tensor, State]:
    """Run one layer in one direction with plain torch operations.

    hx(t) = cell(weight_ih input[t] + bias_ih, hx(t-1)) and output[t] = h(t); with `reverse`, t runs
    from the last step to the first. A row of length n takes part in steps 0 to n-1 only: its output
    is zero past them, its final state is that of its last valid step, and `reverse` starts at step
    n-1. What `input` holds past a row's end, NaN included, reaches neither results nor gradients.

    Nothing is written in place, so every autograd feature and every function transform works that
    works on the operations used here.

    Args:
        cell: "lstm", "gru", "rnn_tanh" or "rnn_relu".
        input: [L, N, H_in].
        hx: initial state: (h [N, H_out], c [N, hidden]) for "lstm", (h [N, H_out],) for the others.
        weights: one `LayerWeights`, on the device and in the dtype of `input`.
        reverse: run from the last step to the first.
        lengths: int64 [N] in any order, each from 0 to L; None if every row has L steps.
    Returns:
        `(output [L, N, H_out], hx)`, the final state in the form of the initial one. With L = 0 an
        empty output and the initial state.
    Raises:
        KeyError: `cell` is none of the four names.
    """
    step = CELLS[cell]
    seq_len = input.size(0)
    live = None
    if lengths is not None:
        steps = torch.arange(seq_len, device=input.device)
        live = (steps.unsqueeze(1) < lengths.to(input.device)).unsqueeze(-1)  # [L, N, 1]
        # Cleaned before use: a NaN that is only masked later comes back as 0 * NaN in backward.
        input = torch.where(live, input, 0)
    gates_ih = linear(input, weights.weight_ih, weights.bias_ih)
    if seq_len == 0:
        # [0, N, 1] + [N, H_out]: empty, yet part of the graph as an output of any other length is.
        return gates_ih[..., :1] + hx[0], hx
    # Unbound once: an index per step would cost a full-size gradient buffer per step in backward.
    steps_ih = gates_ih.unbind(0)
    outputs = []
    for t in reversed(range(seq_len)) if reverse else range(seq_len):
        stepped = step(steps_ih[t], hx, weights)
        output = stepped[0]
        if live is not None:
            output = torch.where(live[t], output, 0)
            stepped = tuple(
                torch.where(live[t], new, old) for new, old in zip(stepped, hx, strict=True)
            )
        hx = stepped
        outputs.append(output)
    if reverse:
        outputs.reverse()
    return torch.stack(outputs), hx
