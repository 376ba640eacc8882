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

DOMAINS = ("", "ai.onnx", "ai.onnx.ml")


def read(model: onnx.ModelProto, *, training: bool = False) -> Program:
    """The program of a graph with one floating-point input and output, whose first axis is the batch.

    With `training`, dropout is kept; otherwise it is the identity.
    """
    model = prepared(model)
    constants = graph.constants(model.graph)
    bounds = {name for node in model.graph.node if node.op_type == "Clip" for name in node.input}
    for name, value in constants.items():
        if value.dtype.kind == "f" and not np.isfinite(value).all() and name not in bounds:
            raise ExportError(f"constant {name!r} has values that are not finite.")
    (source,), (target,) = model.graph.input, model.graph.output
    patterns.recognize(model)
    opset = next((used.version for used in model.opset_import if used.domain in ("", "ai.onnx")), 0)
    sizes = [dim.dim_value for dim in source.type.tensor_type.shape.dim]
    reader = Reader(constants, opset, sizes[0], training)
    reader.shapes[source.name], reader.batches[source.name] = tuple(sizes[1:]), Batch()
    for node in model.graph.node:
        if node.input and all(name in constants for name in node.input if name):
            reader.fold(node)
        elif node.op_type not in READERS:
            known = ", ".join(sorted(READERS.keys() - patterns.MADE))
            raise ExportError(f"{called(node)} is not supported. Supported: {known}.")
        else:
            _read_node(reader, node)
    if target.name not in reader.shapes:
        raise ExportError(f"output {target.name!r} does not depend on the input.")
    if reader.batches[target.name].axis:
        raise ExportError(f"the first axis of output {target.name!r} is not the batch.")
    return Program(reader.ops, source.name, target.name, reader.shapes)


def _read_node(reader: Reader, node: onnx.NodeProto) -> None:
    """Reads a node; raises for attribute values that ONNX accepts although they have no meaning."""
    try:
        READERS[node.op_type](reader, node, graph.attributes(node))
    except ExportError:
        raise
    except (KeyError, IndexError, ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ExportError(f"{called(node)} cannot be read: {type(error).__name__}: {error}") from error


def prepared(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with dense initializers, one float32 input [batch, ...] of fixed size, and one output.

    Among several outputs, the float32 one is used: a classifier's probabilities, not its labels.
    """
    _check_operators(model)
    model = _checked(model)
    nodes, constants = model.graph.node, {constant.name for constant in model.graph.initializer}
    for node in nodes:
        if node.domain not in DOMAINS:
            raise ExportError(f"{called(node)}, of domain {node.domain!r}, is not supported.")
    inputs = [value for value in model.graph.input if value.name not in constants]
    outputs = _numbers(model) if len(model.graph.output) > 1 else list(model.graph.output)
    if len(inputs) != 1 or len(outputs) != 1:
        raise ExportError(
            f"the graph has {len(inputs)} inputs and {len(outputs)} outputs of float32; one each is needed."
        )
    (source,), (target,) = inputs, outputs
    graph.replace(model.graph.input, [source])
    if len(model.graph.output) > 1:
        graph.replace(model.graph.output, [target])
        graph.drop_unused(model.graph)
    if source.type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
        raise ExportError(f"input {source.name!r} is not float32, the only type that is compiled.")
    sizes = source.type.tensor_type.shape.dim
    if not sizes:
        raise ExportError(f"input {source.name!r} has no shape, or no axes: [batch, ...] is needed.")
    for axis, size in enumerate(sizes):
        if axis and not size.dim_value:
            raise ExportError(f"axis {axis} of input {source.name!r} has no fixed size; only the batch may vary.")
    return model


def _check_operators(model: onnx.ModelProto) -> None:
    """Raises if a name may refer to something other than ONNX's own operator."""
    versions = {used.version for used in model.opset_import if used.domain in ("", "ai.onnx")}
    newest = onnx.defs.onnx_opset_version()
    if len(versions) > 1 or not all(0 < version <= newest for version in versions):
        raise ExportError(f"the graph must use one opset from 1 to  {newest}; it is of {sorted(versions)}.")
    for function in model.functions:
        if function.domain in DOMAINS:
            raise ExportError(f"the file has an operator {function.name!r} of its own in place of ONNX's.")
    known = {value.name for value in (*model.graph.input, *model.graph.initializer)}
    for name in (name for node in model.graph.node for name in node.output if name):
        if name in known:
            raise ExportError(f"the value {name!r} is given twice.")
        known.add(name)


def _numbers(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The float32 outputs; of a map from labels to probabilities, the probabilities."""
    float32 = onnx.TensorProto.FLOAT
    found = [value for value in model.graph.output if value.type.tensor_type.elem_type == float32]
    names = {value.name for value in model.graph.output}
    for node in model.graph.node:
        if node.op_type == "ZipMap" and names.intersection(node.output):
            found.append(onnx.helper.make_tensor_value_info(node.input[0], float32, None))
    return found


def _checked(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with dense initializers whose types and shapes ONNX's checker accepts."""
    dense = onnx.ModelProto()
    dense.CopyFrom(model)
    graph.use_dense_initializers(dense.graph)
    graph.check_shapes(dense, strict=True)
    return dense
