"""Graphs whose operators do not mean what they mean today: compiled as their opset says, or refused."""

import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from nttzoo import codegen
from nttzoo.codegen import build
from nttzoo.errors import ExportError, NttzooError

CHANNELS = np.array([1.0, 20.0, 300.0], np.float32)
SQUARE = np.arange(16, dtype=np.float32).reshape(4, 4)
NORM = {key: CHANNELS + shift for shift, key in enumerate(("scale", "bias", "mean", "variance"))}


def graph(*nodes, opset, functions=(), opsets=None, **constants):
    """x [B, 3, 4, 4] -> y."""
    made = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 3, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = opsets or [helper.make_opsetid("", opset)]
    return helper.make_model(made, opset_imports=opsets, ir_version=8, functions=list(functions))


def node(kind, *inputs, outputs=("y",), **attributes):
    return helper.make_node(kind, list(inputs), list(outputs), name=kind, **attributes)


def normalized(x):
    scale, bias, mean, variance = (value[:, None, None] for value in NORM.values())
    return (x - mean) / np.sqrt(variance + 1e-5) * scale + bias


def softmax_of_all(x):
    powers = np.exp(x.reshape(len(x), -1))
    return (powers / powers.sum(1, keepdims=True)).reshape(x.shape)


RIGHT = {
    "Mul at an axis": (
        graph(node("Mul", "x", "c", broadcast=1, axis=1), opset=6, c=CHANNELS),
        lambda x: x * CHANNELS[:, None, None],
    ),
    "Sub at an axis of a square": (
        graph(node("Sub", "x", "c", broadcast=1, axis=2), opset=6, c=SQUARE[0]),
        lambda x: x - SQUARE[0][:, None],
    ),
    "Softmax over all axes": (graph(node("Softmax", "x"), opset=11), softmax_of_all),
    "Clip by attributes": (graph(node("Clip", "x", max=0.25), opset=6), lambda x: np.minimum(x, 0.25)),
    "Pad by paddings": (
        graph(node("Pad", "x", paddings=[0, 0, 1, 0, 0, 0, 0, 2]), opset=1),
        lambda x: np.pad(x, ((0, 0), (0, 0), (1, 0), (0, 2))),
    ),
    "Reshape by an attribute": (graph(node("Reshape", "x", shape=[0, -1]), opset=1), lambda x: x),
    "BatchNormalization in a test": (
        graph(node("BatchNormalization", "x", *NORM, is_test=1), opset=6, **NORM),
        normalized,
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_operators_mean_what_their_opset_says(name, tmp_path):
    model, expected = RIGHT[name]
    source, shape = codegen.source_of(model, "net")
    run = build.build(source, input_shape=shape, threads=1, cache=tmp_path)
    x = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
    np.testing.assert_allclose(run(x).reshape(2, -1), expected(x).reshape(2, -1), rtol=1e-5, atol=1e-5)


ADD = node("Add", "x", "k")
STATISTICS = ("y", "a", "b", "c", "d")
FOREVER = helper.make_graph(
    [node("Identity", "on", outputs=["still"]), node("Identity", "v", outputs=["w"])],
    "body",
    [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("on", TensorProto.BOOL, []),
        helper.make_tensor_value_info("v", TensorProto.FLOAT, [4]),
    ],
    [
        helper.make_tensor_value_info("still", TensorProto.BOOL, []),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, [4]),
    ],
)
LOOP = node("Loop", "count", "on", "c", outputs=["k"], body=FOREVER)
OTHER_RELU = helper.make_function("", "Relu", ["X"], ["Y"], [node("Neg", "X", outputs=["Y"])], [])
REFUSED = {
    "training by its outputs": (
        graph(node("BatchNormalization", "x", *NORM, outputs=STATISTICS), opset=9, **NORM),
        "training mode",
    ),
    "averages over pads": (
        graph(node("AveragePool", "x", kernel_shape=[2, 2], pads=[1, 1, 1, 1]), opset=1),
        "count the pads",
    ),
    "constants by chance": (graph(node("Bernoulli", "c", outputs=["k"]), ADD, opset=15, c=CHANNELS[:1]), "random"),
    "softmax of constants": (
        graph(node("Softmax", "c", axis=0, outputs=["k"]), ADD, opset=11, c=SQUARE),
        "of a constant is not supported in opset 11",
    ),
    "a loop that never ends": (graph(LOOP, ADD, opset=16, count=2**60, on=True, c=SQUARE[0]), "branches and loops"),
    "another Relu": (graph(node("Relu", "x"), opset=17, functions=[OTHER_RELU]), "of its own"),
    "two opsets": (
        graph(node("Softmax", "x"), opset=0, opsets=[helper.make_opsetid("", 11), helper.make_opsetid("", 17)]),
        "one opset",
    ),
    "an opset of the future": (graph(node("Relu", "x"), opset=999), "one opset"),
    "a value given twice": (
        graph(node("Relu", "x", outputs=["p"]), node("Neg", "x", outputs=["p"]), node("Abs", "p"), opset=17),
        "given twice",
    ),
    "sizes that are not whole": (
        graph(node("Resize", "x", "", "scales"), opset=13, scales=np.array([1, 1, 1.7, 2], np.float32)),
        "not whole",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_mean_something_else_is_refused(name):
    model, message = REFUSED[name]
    with pytest.raises(ExportError, match=message):
        codegen.source_of(model, "net")


# Constants in files beside the graph.


def with_outside_constant(folder, location, **more):
    model = graph(ADD, opset=17)
    outside = onnx.TensorProto(name="k", data_type=TensorProto.FLOAT, dims=[3, 1, 1])
    outside.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **more}.items():
        outside.external_data.add(key=key, value=str(value))
    model.graph.initializer.append(outside)
    folder.mkdir(exist_ok=True)
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    return folder / "net.onnx"


def test_constants_beside_the_graph_are_read(tmp_path):
    path = with_outside_constant(tmp_path, "weights.bin", length=12)
    (tmp_path / "weights.bin").write_bytes(CHANNELS.tobytes())
    run = build.build(*codegen.to_source(path)[:1], input_shape=(3, 4, 4), threads=1, cache=tmp_path / "cache")
    np.testing.assert_allclose(
        run(np.zeros((1, 3, 4, 4), np.float32)).reshape(3, 16), np.repeat(CHANNELS[:, None], 16, 1)
    )


@pytest.mark.parametrize("location", ["../secret.bin", "/dev/zero", "pipe", "huge.bin", "link.bin", "nowhere.bin"])
def test_constants_elsewhere_are_refused(tmp_path, location):
    folder = tmp_path / "folder"
    path = with_outside_constant(folder, location)
    (tmp_path / "secret.bin").write_bytes(CHANNELS.tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    os.mkfifo(folder / "pipe")
    with (folder / "huge.bin").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(NttzooError):
        codegen.to_source(path)
