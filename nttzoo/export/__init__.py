"""Networks for other runtimes: ONNX."""

from nttzoo.export.onnx import (
    OPSETS,
    TOLERANCE,
    Exported,
    Layout,
    difference,
    export_onnx,
    graph_of,
    input_shape_of,
    onnx_packages,
    outputs_of,
    parity,
    plain_copy,
    test_inputs,
    to_proto,
)

__all__ = [
    "OPSETS",
    "TOLERANCE",
    "Exported",
    "Layout",
    "difference",
    "export_onnx",
    "input_shape_of",
    "onnx_packages",
    "outputs_of",
    "parity",
    "plain_copy",
    "test_inputs",
    "graph_of",
    "to_proto",
]
