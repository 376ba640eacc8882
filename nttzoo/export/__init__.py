"""Networks for other runtimes: ONNX."""

from nttzoo.export.conversion import Layout, graph_of, plain_copy
from nttzoo.export.hub import export_hub
from nttzoo.export.onnx import OPSETS, Exported, export_onnx, input_shape_of, to_proto
from nttzoo.export.packages import onnx_packages
from nttzoo.export.parity import Oracle, by_one_bit, difference, is_rounding, outputs_of, parity, parity_batches

__all__ = [
    "OPSETS",
    "Exported",
    "Layout",
    "Oracle",
    "by_one_bit",
    "difference",
    "export_hub",
    "export_onnx",
    "graph_of",
    "input_shape_of",
    "is_rounding",
    "onnx_packages",
    "outputs_of",
    "parity",
    "parity_batches",
    "plain_copy",
    "to_proto",
]
