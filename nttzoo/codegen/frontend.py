"""From an ONNX graph to a `Program`, or an error that names what cannot be read."""

from __future__ import annotations

import numpy as np
import onnx

from nttzoo.codegen import patterns
from nttzoo.codegen.ir import Program
from nttzoo.codegen.operators import READERS
from nttzoo.codegen.reader import Batch, Reader, called
from nttzoo.errors import ExportError
from nttzoo.export import graph


def read(model: onnx.ModelProto, *, training: bool = False) -> Program:
    """The program of a graph with one floating-point input and output, whose first axis is the batch.

    For training, dropout stays; else it is nothing.
    """
    model = _checked(model)
    constants = graph.constants(model.graph)
    inputs = [value for value in model.graph.input if value.name not in constants]
    if len(inputs) != 1 or len(model.graph.output) != 1:
        raise ExportError(
            f"the graph has {len(inputs)} inputs and {len(model.graph.output)} outputs; one each is needed."
        )
    bounds = {name for node in model.graph.node if node.op_type == "Clip" for name in node.input}
    for name, value in constants.items():
        if value.dtype.kind == "f" and not np.isfinite(value).all() and name not in bounds:
            raise ExportError(f"constant {name!r} has values that are not finite.")
    source = inputs[0]
    if not source.type.tensor_type.HasField("shape") or not source.type.tensor_type.shape.dim:
        raise ExportError(f"input {source.name!r} has no shape, or no axes: [batch, ...] is needed.")
    if source.type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
        raise ExportError(f"input {source.name!r} is not float32, the only type that is compiled.")
    sizes = source.type.tensor_type.shape.dim
    for axis, size in enumerate(sizes):
        if axis and not size.dim_value:
            raise ExportError(f"axis {axis} of input {source.name!r} has no fixed size; only the batch may vary.")
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx"):
            raise ExportError(f"{called(node)}, of domain {node.domain!r}, is not supported.")
    patterns.recognize(model)
    opset = next((used.version for used in model.opset_import if used.domain in ("", "ai.onnx")), 0)
    reader = Reader(constants, opset, sizes[0].dim_value, training)
    reader.shapes[source.name] = tuple(size.dim_value for size in sizes[1:])
    reader.batches[source.name] = Batch()
    for node in model.graph.node:
        if node.input and all(name in constants for name in node.input if name):
            reader.fold(node)
        elif node.op_type not in READERS:
            known = ", ".join(sorted(READERS.keys() - patterns.MADE))
            raise ExportError(f"{called(node)} is not supported. Supported: {known}.")
        else:
            READERS[node.op_type](reader, node, graph.attributes(node))
    target = model.graph.output[0].name
    if target not in reader.shapes:
        raise ExportError(f"output {target!r} does not depend on the input.")
    if reader.batches[target].axis:
        raise ExportError(f"the first axis of output {target!r} is not the batch.")
    return Program(reader.ops, source.name, target, reader.shapes)


def _checked(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with dense initializers, at whose types and shapes ONNX itself has looked."""
    dense = onnx.ModelProto()
    dense.CopyFrom(model)
    graph.use_dense_initializers(dense.graph)
    try:
        onnx.shape_inference.infer_shapes(dense, check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        raise ExportError(f"the graph is not valid ONNX: {error}") from error
    return dense
