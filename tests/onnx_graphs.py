"""Small ONNX graphs, built node by node, and the comparison of their C with ONNX Runtime."""

import ctypes

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from nttzoo import codegen
from nttzoo.codegen import build


class Graph:
    """A small ONNX graph, built node by node; weights are random and sparse."""

    def __init__(self, shape, density=1.0, seed=0):
        self.rng = np.random.default_rng(seed)
        self.density = density
        self.shape = shape
        self.nodes, self.constants = [], []
        self.last = "x"

    def weight(self, *shape):
        kept = self.rng.random(shape) < self.density
        return self.constant(np.where(kept, self.rng.normal(size=shape), 0).astype(np.float32))

    def constant(self, value):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, kind, *inputs, **attributes):
        output = f"v{len(self.nodes)}"
        node = helper.make_node(kind, [self.last, *inputs], [output], name=f"{kind}{len(self.nodes)}", **attributes)
        self.nodes.append(node)
        self.last = output
        return self

    def proto(self, batch="B", opset=17):
        source = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, *self.shape])
        target = helper.make_tensor_value_info(self.last, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "g", [source], [target], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        return model


def to_source(proto, choices=None):
    return codegen.source_of(proto, "net", choices)


def check(proto, cache, n=3, tolerance=1e-5, choices=None):
    """Compiles a graph and compares it with ONNX Runtime; the guard behind the arena stays as it was."""
    source, shape = to_source(proto, choices)
    compiled = build.build(source, input_shape=shape, threads=1, cache=cache)
    x = np.random.default_rng(1).normal(size=(n, *shape)).astype(np.float32)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    memory = np.full(source.arena + 128, 7.0, np.float32)
    arena = memory[64:]
    arena[: source.arena] = np.nan  # what is in it must not matter
    output = np.full((n, source.outputs + 8), 7.0, np.float32)
    run = ctypes.CDLL(str(compiled.library)).net_run
    for i in range(n):
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x[i], output[i], arena)]
        run(*pointers)
    assert (arena[source.arena :] == 7).all()
    assert (memory[:64] == 7).all()
    assert (output[:, source.outputs :] == 7).all()
    got = output[:, : source.outputs].reshape(expected.shape)
    scale = max(np.abs(expected).max(), 1e-6)
    assert np.abs(got - expected).max() <= tolerance * scale
    np.testing.assert_array_equal(compiled(x).reshape(got.shape), got)
    check_batch(compiled, x, expected.reshape(n, -1), tolerance * scale)


def check_batch(compiled, x, expected, tolerance, count=19):
    """The same for a batch: a block of examples, and a rest."""
    source = compiled.source
    many = np.resize(x, (count, *x.shape[1:]))
    memory = np.full(source.batch_arena + 128, 7.0, np.float32)
    arena = memory[64:]
    arena[: source.batch_arena] = np.nan
    output = np.full(count * source.outputs + 8, 7.0, np.float32)
    run = ctypes.CDLL(str(compiled.library)).net_run_batch
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (many, output, arena)]
    run(pointers[0], pointers[1], count, pointers[2])
    assert (arena[source.batch_arena :] == 7).all()
    assert (memory[:64] == 7).all()
    assert (output[count * source.outputs :] == 7).all()
    got = output[: count * source.outputs].reshape(count, source.outputs)
    assert np.abs(got - np.resize(expected, got.shape)).max() <= tolerance


def residual():
    """Batch norms, a residual branch, softmax over channels, a global pool: everything at once."""
    graph = Graph((3, 8, 7), 0.4, seed=3)

    def norm(channels):
        values = [graph.constant(graph.rng.uniform(0.5, 1.5, channels).astype(np.float32)) for _ in range(4)]
        return graph.add("BatchNormalization", *values)

    norm(3).add("Conv", graph.weight(5, 3, 3, 3), pads=[1, 1, 1, 1])
    norm(5).add("Relu")
    branch = graph.last
    graph.add("Conv", graph.weight(5, 5, 3, 3), graph.weight(5), pads=[1, 1, 1, 1])
    norm(5).add("Add", branch)
    norm(5).add("Relu").add("Softmax", axis=1).add("Dropout").add("Identity")
    graph.add("Conv", graph.weight(6, 5, 3, 3), strides=[2, 2]).add("Clip", "", graph.constant(np.float32(0.2)))
    return graph.add("GlobalAveragePool").add("Flatten").add("Gemm", graph.weight(6, 4), graph.weight(4))


def linear_network(densities=(0.2, 0.2, 1.0)):
    graph = Graph((20,))
    for density, inputs, outputs, function in zip(
        densities, (20, 30, 11), (30, 11, 7), ("Relu", "Relu", "Tanh"), strict=True
    ):
        graph.density = density
        graph.add("Gemm", graph.weight(inputs, outputs), graph.weight(outputs)).add(function)
    return graph
