"""ONNX graphs cleaned up for readers: static shapes, names after the model's layers, sparse initializers.

All functions change a `ModelProto` in place. The only module besides `export` and `codegen` that uses ONNX's protos.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from nttzoo.errors import ExportError

# A sparse weight costs a float and a 64-bit place: below this density it is the smaller file.
SPARSE_BELOW = 1 / 3
MAX_BYTES = 2**30  # of constants with their zeros, and of any one tensor of a batch of one


def tidy(model: onnx.ModelProto, weights: dict[str, np.ndarray]) -> None:
    """Static reshapes in place of computed ones, and names that say which layer is meant."""
    # The bodies of branches and loops use values by name from outside: such a graph is left as it is.
    if any(attribute.type == onnx.AttributeProto.GRAPH for node in model.graph.node for attribute in node.attribute):
        return
    fix_reshapes(model)
    drop_unused(model.graph)
    rename(model.graph, weights)
    del model.graph.value_info[:]
    try:
        model.graph.CopyFrom(onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True).graph)
    except onnx.shape_inference.InferenceError as error:
        raise ExportError(f"the exported graph is not valid ONNX: {error}") from error


def fix_reshapes(model: onnx.ModelProto) -> None:
    """Shapes that are known but for one axis (the batch) become constants, with -1 for that axis."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    shapes = {value.name: value.type.tensor_type.shape.dim for value in [*inferred.value_info, *inferred.output]}
    for node in model.graph.node:
        if node.op_type != "Reshape" or node.output[0] not in shapes:
            continue
        sizes = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in shapes[node.output[0]]]
        if sizes.count(-1) <= 1:
            constant = numpy_helper.from_array(np.array(sizes, np.int64), f"{node.output[0]}_shape")
            model.graph.initializer.append(constant)
            node.input[1] = constant.name


def drop_unused(graph: onnx.GraphProto) -> None:
    """Removes nodes and constants that no output needs."""
    needed = {output.name for output in graph.output}
    kept = []
    for node in reversed(graph.node):  # nodes stand in the order of execution
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    replace(graph.node, reversed(kept))
    replace(graph.initializer, [constant for constant in graph.initializer if constant.name in needed])


def rename(graph: onnx.GraphProto, weights: dict[str, np.ndarray]) -> None:
    """Constants are called like the model's weights (conv1.kernel), nodes like their layer (conv1, conv1.relu)."""
    names = _weight_names(graph, weights)
    stored = {constant.name for constant in graph.initializer}
    ends = {value.name for value in [*graph.input, *graph.output]}
    values: dict[str, str] = {}
    counts: Counter[str] = Counter()
    layer = graph.input[0].name
    for node in graph.node:
        own = next((names[value].rpartition(".")[0] for value in node.input if value in names), None)
        layer = own or layer
        node.name = _unused(own or f"{layer}.{node.op_type.lower()}", counts)
        for value in node.input:
            if value in stored - names.keys():
                values[value] = values.get(value) or _unused(f"{node.name}.constant", counts)
        for index, value in enumerate(node.output):
            if value not in ends:
                values[value] = f"{node.name}.out{index or ''}"
    names = values | names
    for constant in graph.initializer:
        constant.name = names.get(constant.name, constant.name)
    for node in graph.node:
        replace(node.input, [names.get(value, value) for value in node.input])
        replace(node.output, [names.get(value, value) for value in node.output])


def _weight_names(graph: onnx.GraphProto, weights: dict[str, np.ndarray]) -> dict[str, str]:
    """{name of a constant: name of the weight that it is}, found by content."""
    names: dict[str, str] = {}
    left = dict(weights)
    for constant in graph.initializer:
        value = numpy_helper.to_array(constant)
        found = next((name for name, weight in left.items() if _same(value, weight)), None)
        if found:
            names[constant.name] = found
            del left[found]
    return names


def _same(value: np.ndarray, weight: np.ndarray) -> bool:
    """Whether a constant is a weight; kernels of convolutions come with their axes in ONNX's order."""
    if value.ndim == weight.ndim > 2:
        weight = np.moveaxis(weight, (-1, -2), (0, 1))
    return value.shape == weight.shape and np.array_equal(value, weight)


def _unused(name: str, counts: Counter[str]) -> str:
    counts[name] += 1
    return name if counts[name] == 1 else f"{name}_{counts[name]}"


