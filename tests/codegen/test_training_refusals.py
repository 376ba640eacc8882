"""What the compiled training step refuses: models, data, states and places; and that nothing is lost then."""

from __future__ import annotations

import shutil

import jax
import numpy as np
import pytest
from flax import nnx
from training_networks import Body, batch_for, conv, jax_gradient, pruned, small

from nttzoo import architectures, nn
from nttzoo._util import libraries
from nttzoo.codegen.training import compile as compile_step
from nttzoo.codegen.training import compile_training, step, trace
from nttzoo.errors import ExportError, OptionError, RunError, ShapeError, TrainingError

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")


def test_what_is_wrong_is_said():
    model = small()
    step = compile_training(model)
    images, labels = batch_for((5, 5, 1), 4)
    with pytest.raises(ShapeError, match=r"labels are from 0 to 7; the model has 4 classes"):
        step(images, np.array([0, 1, 2, 3, 7]))
    with pytest.raises(ShapeError, match=r"images of shape \[n, 5, 5, 1\], got \[5, 4, 5, 1\]"):
        step(images[:, :4], labels)
    with pytest.raises(ShapeError, match="standardized floats, got uint8"):
        step(images.astype(np.uint8), labels)
    with pytest.raises(OptionError, match="optimizer='lion'"):
        compile_training(model, optimizer="lion")
    with pytest.raises(OptionError, match="threads is 0"):
        compile_training(model, threads=0)


def test_a_loss_that_is_not_finite_keeps_the_last_good_weights():
    step = compile_training(small())
    images, labels = batch_for((5, 5, 1), 4)
    step(images, labels)
    state = step.state()
    step.restore(state | {"theta": state["theta"] * 1e15})
    before = step.state()
    with pytest.raises(TrainingError, match=r"the loss of step 2 is (nan|inf); the weights are those of step 1"):
        step(images, labels)
    images[2, 1, 1, 0] = np.nan
    with pytest.raises(TrainingError, match="image 2 of the batch for step 2 has values that are not finite"):
        step(images, labels)
    for key, value in before.items():
        np.testing.assert_array_equal(value, step.state()[key])


def test_a_changed_mask_is_refused():
    model = small()
    step = compile_training(model)
    layer = next(iter(nn.masked_layers(model).values()))
    layer.mask[...] = ~layer.mask[...]
    with pytest.raises(TrainingError, match="masks changed since the step was compiled"):
        step.update(model)
    with pytest.raises(TrainingError, match="another network or mask"):
        compile_training(model).restore(step.state())


