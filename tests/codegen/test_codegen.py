"""Generated C against ONNX Runtime and JAX, on graphs of all kinds."""

import ctypes
import dataclasses
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import onnx
import onnxruntime
import pytest
from flax import nnx
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx_graphs import Graph, check, to_source

import nttzoo
from nttzoo import architectures, cli, codegen, data, errors, zoo
from nttzoo.codegen import addresses, build, frontend, lower, optimize
from nttzoo.sparsity import pruning

STRICT = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-O1"]


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("compiled")


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


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


# Optimizing, by hand.


def test_dead_and_constant_units_vanish():
    # x0 -> h0 -> y; h1 = relu(2), a constant, goes into y's bias; h2 reaches nothing; x1 reaches only h2.
    first = np.array([[3, 0, 0], [0, 0, 5]], np.float32)
    graph = Graph((2,))
    graph.add("Gemm", graph.constant(first), graph.constant(np.array([0, 2, 0], np.float32))).add("Relu")
    graph.add("Gemm", graph.constant(np.array([[1], [10], [0]], np.float32)), graph.constant(np.float32([0.5])))
    program = frontend.read(graph.proto())
    needed = optimize.optimize(program, codegen.Choices())
    hidden, answer = program.ops
    assert needed["x"].tolist() == [True, False]
    assert needed[hidden.output].tolist() == [True, False, False]
    assert answer.bias.tolist() == [20.5]
    assert np.count_nonzero(hidden.weight) + np.count_nonzero(answer.weight) == 2
    assert hidden.after == [("relu",)]  # fused


def test_pooling_and_functions_are_fused():
    graph = Graph((1, 8, 8))
    graph.add("Conv", graph.weight(2, 1, 3, 3)).add("Relu").add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    graph.add("Transpose", perm=[0, 2, 3, 1]).add("Relu").add("Flatten")
    program = frontend.read(graph.proto())
    optimize.optimize(program, codegen.Choices())
    assert [type(op).__name__ for op in program.ops] == ["Conv", "View"]
    assert program.ops[0].pool is not None
    assert program.ops[0].after == [("relu",), ("relu",)]


def test_the_arena_is_shared():
    graph = Graph((4, 12, 12))
    for _ in range(6):
        graph.add("Conv", graph.weight(4, 4, 3, 3), pads=[1, 1, 1, 1])
    program = frontend.read(graph.proto())
    plan = lower.lower(program, optimize.optimize(program, codegen.Choices()), codegen.Choices())
    assert plan.arena < 0.4 * sum(buffer.size for buffer in plan.buffers.values())
    for a in plan.buffers.values():
        for b in plan.buffers.values():
            if a is not b and a.first <= b.last and b.first <= a.last:
                assert a.offset + a.size <= b.offset or b.offset + b.size <= a.offset


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_runs_are_the_addresses(pairs):
    lists = np.array(pairs, int).reshape(-1, 2).T
    rebuilt = [(a + i * da, b + i * db) for a, da, b, db, n in addresses.find_runs(list(lists)) for i in range(n)]
    assert rebuilt == pairs


# The text.


def test_the_text_is_the_same_each_time():
    assert to_source(residual().proto()) == to_source(residual().proto())


@pytest.mark.parametrize("compiler", ["gcc -std=c99", "clang -std=c99", "g++ -x c++", "clang++ -x c++"])
def test_strict_compilers_have_nothing_to_say(compiler, tmp_path):
    if not shutil.which(compiler.split()[0]):
        pytest.skip(f"{compiler.split()[0]} is not installed")
    for index, flags in enumerate([[], ["-march=native"]]):
        flat = Graph((3, 2), 0.5).add("Transpose", perm=[0, 2, 1])
        for graph in (residual(), linear_network(), flat, Graph((3,), 0.5).add("Sigmoid")):
            source, _ = to_source(graph.proto())
            code, _ = build.write(source, tmp_path)
            command = [*compiler.split(), *STRICT, *flags, "-c", str(code), "-o", str(tmp_path / f"{index}.o")]
            subprocess.run(command, check=True, capture_output=True)


MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include "net.h"
int main(void) {
    float *arena = malloc(NET_ARENA * sizeof(float)), *more = malloc(NET_BATCH_ARENA * sizeof(float));
    float *in = malloc(9 * NET_INPUTS * sizeof(float)), *out = malloc(9 * NET_OUTPUTS * sizeof(float));
    for (int i = 0; i < 9 * NET_INPUTS; i++) in[i] = (float)(i % 7) - 3.0f;
    for (int k = 0; k < 2; k++) {
        if (k) net_run_batch(in, out, 9, more);
        else for (int i = 0; i < 9; i++) net_run(in + i * NET_INPUTS, out + i * NET_OUTPUTS, arena);
        for (int i = 0; i < 9 * NET_OUTPUTS; i++) printf("%.9g\\n", (double)out[i]);
    }
    free(arena); free(more); free(in); free(out);
    return 0;
}
"""


def linear_network(densities=(0.2, 0.2, 1.0)):
    graph = Graph((20,))
    for density, inputs, outputs, function in zip(
        densities, (20, 30, 11), (30, 11, 7), ("Relu", "Relu", "Tanh"), strict=True
    ):
        graph.density = density
        graph.add("Gemm", graph.weight(inputs, outputs), graph.weight(outputs)).add(function)
    return graph


def two_readers():
    """A convolution that leaves a channel alone of which another layer reads a part."""
    graph = Graph((2, 4, 4))
    graph.add("Add", graph.weight(2, 4, 4))
    shared = graph.last
    some = np.zeros((32, 3), np.float32)
    some[[2, 17, 18, 30]] = 1
    graph.add("Flatten").add("Gemm", graph.constant(some), graph.weight(3))
    first = graph.last
    weight = graph.rng.normal(size=(3, 2, 2, 2)).astype(np.float32)
    weight[:, 1] = 0
    graph.last = shared
    graph.add("Conv", graph.constant(weight), strides=[2, 2]).add("GlobalAveragePool").add("Flatten")
    return graph.add("Add", first)


@pytest.mark.parametrize("make", [residual, linear_network, two_readers])
@pytest.mark.parametrize("tile", [False, True])
def test_sanitizers_find_nothing(make, tile, tmp_path, monkeypatch):
    if tile:
        for name, value in {"TILE_FROM_BYTES": 0, "TILE_FROM_WORK": 0, "TILE": 6}.items():
            monkeypatch.setattr(addresses, name, value)
    source, shape = to_source(make().proto())
    build.write(source, tmp_path)
    (tmp_path / "main.c").write_text(MAIN)
    flags = ["-std=c99", "-O1", "-g", "-march=native", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run(["gcc", *flags, "main.c", "net.c", "-o", "main", "-lm"], cwd=tmp_path, check=True)
    done = subprocess.run(["./main"], cwd=tmp_path, check=True, capture_output=True, text=True)
    x = (np.arange(9 * int(np.prod(shape))) % 7 - 3).astype(np.float32).reshape(9, *shape)
    session = onnxruntime.InferenceSession(make().proto().SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    got = np.array([float(line) for line in done.stdout.split()]).reshape(2, *expected.shape)
    np.testing.assert_allclose(got, [expected, expected], rtol=1e-4, atol=1e-5)


def test_export_c(tmp_path, capsys):
    done = nttzoo.export_c("lenet300-mnist-1pct-layerwise", tmp_path / "digits.c")
    assert done.name == "digits"
    assert sorted(os.listdir(tmp_path)) == ["digits.c", "digits.h"]
    header = done.header.read_text()
    assert f"#define DIGITS_ARENA {done.arena_bytes // 4}" in header
    assert "extern const float digits_mean[1];" in header
    assert "extern const char *const digits_classes[10];" in header
    cli.main(["export", "lenet300-mnist-1pct-layerwise", str(tmp_path / "1 of 2.c"), "--format", "c"])
    printed = capsys.readouterr().out
    assert "call net_1_of_2_run ('1 of 2' is not a C identifier)" in printed
    subprocess.run(["gcc", "-std=c99", *STRICT, "-c", "1 of 2.c"], cwd=tmp_path, check=True)


def test_models_of_ones_own_and_files(cache, tmp_path):
    linear = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    compiled = nttzoo.compile(linear, input_shape=(3,))
    x = np.ones((2, 3), np.float32)
    np.testing.assert_allclose(compiled(x), linear(x), rtol=1e-5)
    nttzoo.export_onnx(linear, tmp_path / "m.onnx", input_shape=(3,))
    np.testing.assert_allclose(nttzoo.compile(tmp_path / "m.onnx")(x), linear(x), rtol=1e-5)
    with pytest.raises(errors.ShapeError, match=r"shape \[n, 3\], got \[2, 4\]"):
        compiled(np.ones((2, 4), np.float32))


def test_raw_pixels_are_standardized_and_classes_have_names():
    run = codegen.compile("lenet300-mnist-1pct-global", threads=1)
    model = nttzoo.load("lenet300-mnist-1pct-global", weights="trained")
    assert run.input_spec == model.input_spec
    test = data.load("mnist5k").test
    images, labels = test.images[::5], test.labels[::5]
    np.testing.assert_array_equal(run(images), run(np.asarray(model.input_spec.standardize(images))))
    logits = np.asarray(model(model.input_spec.standardize(images)))
    assert re.search(r"\[n, 28, 28, 1\] -> \[n, 10\] \(0, 1, .*, 9\), threads: 1>", repr(run))
    assert run.predict(images) == [model.input_spec.classes[i] for i in logits.argmax(-1)]
    assert np.mean(np.asarray(run.predict(images), int) == labels) > 0.9
    with pytest.raises(errors.ShapeError, match=r"takes standardized floats, got int64: .*standardize"):
        run(images.astype(np.int64))


def test_raw_pixels_and_odd_numbers_of_threads_are_refused():
    run = codegen.compile(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), threads=1, input_shape=(3,))
    with pytest.raises(errors.ShapeError, match=r"takes standardized floats, got uint8: .*standardize"):
        run(np.zeros((2, 3), np.uint8))
    with pytest.raises(errors.OptionError, match=r"class names of .* are not known"):
        run.predict(np.zeros((2, 3), np.float32))
    for threads in (0, 1.5, "2"):
        with pytest.raises(errors.OptionError, match="whole number"):
            codegen.compile("lenet300-mnist-1pct-global", threads=threads)


def test_calls_from_several_threads(cache):
    proto = linear_network().proto()
    source, shape = to_source(proto)
    compiled = build.build(source, input_shape=shape, threads=1, cache=cache)
    inputs = [np.random.default_rng(seed).normal(size=(200, *shape)).astype(np.float32) for seed in range(4)]
    expected = [compiled(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(compiled, inputs * 25))
    assert all(np.array_equal(a, b) for a, b in zip(answers, expected * 25, strict=True))


def test_a_library_is_built_once(tmp_path, monkeypatch):
    source, shape = to_source(Graph((3,)).add("Relu").proto())
    first = build.build(source, input_shape=shape, threads=1, cache=tmp_path)
    stamp = first.library.stat().st_mtime_ns
    assert build.build(source, input_shape=shape, threads=1, cache=tmp_path).library.stat().st_mtime_ns == stamp
    assert [path.suffix for path in tmp_path.iterdir()] == [".so"]


def test_a_cache_that_others_can_write_to_is_refused(tmp_path):
    source, shape = to_source(Graph((3,)).add("Relu").proto())
    (tmp_path / "cache").mkdir(mode=0o755)
    with pytest.raises(errors.FileError, match=r"cache must belong to you and be closed to others"):
        build.build(source, input_shape=shape, threads=1, cache=tmp_path / "cache")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(errors.FileError, match="link is not a folder"):
        build.build(source, input_shape=shape, threads=1, cache=tmp_path / "link")


# Bad input.


def refused(graph, message, **options):
    with pytest.raises(errors.ExportError, match=message):
        frontend.read(graph.proto(**options))


def test_what_cannot_be_compiled_is_named():
    refused(Graph((3,)).add("Det"), r"node 'Det0' \(Det\) is not supported. Supported: Abs, .*Add")
    refused(Graph(("h",)).add("Relu"), "axis 1 of input 'x' has no fixed size")
    graph = Graph((3,))
    refused(graph.add("Gemm", graph.constant(np.full((3, 2), np.nan, np.float32))), "constant 'c0' has values")
    graph = Graph((3, 4))
    refused(graph.add("Gemm", graph.weight(4, 2)), r"Gemm0.* rank 2")
    refused(Graph((3, 4)).add("Transpose", perm=[1, 0, 2]), "first axis of output 'v0' is not the batch")
    graph = Graph((3, 4))
    refused(graph.add("Reshape", graph.constant(np.array([4, 15]))), "would mix the examples", batch=5)
    graph = Graph((3, 4))
    refused(graph.add("Conv", graph.weight(2, 3, 1, 1)), "not valid ONNX|do not fit")
    graph = Graph((2, 3, 4, 5))
    refused(graph.add("Conv", graph.weight(2, 2, 1, 1, 1)), "only one or two axes besides the channels")
    graph = Graph((3,))
    refused(graph.add("MatMul", graph.weight(3)), "would mix the examples")
    graph = Graph((4,))
    refused(graph.add("Gemm", graph.weight(4, 4), graph.weight(4, 1)), "differs between the examples", batch=4)
    graph = Graph((12,))
    refused(graph.add("Reshape", graph.constant(np.array([3, -1, 4]))), "would mix the examples", batch=2)
    graph = Graph((2, 4, 4))
    refused(graph.add("Conv", graph.weight(2, 2, 3, 3), pads=[-1, 0, 0, 0]), "negative pads|not valid ONNX")
    graph = Graph((2, 4, 4))
    refused(graph.add("Conv", graph.weight(2, 3, 3, 3)), "not valid ONNX|channels")
    graph = Graph((3,))
    graph.last = graph.constant(np.ones(3, np.float32))
    refused(graph.add("Relu"), "does not depend on the input")


def test_bad_requests(tmp_path, monkeypatch):
    name = "lenet300-mnist-1pct-layerwise"
    with pytest.raises(errors.OptionError, match=r"should end in \.c"):
        nttzoo.export_c(name, tmp_path / "m.h")
    with pytest.raises(errors.OptionError, match="no folder"):
        nttzoo.export_c(name, tmp_path / "none" / "m.c")
    (tmp_path / "m.onnx").write_bytes(b"not onnx")
    with pytest.raises(errors.ExportError, match=r"m\.onnx cannot be read as ONNX"):
        nttzoo.compile(tmp_path / "m.onnx")
    with pytest.raises(errors.OptionError, match="threads is -1"):
        nttzoo.compile(name, threads=-1)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(errors.ExportError, match="there is no C compiler"):
        build.find_compiler()


def test_a_compiler_that_fails_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-no-such-flag"))
    source, shape = to_source(Graph((3,)).add("Relu").proto())
    with pytest.raises(errors.ExportError, match="failed: "):
        build.build(source, input_shape=shape, threads=1, cache=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_damaged_library_is_made_again(tmp_path):
    source, shape = to_source(Graph((3,)).add("Relu").proto())
    library = build.build(source, input_shape=shape, threads=1, cache=tmp_path).library
    whole = library.read_bytes()
    library.unlink()  # not changed in place: it is still loaded
    library.write_bytes(whole[: len(whole) // 2])  # to load this would end the process
    again = build.build(source, input_shape=shape, threads=1, cache=tmp_path)
    np.testing.assert_array_equal(again(np.array([[-1.0, 0.0, 2.0]])), [[0, 0, 2]])


def test_what_is_written_was_tried_out(tmp_path, monkeypatch):
    linear = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    done = nttzoo.export_c(linear, tmp_path / "m.c", input_shape=(3,))
    assert done.difference < 1e-6
    assert "its outputs differ from the model's by at most" in str(done)
    monkeypatch.setattr(codegen.export, "outputs_of", lambda model, x, noise=None: np.zeros((len(x), 2)))
    with pytest.raises(errors.ExportError, match=r"the C's outputs differ .*nothing was written"):
        nttzoo.export_c(linear, tmp_path / "other.c", input_shape=(3,))
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert "not tried out: there is no C compiler" in str(nttzoo.export_c(linear, tmp_path / "m.c", input_shape=(3,)))
    monkeypatch.undo()
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-march=another"))  # as if for another machine
    assert nttzoo.export_c(linear, tmp_path / "m.c", input_shape=(3,)).difference is None
    assert sorted(os.listdir(tmp_path)) == ["m.c", "m.h"]


@pytest.mark.parametrize("size", [1, 3, "B"])
def test_files_are_compared_with_onnx_runtime_at_their_own_batch_size(tmp_path, size):
    linear = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    nttzoo.export_onnx(linear, tmp_path / "m.onnx", input_shape=(3,), batch=size)
    assert nttzoo.export_c(tmp_path / "m.onnx", tmp_path / "m.c").difference < 1e-6


@pytest.mark.parametrize("missing", ["onnx", "jax2onnx", "onnxruntime"])
def test_without_onnx_one_is_told_what_to_install(missing, tmp_path):
    code = (
        f"import sys; sys.modules['{missing}'] = None\nimport nttzoo\n"
        f"try:\n    nttzoo.export_onnx('lenet300-mnist-1pct-global', '{tmp_path / 'm.onnx'}')\n"
        "except nttzoo.errors.ExportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "nttzoo[onnx]"' in done.stdout
