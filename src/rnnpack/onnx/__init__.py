"""Export to ONNX: recurrent layers as ONNX's own operators, or as a Scan where it has none.

`torch.onnx.export(model, ..., dynamo=True)` needs nothing of this package: while it runs, layers
trace themselves by `trace_stack`. `lower` does the same to a program that was exported before.
"""

from rnnpack.onnx.program import is_exporting, lower
from rnnpack.onnx.trace import trace_stack

__all__ = ["is_exporting", "lower", "trace_stack"]
