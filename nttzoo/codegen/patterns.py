"""Recognizes subgraphs that are one operation: exporters write GELU or a norm as a dozen nodes.

A subgraph is recognized by what it computes, not by how it is written: all nodes between two values are evaluated on
sample points, in float64, and compared with known operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper

from nttzoo.codegen.functions import Function, apply, erf
from nttzoo.export import graph

DOMAIN = "nttzoo"  # domain of the nodes that replace subgraphs
MADE = {"Function", "Normalize"}  # their operators
LARGEST = 24  # nodes of a subgraph
TOLERANCE = 2e-6

KNOWN: list[Function] = [("gelu",), ("gelu_tanh",), ("silu",), ("hard_swish",), ("softplus",), ("mish",)]

POINTWISE: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "Max": lambda *values: np.maximum.reduce(np.broadcast_arrays(*values)),
    "Min": lambda *values: np.minimum.reduce(np.broadcast_arrays(*values)),
    "Neg": np.negative,
    "Abs": np.abs,
    "Exp": np.exp,
    "Log": np.log,
    "Sqrt": np.sqrt,
    "Reciprocal": np.reciprocal,
    "Erf": erf,
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Relu": lambda x: np.maximum(x, 0),
    "Softplus": lambda x: np.logaddexp(x, 0),
    "Where": np.where,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
}


def recognize(model: onnx.ModelProto) -> None:
    """Replaces subgraphs of a valid graph, in place, by nodes `Function` (name, parameters) and `Normalize` (axes)."""
    search = _Search(model)
    for node in reversed(model.graph.node):
        if any(output in search.inside for output in node.output):
            continue
        for find in (search.function, search.norm, search.mean):
            made = find(node)
            if made:
                node.CopyFrom(made)
                break
    graph.drop_unused(model.graph)


class _Search:
    """A graph's constants, shapes and producers, and the values inside recognized subgraphs."""

    def __init__(self, model: onnx.ModelProto):
        self.constants = graph.constants(model.graph)
        self.makers: dict[str, onnx.NodeProto] = {}
        self.place: dict[str, int] = {}
        self.inside: set[str] = set()
        for index, node in enumerate(model.graph.node):
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self.constants[node.output[0]] = onnx.numpy_helper.to_array(node.attribute[0].t)
                continue
            if (
                node.op_type == "Expand"
                and (value := self.constants.get(node.input[0])) is not None
                and value.size == 1
            ):
                self.constants[node.output[0]] = value.reshape(())  # one number, whatever its shape
                continue
            for output in node.output:
                self.makers[output], self.place[output] = node, index
        inferred = onnx.shape_inference.infer_shapes(model).graph
        values = [*inferred.input, *inferred.value_info, *inferred.output]
        self.shapes = {value.name: value.type.tensor_type.shape.dim for value in values}

    def function(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """A replacement for the known elementwise function of one value that ends in this node, if any."""
        found = self.region(node, POINTWISE.keys())
        if found is None or not self.same_shape(found[0], node.output[0]):
            return None
        source, nodes = found
        constants = [
            float(self.constants[name].item()) for part in nodes for name in part.input if name in self.constants
        ]
        points = _sample_points(constants)
        with np.errstate(all="ignore"):
            values = self.evaluate(nodes, {source: points}, node.output[0])
            at_minus_one = float(self.evaluate(nodes, {source: -np.ones(1)}, node.output[0])[0])
        for known in (*KNOWN, ("leaky_relu", -at_minus_one), ("elu", at_minus_one / math.expm1(-1))):
            if _agree(values, apply([known], points), points):
                self.inside.update(part.output[0] for part in nodes)
                return _function_node(node, source, known)
        return None

    def norm(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """A replacement for the normalization, (x - mean) / deviation over some axes, that ends in this node, if
        any."""
        if node.op_type not in ("Div", "Mul"):
            return None
        found = self.region(node, POINTWISE.keys() | {"ReduceMean"})
        if found is None or not all(dim.dim_value for dim in list(self.shapes.get(found[0], []))[1:]):
            return None
        source, nodes = found
        means = {self.mean_axes(part) for part in nodes if part.op_type == "ReduceMean"}
        constants = [self.constants[name] for part in nodes for name in part.input if name in self.constants]
        shape = [2, *(dim.dim_value for dim in self.shapes[source][1:])]
        if len(means) != 1 or len(shape) < 2 or (axes := means.pop()) is None:
            return None
        axes = tuple(sorted(axis % len(shape) for axis in axes))
        for epsilon in (float(value.item()) for value in constants if 0 < value.item() < 1):
            right = True
            for size in (1.0, 1e-2):
                x = np.random.default_rng(0).normal(0.1, size, shape)
                expected = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)
                with np.errstate(all="ignore"):
                    got = self.evaluate(nodes, {source: x}, node.output[0])
                right &= got.shape == expected.shape and bool(np.abs(got - expected).max() < 1e-5)
            if right:
                self.inside.update(part.output[0] for part in nodes)
                return helper.make_node(
                    "Normalize", [source], list(node.output), node.name, domain=DOMAIN, axes=axes, epsilon=epsilon
                )
        return None

    def mean(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """A mean exported as a sum divided by the number of its terms."""
        total = self.makers.get(node.input[0]) if node.op_type == "Div" else None
        count = self.constants.get(node.input[1]) if node.op_type == "Div" else None
        if total is None or total.op_type != "ReduceSum" or count is None or count.size != 1 or count.ndim > 1:
            return None
        axes = graph.attributes(total).get("axes")
        if len(total.input) > 1 and total.input[1] in self.constants:
            axes = self.constants[total.input[1]].tolist()
        sizes = [dim.dim_value for dim in self.shapes.get(total.input[0], [])]
        if not axes or not sizes or count.item() != np.prod([sizes[axis] for axis in axes]):
            return None
        self.inside.add(total.output[0])
        options = graph.attributes(total)
        return helper.make_node("ReduceMean", list(total.input), list(node.output), node.name, **options)

    def region(self, node: onnx.NodeProto, allowed: Any) -> tuple[str, list[onnx.NodeProto]] | None:
        """(source, nodes in order) of the smallest subgraph that ends in a node, joins branches and has one source."""
        if len(node.output) != 1:
            return None
        frontier, joined = {node.output[0]}, False
        nodes: list[onnx.NodeProto] = []
        while frontier and len(nodes) < LARGEST:
            latest = max(frontier, key=lambda name: self.place.get(name, -1))
            maker = self.makers.get(latest)
            if maker is None or not self.is_pointwise(maker, allowed):
                return None
            nodes.append(maker)
            values = [name for name in maker.input if name and name not in self.constants]
            joined |= len(values) > 1
            frontier = frontier - {latest} | set(values)
            if joined and len(frontier) == 1:
                return frontier.pop(), nodes[::-1]
        return None

    def is_pointwise(self, node: onnx.NodeProto, allowed: Any) -> bool:
        """Whether a node may be part of a subgraph: its constants are single numbers."""
        if node.op_type not in allowed or node.domain not in ("", "ai.onnx"):
            return False
        if node.op_type == "ReduceMean":
            return self.mean_axes(node) is not None
        constants = [self.constants[name] for name in node.input if name in self.constants]
        return not node.attribute and all(value.size == 1 and value.ndim < 2 for value in constants)

    def same_shape(self, *names: str) -> bool:
        """Whether two values have the same shape, as far as ONNX's shape inference knows it."""
        sizes = [[dim.dim_value for dim in self.shapes[name]] for name in names if name in self.shapes]
        return len(sizes) == len(names) and all(other == sizes[0] for other in sizes)

    def mean_axes(self, node: onnx.NodeProto) -> tuple[int, ...] | None:
        """The axes of a mean that keeps them; None for any other."""
        given = graph.attributes(node)
        axes = given.get("axes")
        if len(node.input) > 1 and node.input[1] in self.constants:
            axes = self.constants[node.input[1]].tolist()
        return tuple(axes) if axes and given.get("keepdims", 1) else None

    def evaluate(self, nodes: list[onnx.NodeProto], known: dict[str, np.ndarray], target: str) -> np.ndarray:
        """The value `target` in float64."""
        values = dict(known)
        for node in nodes:
            if node.op_type == "ReduceMean":
                values[node.output[0]] = values[node.input[0]].mean(self.mean_axes(node), keepdims=True)
                continue
            inputs = [values[name] if name in values else self.constants[name].astype(float) for name in node.input]
            values[node.output[0]] = POINTWISE[node.op_type](*inputs)
        return values[target]


def _function_node(node: onnx.NodeProto, source: str, function: Function) -> onnx.NodeProto:
    name, *parameters = function
    made = helper.make_node("Function", [source], list(node.output), node.name, domain=DOMAIN, function=name)
    if parameters:
        made.attribute.append(helper.make_attribute("parameters", parameters))
    return made


def _sample_points(constants: list[float]) -> np.ndarray:
    """Numbers of all magnitudes, and numbers around the constants of a function."""
    sizes = np.logspace(-6, 3, 60)
    special = np.array([0.0, *constants])
    near = np.concatenate([special * (1 - 1e-3), special, special * (1 + 1e-3)])
    points = np.concatenate([np.linspace(-9, 9, 721), sizes, -sizes, near, -near])
    return points[np.abs(points) < 1e6]


def _agree(got: np.ndarray, expected: np.ndarray, points: np.ndarray) -> bool:
    return got.shape == expected.shape and bool((np.abs(got - expected) <= TOLERANCE * (1 + np.abs(points))).all())
