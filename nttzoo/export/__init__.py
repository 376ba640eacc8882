"""Networks for other runtimes: ONNX."""

from nttzoo.export.conversion import Layout, graph_of, plain_copy
from nttzoo.export.hub import export_hub
from nttzoo.export.onnx import OPSETS, Exported, export_onnx, input_shape_of, to_proto
from nttzoo.export.packages import onnx_packages
from nttzoo.export.parity import TOLERANCE, difference, outputs_of, parity, parity_batches

__all__ = [
    "OPSETS",
    "TOLERANCE",
    "Exported",
    "Layout",
    "difference",
    "export_hub",
    "export_onnx",
    "graph_of",
    "input_shape_of",
    "onnx_packages",
    "outputs_of",
    "parity",
    "parity_batches",
    "plain_copy",
    "to_proto",
]