def use_sparse_initializers(graph: onnx.GraphProto) -> None:
    """Stores weights that are mostly zeros as places and values."""
    dense = []
    for constant in graph.initializer:
        value = numpy_helper.to_array(constant)
        places = np.flatnonzero(value)
        if value.dtype != np.float32 or not 0 < len(places) < SPARSE_BELOW * value.size:
            dense.append(constant)
            continue
        values = numpy_helper.from_array(value.ravel()[places], constant.name)
        indices = numpy_helper.from_array(places.astype(np.int64), f"{constant.name}.places")
        graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, list(value.shape)))
    replace(graph.initializer, dense)


def constants(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    """All initializers as dense arrays, whichever way they are stored.

    Raises:
      ExportError: if one is malformed, or all of them together would take more than `MAX_BYTES`.
    """
    found = {constant.name: array(constant) for constant in graph.initializer}
    sparse = [
        (tuple(one.dims), array(one.values), array(one.indices), one.values.name) for one in graph.sparse_initializer
    ]
    # A sparse constant may be large where its file is small: the zeros are not in it.
    total = sum(value.nbytes for value in found.values())
    total += sum(math.prod(map(abs, shape)) * values.dtype.itemsize for shape, values, _, _ in sparse)
    if total > MAX_BYTES:
        raise ExportError(f"the constants take more than {MAX_BYTES / 2**30:g} GiB with their zeros.")
    for shape, values, places, name in sparse:
        if not shape or min(shape) < 1 or values.ndim != 1 or places.dtype != np.int64:
            raise ExportError(f"sparse constant {name!r} of shape {list(shape)} is malformed.")
        each = places.reshape(-1, 1) if places.ndim == 1 else places
        sizes = (math.prod(shape),) if places.ndim == 1 else shape
        fits = each.shape == (len(values), len(sizes))
        if not fits or (each < 0).any() or (each >= np.array(sizes)).any():
            raise ExportError(f"sparse constant {name!r} has values at places outside its shape {list(shape)}.")
        dense = np.zeros(sizes, values.dtype)
        dense[tuple(each.T)] = values
        found[name] = dense.reshape(shape)
    return found


def check_shapes(model: onnx.ModelProto, *, strict: bool) -> None:
    """Has ONNX infer types and shapes, without computing anything: a few bytes may ask for gigabytes.

    Args:
      model: with dense initializers.
      strict: whether a graph about which ONNX cannot tell is refused.

    Raises:
      ExportError: if the graph is not valid, or a tensor would take more than `MAX_BYTES`.
    """
    try:
        inferred = onnx.shape_inference.infer_shapes(model, check_type=strict, strict_mode=strict, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError) as error:
        raise ExportError(f"the graph is not valid ONNX: {error}") from error
    for value in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
        sizes = [axis.dim_value for axis in value.type.tensor_type.shape.dim]
        if 4 * math.prod(max(size, 1) for size in sizes) > MAX_BYTES:
            raise ExportError(f"{value.name!r} has shape {sizes}: more than {MAX_BYTES / 2**30:g} GiB.")


def array(tensor: onnx.TensorProto) -> np.ndarray:
    """The value of a tensor, which must be in the model itself: the name of a file would be looked up from here.

    Raises:
      ExportError: if it is malformed, elsewhere, or not of numbers.
    """
    if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.data_type == onnx.TensorProto.STRING:
        raise ExportError(f"constant {tensor.name!r} is of text, or in another file.")
    try:
        return numpy_helper.to_array(tensor)
    except Exception as error:  # whatever a malformed tensor makes NumPy or ONNX raise
        raise ExportError(f"constant {tensor.name!r} is malformed: {error}.") from error


def use_dense_initializers(graph: onnx.GraphProto) -> None:
    """The inverse of `use_sparse_initializers`."""
    dense = constants(graph)
    stored = {constant.name for constant in graph.initializer}
    graph.initializer.extend(numpy_helper.from_array(dense[name], name) for name in dense.keys() - stored)
    del graph.sparse_initializer[:]


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """A node's attributes as Python values."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def add_metadata(model: onnx.ModelProto, about: dict[str, str]) -> None:
    """Adds readable entries to the file's metadata, in order."""
    for key, value in about.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value


def replace(field: Any, items: Any) -> None:
    """Gives a repeated field of a proto other content."""
    items = list(items)
    del field[:]
    field.extend(items)
