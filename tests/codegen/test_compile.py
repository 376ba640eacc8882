"""`compile` and `export_c`: what they return, print and refuse."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from flax import nnx
from onnx_graphs import Graph

import nttzoo
from nttzoo import cli, codegen, data, errors
from nttzoo._util import libraries
from nttzoo.codegen import build, frontend

STRICT = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-O1"]


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
        libraries.find_compiler()


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
    assert "not verified: there is no C compiler" in str(nttzoo.export_c(linear, tmp_path / "m.c", input_shape=(3,)))
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
