"""Generated C against ONNX Runtime and JAX, on graphs of all kinds."""

import ctypes
import dataclasses

import jax
import numpy as np
import onnx
import onnxruntime
import pytest
from flax import nnx
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx_graphs import Graph, check, linear_network, residual, to_source

import nttzoo
from nttzoo import architectures, codegen, data, zoo
from nttzoo.codegen import addresses, build
from nttzoo.sparsity import pruning

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    size=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    window=pairs,
    strides=pairs,
    dilations=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    groups=st.sampled_from([1, 2]),
    density=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    function=st.sampled_from(["Relu", "Sigmoid", "Tanh", "Clip", None]),
    pooled=st.booleans(),
    tiled=st.booleans(),
    seed=st.integers(0, 5),
)
def test_convolutions(cache, size, window, strides, dilations, pads, groups, density, function, pooled, tiled, seed):
    graph = Graph((4, *size), density, seed)
    options = {"strides": strides, "dilations": dilations, "pads": pads, "group": groups}
    graph.add("Conv", graph.weight(6, 4 // groups, *window), graph.weight(6), **options)
    if function:
        bounds = [graph.constant(np.float32(-0.3)), graph.constant(np.float32(0.4))] if function == "Clip" else []
        graph.add(function, *bounds)
    graph.add("Conv", graph.weight(3, 6, 1, 1))  # no bias; it sees the planes as the first one leaves them
    if pooled and min(size) >= 7 and max(*window, *strides, *dilations) < 3:
        graph.add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    with pytest.MonkeyPatch.context() as patch:
        if tiled:
            for name, value in {"TILE_FROM_BYTES": 0, "TILE_FROM_WORK": 0, "TILE": 6}.items():
                patch.setattr(addresses, name, value)
        check(graph.proto(), cache)


@settings(max_examples=12, deadline=None)
@given(
    kind=st.sampled_from(["MaxPool", "AveragePool"]),
    window=pairs,
    strides=pairs,
    pad=st.booleans(),
    count=st.sampled_from([0, 1]),
    first=st.booleans(),
    auto=st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]),
)
def test_pooling(cache, kind, window, strides, pad, count, first, auto):
    assume(not auto.startswith("SAME") or all(w >= s for w, s in zip(window, strides, strict=True)))  # ORT's own limit
    graph = Graph((3, 9, 8), 0.5)
    if not first:
        graph.add("Conv", graph.weight(4, 3, 3, 2), graph.weight(4)).add("Relu")
    options = {"kernel_shape": window, "strides": strides, "auto_pad": auto}
    if auto == "NOTSET" and pad:
        options["pads"] = [window[0] // 2, window[1] // 2] * 2
    if kind == "AveragePool":
        options["count_include_pad"] = count
    graph.add(kind, **options).add("Relu").add("Flatten")
    check(graph.proto(), cache)


@settings(max_examples=10, deadline=None)
@given(density=st.sampled_from([0.0, 0.05, 0.3, 1.0]), transposed=st.booleans(), seed=st.integers(0, 9))
def test_linear_layers(cache, density, transposed, seed):
    graph = Graph((5, 4), density, seed)
    graph.add("Transpose", perm=[0, 2, 1]).add("Reshape", graph.constant(np.array([-1, 20])))
    shape = (30, 20) if transposed else (20, 30)
    graph.add("Gemm", graph.weight(*shape), graph.weight(30), transB=int(transposed), alpha=0.5, beta=2.0)
    graph.add("Relu").add("MatMul", graph.weight(30, 12)).add("Add", graph.weight(12))
    graph.add("Gemm", graph.weight(12, 7), graph.weight(7)).add("Softmax", axis=-1)
    check(graph.proto(), cache)


@pytest.mark.parametrize("densities", [(0.2, 0.2, 0.2), (0.2, 0.2, 1.0), (1.0, 0.2, 1.0)])
@pytest.mark.parametrize("count", [1, 7, 8, 63, 64, 65, 150])
def test_linear_networks_take_many_examples_at_a_time(cache, densities, count):
    proto = linear_network(densities).proto()
    source, shape = to_source(proto)
    assert source.batch_arena > source.arena
    library = ctypes.CDLL(str(build.build(source, input_shape=shape, threads=1, cache=cache).library))
    x = np.random.default_rng(1).normal(size=(count, *shape)).astype(np.float32)
    arena = np.full(source.batch_arena + 64, np.nan, np.float32)
    arena[source.batch_arena :] = 7
    output = np.full(7 * count + 8, 7.0, np.float32)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, output, arena)]
    library.net_run_batch(pointers[0], pointers[1], count, pointers[2])
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(output[: 7 * count].reshape(count, 7), session.run(None, {"x": x})[0], atol=1e-5)
    assert (arena[source.batch_arena :] == 7).all()
    assert (output[7 * count :] == 7).all()


