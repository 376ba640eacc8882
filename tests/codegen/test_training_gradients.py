"""Gradients of the compiled training step against JAX."""

from __future__ import annotations

import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from training_networks import PARTS, Body, Residual, batch_for, conv, jax_gradient, pooled, pruned

import nttzoo
from nttzoo import architectures, nn
from nttzoo.codegen.training import compile_training
from nttzoo.errors import ExportError

BEYOND = ("ds_cnn", "resnet20")  # networks that the paper does not have


pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")


def assert_same_gradient(model, *, loss="cross_entropy", n=5, tolerance=1e-5, outputs=4):
    step = compile_training(model, loss=loss, threads=2)
    images, labels = batch_for(model.input_shape, outputs, n)
    value, gradient = step.gradient(images, labels)
    expected_value, expected = jax_gradient(model, images, labels, loss)
    assert value == pytest.approx(expected_value, rel=1e-5)
    largest = max(np.abs(leaf).max() for leaf in expected.values())
    assert expected.keys() == gradient.keys()
    for path, leaf in expected.items():
        np.testing.assert_allclose(gradient[path], leaf, atol=tolerance * largest, err_msg=str(path))
    logits = step.logits(images)
    frozen = nnx.clone(model)
    frozen.eval()
    np.testing.assert_allclose(logits, frozen(jnp.asarray(images)), atol=1e-5 * np.abs(logits).max() + 1e-6)


@pytest.mark.parametrize("name", PARTS)
def test_gradients_of_every_operator_are_those_of_jax(name):
    model = Body(
        [nnx.clone(p) if isinstance(p, nnx.Module) else p for p in PARTS[name]], (7, 6, 3), 4, rngs=nnx.Rngs(3)
    )
    assert_same_gradient(pruned(model))


@pytest.mark.parametrize("loss", ["cross_entropy", "squared"])
@pytest.mark.parametrize("n", [1, 16, 33])
def test_gradients_for_any_batch_and_loss(n, loss):
    model = pruned(architectures.create("lenet300", num_classes=4, input_shape=(5, 5, 1), rngs=0))
    assert_same_gradient(model, loss=loss, n=n)


@pytest.mark.parametrize("name", ["lenet5", *(pytest.param(n, marks=pytest.mark.slow) for n in ("conv4", *BEYOND))])
def test_gradients_of_the_registered_networks(name):
    model = architectures.create(name, rngs=0)
    nttzoo.prune(model, "random", density=0.05, scheme="erk" if name in BEYOND else "layerwise", rngs=0)
    assert_same_gradient(model, n=3, outputs=10)


@st.composite
def random_bodies(draw):
    """Random sequences of layers, functions, pooling and residual blocks."""
    parts, channels, size = [], draw(st.integers(1, 3)), 9
    inputs = channels
    for index in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["conv", "conv", "function", "pool", "residual", "norm", "dropout"]))
        if kind == "conv":
            outputs = draw(st.integers(1, 5))
            options = {
                "strides": draw(st.sampled_from([1, 1, 2, (1, 2)])),
                "kernel_dilation": draw(st.sampled_from([1, 1, 2])),
                "padding": draw(st.sampled_from(["SAME", "SAME", ((1, 0), (0, 2))])),
                "use_bias": draw(st.booleans()),
            }
            groups = channels if draw(st.integers(0, 3)) == 0 else 1
            outputs *= groups
            parts.append(
                conv(channels, outputs, draw(st.integers(1, 3)), seed=index, feature_group_count=groups, **options)
            )
            channels = outputs
        elif kind == "function":
            parts.append(draw(st.sampled_from([nnx.relu, nnx.relu, nnx.tanh, nnx.leaky_relu, nnx.sigmoid])))
        elif kind == "pool":
            parts.append(pooled(draw(st.sampled_from(["max", "average"])), (2, 2), None, "SAME"))
        elif kind == "residual":
            channels += channels % 2
            parts.append(conv(_channels(parts, inputs), channels, 1, seed=index))
            parts.append(Residual(channels, draw(st.sampled_from([1, 2])), seed=index))
        elif kind == "norm":
            parts.append(nnx.GroupNorm(channels, num_groups=1, rngs=nnx.Rngs(index)))
        else:
            parts.append(nnx.Dropout(0.3, rngs=nnx.Rngs(index)))
    return Body(parts, (size, size - 1, inputs), 4, rngs=nnx.Rngs(7))


def _channels(parts, inputs):
    """How many channels the last convolution makes."""
    for part in reversed(parts):
        if isinstance(part, nn.Conv):
            return part.out_features
        if isinstance(part, Residual):
            return part.conv2.out_features
    return inputs


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(random_bodies(), st.integers(0, 3))
def test_gradients_of_random_networks_are_those_of_jax(model, seed):
    try:
        assert_same_gradient(pruned(model, 0.5, seed), n=3, tolerance=2e-5)
    except ExportError as error:  # refused is fine, wrong is not
        if "no backward rule" not in str(error):
            raise
