"""The C's text, compilers, sanitizers, and the cache of libraries."""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime
import pytest
from onnx_graphs import Graph, linear_network, residual, to_source

from nttzoo import errors
from nttzoo.codegen import addresses, build

STRICT = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-O1"]

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
