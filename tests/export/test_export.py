"""ONNX files against ONNX Runtime, which knows nothing of JAX."""

import importlib
import os
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

import nttzoo
from nttzoo import architectures, errors, export
from nttzoo.export import graph
from nttzoo.sparsity import pruning


def small(name, density=0.03, **options):
    shapes = {"lenet300": (5, 4, 1), "lenet5": (16, 16, 1), "conv4": (16, 17, 3)}
    model = architectures.create(name, input_shape=shapes[name], rngs=0, **options)
    return pruning.prune(model, "magnitude", density=density)


@cache
def seen(name):
    """(model, images, what it makes of them)."""
    model = small(name)
    model.eval()
    x = np.random.default_rng(0).normal(size=(3, *model.input_shape)).astype(np.float32)
    return model, x, np.asarray(nnx.jit(lambda m, x: m(x))(model, x))


def run(path, images):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: np.asarray(images)})[0]


@pytest.mark.parametrize(
    ("name", "sparse", "layout"),
    [
        ("lenet300", True, "NHWC"),
        ("lenet300", True, "NCHW"),
        ("lenet5", False, "NCHW"),
        ("conv4", True, "NCHW"),
        ("conv4", False, "NHWC"),
    ],
)
def test_onnx_runtime_computes_the_same(name, sparse, layout, tmp_path):
    model, x, expected = seen(name)
    done = nttzoo.export_onnx(model, tmp_path / "m.onnx", sparse=sparse, layout=layout)
    assert done.size == (tmp_path / "m.onnx").stat().st_size
    for n in (1, 3):  # a batch of any size
        fed = x[:n].transpose(0, 3, 1, 2) if layout == "NCHW" else x[:n]
        np.testing.assert_allclose(run(done.path, fed), expected[:n], rtol=1e-4, atol=1e-5)


def test_the_graph_is_readable(tmp_path):
    nttzoo.export_onnx(small("conv4"), tmp_path / "m.onnx", layout="NCHW")
    model = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(model)
    names = [node.name for node in model.graph.node]
    assert names[:5] == ["conv1", "conv1.relu", "conv2", "conv2.maxpool", "conv2.relu"]
    assert [node.op_type for node in model.graph.node if node.name == "linear1"] == ["Gemm"]
    assert {sparse.values.name for sparse in model.graph.sparse_initializer} >= {"conv1.kernel", "linear1.kernel"}
    assert [value.name for value in [*model.graph.input, *model.graph.output]] == ["images", "logits"]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "B"
    assert model.opset_import[0].version == 17
    assert model.ir_version == 8


def test_sparse_files_are_small_and_hold_the_same_weights(tmp_path):
    model = small("conv4", 0.01)
    sparse = nttzoo.export_onnx(model, tmp_path / "sparse.onnx")
    dense = nttzoo.export_onnx(model, tmp_path / "dense.onnx", sparse=False)
    assert sparse.size < dense.size / 15
    first, second = (graph.constants(onnx.load(done.path).graph) for done in (sparse, dense))
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    np.testing.assert_array_equal(second["linear1.kernel"], model.linear1.masked_kernel())


@pytest.mark.parametrize("index", [np.array([1, 3], np.int64), np.array([[0, 1], [1, 0]], np.int64)])
def test_both_kinds_of_sparse_places_are_read(index):
    values = onnx.numpy_helper.from_array(np.array([5.0, 7.0], np.float32), "w")
    places = onnx.numpy_helper.from_array(index, "places")
    made = onnx.GraphProto(sparse_initializer=[onnx.helper.make_sparse_tensor(values, places, [2, 3])])
    np.testing.assert_array_equal(graph.constants(made)["w"], [[0, 5, 0], [7, 0, 0]])


def test_published_networks_say_what_they_need(tmp_path):
    done = nttzoo.export_onnx("lenet300-mnist-1pct-layerwise", tmp_path / "m.onnx")
    about = {entry.key: entry.value for entry in onnx.load(done.path).metadata_props}
    assert about["name"] == "lenet300-mnist-1pct-layerwise"
    assert about["density"] == "0.01"
    assert about["classes"].count(",") == 9
    digits = nttzoo.data.load("mnist5k").test
    trained = nttzoo.load("lenet300-mnist-1pct-layerwise", weights="trained")
    guesses = run(done.path, trained.input_spec.standardize(digits.images)).argmax(1)
    assert (guesses == digits.labels).mean() > 0.9


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 3), st.sampled_from(["SAME", "VALID"]), st.sampled_from([1, 2]), st.floats(0.05, 1.0))
def test_models_of_ones_own(stride, padding, dilation, density):
    class Mine(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(
                2, 4, (3, 3), strides=stride, padding=padding, kernel_dilation=dilation, rngs=rngs, use_bias=False
            )
            self.norm = nnx.BatchNorm(4, rngs=rngs)
            self.head = nnx.Linear(4, 3, rngs=rngs)

        def __call__(self, x):
            x = nnx.gelu(self.norm(self.conv(x)))
            return self.head(x.mean((1, 2)))

    model = pruning.prune(nttzoo.sparsify(Mine(nnx.Rngs(0))), "magnitude", density=density)
    model.eval()
    proto = export.to_proto(model, name="mine", shape=(9, 8, 2), sparse=True, opset=17, batch="B", layout="NHWC")
    x = jax.random.normal(jax.random.key(1), (2, 9, 8, 2))
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"images": np.asarray(x)})[0], model(x), rtol=1e-4, atol=1e-5)


