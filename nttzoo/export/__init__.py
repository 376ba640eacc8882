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
    parity_batches,
    plain_copy,
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
    "parity_batches",
    "graph_of",
    "to_proto",
]