def test_a_residual_network(cache):
    check(residual().proto(), cache)


@pytest.mark.parametrize("choice", [field.name for field in dataclasses.fields(codegen.Choices)])
def test_answers_are_the_same_whatever_is_done_for_speed(cache, choice, monkeypatch):
    choices = codegen.Choices(**{choice: False})
    monkeypatch.setattr(addresses, "TILE_FROM_BYTES", 0)
    monkeypatch.setattr(addresses, "TILE_FROM_WORK", 0)
    texts = []
    for proto in (residual().proto(), linear_network().proto()):
        check(proto, cache, choices=choices)
        texts += [codegen.source_of(proto, "net", way)[0].code for way in (choices, None)]
    assert texts[0] != texts[1] or texts[2] != texts[3]  # the choice matters to one of them


@pytest.mark.parametrize("dead", [0, 1])
def test_networks_with_a_dead_end(cache, dead):
    graph = Graph((4,))
    weights = [graph.rng.normal(size=shape).astype(np.float32) for shape in ((4, 5), (5, 3))]
    weights[dead][...] = 0
    graph.add("Gemm", graph.constant(weights[0]), graph.weight(5)).add("Relu")
    check(graph.add("Gemm", graph.constant(weights[1]), graph.weight(3)).proto(), cache, n=9)
    graph.add("Softmax").add("Gemm", graph.constant(np.zeros((3, 2), np.float32)), graph.weight(2))
    check(graph.proto(), cache, n=9)


def test_names_that_look_like_ours(cache):
    graph = Graph((4,))
    graph.add("Gemm", graph.weight(4, 4), graph.weight(4)).add("Gemm", graph.weight(4, 4)).add(
        "Gemm", graph.weight(4, 2)
    )
    for node, name in zip(graph.nodes, ("a", "a.weight", "a_block"), strict=True):
        node.name = name
    check(graph.proto(), cache)


def test_bounds_of_clip(cache):
    graph = Graph((4,))
    graph.add("Clip", graph.constant(np.float32(0.5)), graph.constant(np.float32(-0.5)))  # the upper bound wins
    check(graph.proto(), cache)
    graph = Graph((4,))
    graph.add("Clip", graph.constant(np.float32(-0.5)), graph.constant(np.float32(np.inf)))
    check(graph.proto(), cache)


def test_views_and_constants(cache):
    graph = Graph((4, 6, 2), 0.5)
    graph.nodes.append(helper.make_node("Constant", [], ["shape"], value_ints=[0, 0, 12]))
    graph.add("Reshape", "shape").add("Transpose", perm=[0, 2, 1]).add("Add", graph.weight(1, 12, 4))
    check(graph.add("Softmax", axis=1).add("Flatten").add("Add", graph.weight(48)).proto(), cache)


def test_sparse_initializers_and_any_batch(cache, tmp_path, monkeypatch):
    model = pruning.prune(
        architectures.create("lenet5", input_shape=(16, 16, 1), rngs=0), "random", density=0.1, rngs=0
    )
    done = nttzoo.export_onnx(model, tmp_path / "m.onnx")
    proto = onnx.load(done.path)
    assert proto.graph.sparse_initializer
    source, shape = to_source(proto)
    compiled = build.build(source, input_shape=shape, threads=2, cache=cache)
    model.eval()
    monkeypatch.setattr(build, "THREADS_FROM", 0)
    x = np.random.default_rng(0).normal(size=(7, *shape)).astype(np.float32)
    expected = np.asarray(nnx.jit(lambda m, x: m(x))(model, x))
    for n in (0, 1, 2, 7):
        np.testing.assert_allclose(compiled(x[:n]), expected[:n], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", zoo.list_models())
def test_published_networks(name):
    model = nttzoo.load(name, weights="trained")
    compiled = nttzoo.compile(name, threads=2)
    spec = model.input_spec
    inputs = [np.random.default_rng(0).normal(size=(8, *spec.shape)).astype(np.float32)]
    if spec.shape == (28, 28, 1):
        inputs.append(np.asarray(spec.standardize(data.load("mnist5k").test.images[:64])))
    session = onnxruntime.InferenceSession(zoo.onnx_file(name), providers=["CPUExecutionProvider"])
    for x in inputs:
        answer = compiled(x)
        for expected in (np.asarray(model(jax.numpy.asarray(x))), session.run(None, {"images": x})[0]):
            assert np.abs(answer - expected).max() <= 1e-5 * np.abs(expected).max()
    told = zoo.info(name).metrics["c"]
    assert (told["table_bytes"], told["arena_bytes"]) == (compiled.source.table_bytes, 4 * compiled.source.arena)
