"""The compiled training step beside JAX: gradients, updates, dropout, threads, faults."""

from __future__ import annotations

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from training_networks import Body, batch_for, conv, pooled, pruned, small

from nttzoo import architectures, nn
from nttzoo._util import libraries
from nttzoo.codegen.training import UpdateRule, compile_training, source

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")


RULES = {
    "adam": (UpdateRule("adam"), optax.adam(1e-3)),
    "adamw": (UpdateRule("adam", weight_decay=0.1), optax.adamw(1e-3, weight_decay=0.1)),
    "sgd": (UpdateRule("sgd"), optax.sgd(1e-3)),
    "momentum": (UpdateRule("sgd", momentum=0.9), optax.sgd(1e-3, momentum=0.9)),
    "nesterov": (UpdateRule("sgd", momentum=0.9, nesterov=True), optax.sgd(1e-3, momentum=0.9, nesterov=True)),
    "decay": (
        UpdateRule("sgd", momentum=0.9, weight_decay=0.1),
        optax.chain(optax.add_decayed_weights(0.1), optax.sgd(1e-3, momentum=0.9)),
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_a_hundred_steps_follow_optax(name):
    # Smooth: a rectifier magnifies rounding, as a unit that it switches on an example earlier or later changes a
    # gradient as a whole; and Adam takes a whole step even where a gradient is nothing but rounding.
    hidden = nn.Linear(25, 20, rngs=nnx.Rngs(0))
    model = pruned(Body([lambda x: x.reshape(x.shape[0], -1), hidden, nnx.tanh], (5, 5, 1), 4, rngs=nnx.Rngs(1)), 0.3)
    rule, transformation = RULES[name]
    step = compile_training(model, optimizer=rule, learning_rate=1e-3)
    images, labels = batch_for((5, 5, 1), 4, n=40)
    for _ in range(100):
        value = step(images, labels)
    with jax.enable_x64(True):
        expected, exact = optax_training(model, transformation, images, labels, np.float64)
    assert value == pytest.approx(expected, rel=1e-5)
    before = nn.masked_layers(model)
    for path, layer in nn.masked_layers(step.model()).items():
        kept, wanted = np.asarray(layer.mask[...]), exact[(*path, "kernel")]
        moved = np.abs(wanted - np.asarray(before[path].kernel[...]))[kept].max()
        assert moved > 1e-3
        # A hundred roundings of weights around one.
        np.testing.assert_allclose(np.asarray(layer.kernel[...])[kept], wanted[kept], rtol=0, atol=3e-6)


def optax_training(model, transformation, images, labels, dtype):
    """The last loss, and the parameters by path after a hundred steps."""
    graph, params, rest = nn.split_params(model)
    params = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), dtype), params)
    state = transformation.init(params)

    @jax.jit
    def step(params, state):
        def loss(params):
            logits = nn.merge_params(graph, params, rest)(images.astype(dtype))
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = transformation.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    for _ in range(100):
        params, state, value = step(params, state)
    return float(value), {path: np.asarray(leaf[...]) for path, leaf in nnx.to_flat_state(params)}


def test_masks_and_pruned_weights_stay():
    model = small()
    step = compile_training(model)
    images, labels = batch_for((5, 5, 1), 4)
    for _ in range(3):
        step(images, labels)
    after = step.model()
    for path, layer in nn.masked_layers(model).items():
        other = nn.masked_layers(after)[path]
        np.testing.assert_array_equal(layer.mask[...], other.mask[...])
        pruned_away = ~np.asarray(layer.mask[...])
        np.testing.assert_array_equal(layer.kernel[...][pruned_away], other.kernel[...][pruned_away])
        assert (np.asarray(layer.kernel[...]) != np.asarray(other.kernel[...]))[~pruned_away].any()


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_the_number_of_threads_changes_no_bit(threads):
    model = pruned(
        Body([conv(3, 4), pooled("max"), nnx.relu, nnx.Dropout(0.5, rngs=nnx.Rngs(0))], (8, 8, 3), 4, rngs=nnx.Rngs(0))
    )
    images, labels = batch_for((8, 8, 3), 4, n=300)
    states = []
    for count in (1, threads):
        step = compile_training(model, threads=count, seed=5)
        for _ in range(4):
            step(images, labels)
        states.append(step.state())
    for key, value in states[0].items():
        np.testing.assert_array_equal(value, states[1][key])


def test_where_no_thread_can_be_started_one_does_all(monkeypatch):
    real = source.kernels.text

    def refusing(file, /, **marks):
        return real(file, **marks).replace("pthread_create(threads + i, 0, start, members + i)", "(start != 0)")

    model = pruned(Body([], (4, 4, 1), 4, rngs=nnx.Rngs(0)))
    images, labels = batch_for((4, 4, 1), 4, n=40)
    one = compile_training(model, threads=1)
    monkeypatch.setattr(source.kernels, "text", refusing)
    refused = compile_training(model, threads=3)
    assert refused(images, labels) == one(images, labels)
    np.testing.assert_array_equal(refused.state()["theta"], one.state()["theta"])


def test_a_saved_state_goes_on_bit_for_bit():
    model = pruned(Body([nnx.Dropout(0.5, rngs=nnx.Rngs(0))], (4, 4, 1), 4, rngs=nnx.Rngs(0)))
    images, labels = batch_for((4, 4, 1), 4, n=20)
    through, first = (compile_training(model, seed=3) for _ in range(2))
    for _ in range(6):
        through(images, labels)
    for _ in range(3):
        first(images, labels)
    second = compile_training(model, seed=3)
    second.restore(first.state())
    for _ in range(3):
        second(images, labels)
    for key, value in through.state().items():
        np.testing.assert_array_equal(value, second.state()[key])


def test_dropout_keeps_the_right_fraction_and_scale():
    model = pruned(Body([nnx.Dropout(0.25, rngs=nnx.Rngs(0))], (10, 10, 1), 2, rngs=nnx.Rngs(0)), 1.0)
    model.head.kernel[...] = jnp.ones_like(model.head.kernel[...]) / 100
    model.head.bias[...] = jnp.zeros(2)
    # The gradient of the bias does not depend on dropout; that of a weight is the dropped input times it.
    step = compile_training(model, optimizer="sgd", learning_rate=1.0, loss="squared")
    images, labels = np.ones((64, 10, 10, 1), np.float32), np.zeros(64, np.int32)
    step(images, labels)
    before, after = (np.asarray(m.head.kernel[...])[:, 1] for m in (model, step.model()))
    moved = before - after  # mean over images of dropped input * output
    assert moved.mean() == pytest.approx(1.0, abs=0.05)
    fresh = compile_training(model, optimizer="sgd", learning_rate=1.0, loss="squared", seed=1)
    fresh(images, labels)
    assert not np.array_equal(np.asarray(fresh.model().head.kernel[...]), np.asarray(step.model().head.kernel[...]))


def test_one_library_for_all_masks(tmp_path, monkeypatch):
    built = []
    real = libraries._make
    monkeypatch.setattr(libraries, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(libraries, "_make", lambda *a: (built.append(1), real(*a))[1])
    for seed in range(3):
        model = pruned(architectures.create("lenet300", num_classes=3, input_shape=(4, 4, 1), rngs=0), 0.3, seed)
        compile_training(model)
    assert len(built) == 1