def test_a_fixed_batch(tmp_path):
    done = nttzoo.export_onnx(small("lenet300"), tmp_path / "m.onnx", batch=4)
    assert onnx.load(done.path).graph.input[0].type.tensor_type.shape.dim[0].dim_value == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"opset": 5}, "opset 5 is not supported; choose 17 to 23"),
        ({"layout": "CHWN"}, "layout 'CHWN'"),
        ({"batch": 0}, "batch is 0"),
        ({"batch": "a b"}, "not a name"),
        ({"weights": "best"}, "weights='best'"),
    ],
)
def test_bad_options(options, message, tmp_path):
    with pytest.raises(errors.OptionError, match=message):
        nttzoo.export_onnx("lenet300-mnist-1pct-layerwise", tmp_path / "m.onnx", **options)
    assert not os.listdir(tmp_path)


def test_bad_places(tmp_path):
    with pytest.raises(errors.OptionError, match="there is no folder"):
        nttzoo.export_onnx("lenet300-mnist-1pct-layerwise", tmp_path / "none" / "m.onnx")
    with pytest.raises(errors.OptionError, match="it is a folder"):
        nttzoo.export_onnx("lenet300-mnist-1pct-layerwise", tmp_path)
    with pytest.raises(errors.UnknownName, match="Did you mean"):
        nttzoo.export_onnx("lenet300-mnist-1pct", tmp_path / "m.onnx")


def test_a_model_that_does_not_say_what_it_takes(tmp_path):
    with pytest.raises(errors.OptionError, match="input_shape="):
        nttzoo.export_onnx(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), tmp_path / "m.onnx")
    done = nttzoo.export_onnx(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), tmp_path / "m.onnx", input_shape=(3,))
    assert run(done.path, np.ones((5, 3), np.float32)).shape == (5, 2)


def test_unsupported_layers_are_named(tmp_path):
    class Odd(nnx.Module):
        def __call__(self, x):
            return jax.scipy.special.bessel_jn(x, v=2)[0]

    class Mine(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(3, 3, rngs=rngs)
            self.second = Odd()

        def __call__(self, x):
            return self.second(self.first(x))

    with pytest.raises(errors.ExportError, match=r"layer second \(Odd\) cannot be exported"):
        nttzoo.export_onnx(Mine(nnx.Rngs(0)), tmp_path / "m.onnx", input_shape=(3,))
    assert not os.listdir(tmp_path)


def test_pooling_with_options_by_position_is_answered_with_the_cure(tmp_path):
    class Pooled(nnx.Module):
        def __call__(self, x):
            return nnx.max_pool(x, (2, 2), (2, 2)).reshape(len(x), -1)

    with pytest.raises(errors.ExportError, match=r"by name: nnx\.max_pool\(x, window_shape="):
        nttzoo.export_onnx(Pooled(), tmp_path / "m.onnx", input_shape=(4, 4, 1))


@pytest.mark.parametrize(("value", "message"), [(jnp.nan, "not finite"), (None, "bfloat16")])
def test_bad_weights_are_named(value, message, tmp_path):
    model = small("lenet300")
    if value is None:
        model.linear2.kernel = nnx.Param(model.linear2.kernel[...].astype(jnp.bfloat16))
    else:
        model.linear2.bias[...] = jnp.full(100, value)
    with pytest.raises(errors.ExportError, match=rf"linear2.* {message}"):
        nttzoo.export_onnx(model, tmp_path / "m.onnx")


def test_a_file_that_gives_nan_is_not_left(tmp_path):
    class Logarithm(nnx.Module):
        def __call__(self, x):
            return jnp.log(x)

    with pytest.raises(errors.ExportError, match="nothing was written"):
        nttzoo.export_onnx(Logarithm(), tmp_path / "m.onnx", input_shape=(3,))
    assert not os.listdir(tmp_path)


def test_branches_are_exported(tmp_path):
    class Branching(nnx.Module):
        def __call__(self, x):
            y = jnp.sin(x)
            return jax.lax.cond(x.sum() > 0, lambda: y + 1, lambda: y - 1)

    done = nttzoo.export_onnx(Branching(), tmp_path / "m.onnx", input_shape=(3,), batch=2)
    x = np.ones((2, 3), np.float32)
    np.testing.assert_allclose(run(done.path, -x), np.sin(-x) - 1, rtol=1e-5)


def test_inputs_that_do_not_fit(tmp_path):
    linear = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    with pytest.raises(errors.OptionError, match="does not take float32 inputs"):
        nttzoo.export_onnx(linear, tmp_path / "m.onnx", input_shape=(4,))
    with pytest.raises(errors.OptionError, match=r"images has shape \(0, 3\)"):
        nttzoo.export_onnx(linear, tmp_path / "m.onnx", input_shape=(3,), images=np.zeros((0, 3)))


@pytest.mark.slow
def test_rounding_that_a_network_amplifies_is_no_mistake(tmp_path):
    model = nttzoo.create("ds_cnn", rngs=0)
    nttzoo.prune(model, "random", density=0.05, rngs=0)  # many groups of channels are nearly constant
    assert 1e-5 < nttzoo.export_onnx(model, tmp_path / "m.onnx", sparse=False).difference < 1e-4
    assert 1e-5 < nttzoo.export_c(model, tmp_path / "m.c").difference < 1e-3


def test_a_file_that_differs_is_not_left(tmp_path, monkeypatch):
    # `nttzoo.export.parity` is also the name of a function there.
    parity = importlib.import_module("nttzoo.export.parity")
    right = parity.outputs_of
    monkeypatch.setattr(parity, "outputs_of", lambda *arguments: right(*arguments) * (1 + 3e-5))
    with pytest.raises(errors.ExportError, match="nothing was written"):
        nttzoo.export_onnx(small("lenet5"), tmp_path / "m.onnx")
    assert not os.listdir(tmp_path)