class Tied(nnx.Module):
    def __init__(self):
        self.input_shape = (4,)
        self.layer = nn.Linear(4, 4, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.layer(self.layer(x))


def test_operations_without_a_backward_rule_are_named():
    with pytest.raises(ExportError, match=r"parameter layer\.(bias|kernel) is used more than once"):
        compile_training(Tied())
    normed = Body([nnx.BatchNorm(3, rngs=nnx.Rngs(0))], (4, 4, 3), 2, rngs=nnx.Rngs(0))
    with pytest.raises(ExportError, match=r"parts\.0 \(BatchNorm\) couples the examples"):
        compile_training(normed)
    with pytest.raises(ExportError, match=r"recurrent \(RNN\) uses its parameters at every step"):
        compile_training(architectures.create("gru", input_shape=(3, 2, 1), rngs=0))
    soft = Body([conv(3, 4), lambda x: nnx.softmax(x, axis=-1)], (4, 4, 3), 2, rngs=nnx.Rngs(0))
    with pytest.raises(ExportError, match="softmax"):
        compile_training(soft)


def test_a_missing_compiler_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(ExportError, match="there is no C compiler"):
        compile_training(small())


class Head(nnx.Module):
    """A layer and a function of its output."""

    def __init__(self, function, layer=None):
        self.layer = layer or nn.Linear(6, 5, rngs=nnx.Rngs(0))
        self.function = function
        self.input_shape = (6,)

    def __call__(self, x):
        return self.function(self.layer(x))


def test_derivatives_that_are_not_those_of_the_c_are_found_though_the_c_is_known():
    compile_training(pruned(Body([conv(1, 2), nnx.relu], (4, 4, 1), 3, rngs=nnx.Rngs(0))))
    stopped = Body([conv(1, 2), lambda x: nnx.relu(jax.lax.stop_gradient(x))], (4, 4, 1), 3, rngs=nnx.Rngs(0))
    with pytest.raises(ExportError, match="the compiled gradient differs from JAX's"):
        compile_training(pruned(stopped))


def test_the_check_uses_other_images_before_it_refuses(monkeypatch, tmp_path):
    draws = []

    def rounded(step, images, labels):
        value, found = gradient(step, images, labels)
        draws.append(len(images))
        return value, {path: leaf + (len(draws) == 1) for path, leaf in found.items()}

    gradient = step.TrainingStep.gradient
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(step.TrainingStep, "gradient", rounded)
    compile_training(small())
    assert len(draws) == 2


def test_weights_that_a_saved_network_lost_are_random_in_the_check():
    """If all that a unit sees is zero, its outputs are equal, and rounding chooses the largest in a window."""
    model = small()
    for _, layer in nnx.iter_modules(model):
        if nn.is_masked(layer):
            layer.kernel[...] = layer.masked_kernel()
    copy = compile_step._typical(model, trace.trace(model, model.input_shape, dropout=False).parameters)
    kernels = [np.asarray(layer.kernel[...]) for _, layer in nnx.iter_modules(copy) if nn.is_masked(layer)]
    assert kernels
    assert all(np.count_nonzero(kernel) == kernel.size for kernel in kernels)
    assert all(0.3 < kernel.std() * np.prod(kernel.shape[:-1]) ** 0.5 < 3 for kernel in kernels)


def test_outputs_that_are_left_out_have_no_gradient():
    model = Head(lambda x: x[:, 3:0:-1])
    images, labels = batch_for((6,), 3)
    value, gradient = compile_training(model).gradient(images, labels)
    expected, wanted = jax_gradient(model, images, labels)
    assert value == pytest.approx(expected, rel=1e-5)
    for path, leaf in wanted.items():
        np.testing.assert_allclose(gradient[path], leaf, atol=1e-6)


MODELS = {
    "outputs": (lambda: Head(lambda x: x.reshape(x.shape[0], 5, 1)), r"outputs of one example have shape \[5, 1\]"),
    "product": (lambda: Head(lambda x: x * nnx.sigmoid(x.mean(-1, keepdims=True))), r"\(Binary\) has no backward rule"),
    "function": (lambda: Head(jax.numpy.sin), "sin has no backward rule"),
    "dropout": (
        lambda: Body([nnx.Dropout(0.5, broadcast_dims=(1, 2), rngs=nnx.Rngs(0))], (3, 3, 2), 2, rngs=nnx.Rngs(0)),
        r"layer parts\.0 \(Dropout\) has broadcast_dims",
    ),
    "attention": (
        lambda: Body([nnx.MultiHeadAttention(2, 4, decode=False, rngs=nnx.Rngs(0))], (5, 4), 2, rngs=nnx.Rngs(0)),
        r"\(Product\) has no backward rule",
    ),
    "half precision": (
        lambda: Body(
            [nn.Conv(1, 2, (3, 3), dtype=jax.numpy.bfloat16, rngs=nnx.Rngs(0))], (4, 4, 1), 2, rngs=nnx.Rngs(0)
        ),
        "bfloat16",
    ),
    "no parameters": (lambda: Head(lambda x: x, nnx.Dropout(0.5, rngs=nnx.Rngs(0))), "no parameters to train"),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_that_cannot_be_trained_are_refused_by_name(name):
    make, message = MODELS[name]
    with pytest.raises(ExportError, match=message):
        compile_training(make())


def test_a_gradient_that_is_not_finite_keeps_the_last_good_weights():
    # The logits are finite, their gradient times the first layer's weights is not.
    model = Body([nn.Linear(2, 2, rngs=nnx.Rngs(0)), nn.Linear(2, 2, rngs=nnx.Rngs(1))], (2,), 2, rngs=nnx.Rngs(2))
    compile_training(model)
    model.parts[0].kernel[...] = model.parts[0].kernel[...] * 1e-30
    for layer in (model.parts[1], model.head):
        layer.kernel[...] = layer.kernel[...] * 1e25
    step = compile_training(model)
    before = step.state()
    with pytest.raises(TrainingError, match="the gradient of step 1 is not finite; the weights are those of step 0"):
        step(np.full((3, 2), 1e-15, np.float32), np.array([0, 1, 0]))
    for key, value in before.items():
        np.testing.assert_array_equal(value, step.state()[key])


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(libraries, "cache_folder", lambda: tmp_path / "file" / "libraries")
    with pytest.raises(RunError, match="cannot make the folder"):
        compile_training(small())
