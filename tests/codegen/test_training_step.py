"""The compiled training step beside JAX: gradients, updates, dropout, threads, faults."""

from __future__ import annotations

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nttzoo
from nttzoo import architectures, codegen, nn
from nttzoo.codegen.training import UpdateRule, compile_training, source
from nttzoo.errors import ExportError

BEYOND = ("ds_cnn", "resnet20")  # networks that the paper does not have

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")


class Body(nnx.Module):
    """A model of a list of parts, each a layer or a function."""

    def __init__(self, parts, input_shape, outputs, *, rngs):
        self.parts = nnx.List([part for part in parts if isinstance(part, nnx.Module)])
        self.order = tuple(None if isinstance(part, nnx.Module) else part for part in parts)
        self.input_shape = input_shape
        self.eval()
        size = jax.eval_shape(lambda x: self.body(x), jnp.zeros((1, *input_shape))).size
        self.train()
        self.head = nn.Linear(size, outputs, rngs=rngs)

    def body(self, x):
        layers = iter(self.parts)
        for function in self.order:
            x = next(layers)(x) if function is None else function(x)
        return x.reshape(x.shape[0], -1)

    def __call__(self, x):
        return self.head(self.body(x))


def conv(inputs, outputs, window=3, *, seed=0, **options):
    return nn.Conv(inputs, outputs, (window, window), rngs=nnx.Rngs(seed), **options)


def pooled(kind, window=(2, 2), strides=None, padding="VALID", **options):
    function = nnx.max_pool if kind == "max" else nnx.avg_pool
    return lambda x: function(x, window_shape=window, strides=strides or window, padding=padding, **options)


def pruned(model, density=0.4, seed=0):
    rng = np.random.default_rng(seed)
    for layer in nn.masked_layers(model).values():
        mask = rng.random(layer.mask.shape) < density
        mask.flat[rng.integers(mask.size)] = True
        layer.mask[...] = jnp.asarray(mask)
    return model


def batch_for(shape, classes, n=5, seed=1):
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(n, *shape)).astype(np.float32)
    return images, rng.integers(0, classes, n).astype(np.int32)


def jax_gradient(model, images, labels, loss="cross_entropy"):
    """Loss and gradient in double precision, so that all of the rounding is the C's."""
    with jax.enable_x64(True):
        return _double_gradient(model, images.astype(np.float64), labels, loss)


def _double_gradient(model, images, labels, loss):
    frozen = nnx.clone(model)
    frozen.eval()
    graph, params, rest = nn.split_params(frozen)
    params = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), jnp.float64), params)

    def mean_loss(params):
        logits = nn.merge_params(graph, params, rest)(jnp.asarray(images))
        assert logits.dtype == jnp.float64
        if loss == "squared":
            return (0.5 * (logits - jax.nn.one_hot(labels, logits.shape[-1])) ** 2).sum(-1).mean()
        return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(labels)).mean()

    value, gradient = jax.jit(jax.value_and_grad(mean_loss))(params)
    return float(value), {path: np.asarray(leaf[...]) for path, leaf in nnx.to_flat_state(gradient)}


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


class Residual(nnx.Module):
    """Two convolutions with group normalization beside the identity."""

    def __init__(self, channels, strides=1, seed=0):
        rngs = nnx.Rngs(seed)
        self.strides = strides
        self.conv1 = conv(channels, channels, strides=strides, seed=seed, use_bias=False)
        self.norm1 = nnx.GroupNorm(channels, num_groups=2, rngs=rngs)
        self.conv2 = conv(channels, channels, seed=seed + 1)
        if strides > 1:
            self.shortcut = conv(channels, channels, 1, strides=strides, seed=seed + 2)

    def __call__(self, x):
        y = self.conv2(nnx.relu(self.norm1(self.conv1(x))))
        return nnx.relu(y + (self.shortcut(x) if self.strides > 1 else x))


PARTS = {
    "linear": [],
    "linear relu": [lambda x: x.reshape(x.shape[0], -1), nn.Linear(7 * 6 * 3, 5, rngs=nnx.Rngs(0)), nnx.relu],
    "conv valid": [conv(3, 4, padding="VALID"), nnx.relu],
    "conv same": [conv(3, 4), nnx.relu, conv(4, 5), nnx.relu],
    "conv no bias": [conv(3, 4, use_bias=False), nnx.relu, conv(4, 3, use_bias=False)],
    "conv strides": [conv(3, 4, strides=2), nnx.relu, conv(4, 3, strides=(2, 1))],
    "conv strides valid": [conv(3, 4), nnx.relu, conv(4, 3, 2, strides=(3, 2), padding="VALID"), nnx.relu],
    "conv stride above window": [conv(3, 4), conv(4, 3, 1, strides=2)],
    "conv dilation": [conv(3, 4), nnx.relu, conv(4, 3, kernel_dilation=2), nnx.relu],
    "conv dilation and strides": [conv(3, 4), nnx.relu, conv(4, 3, kernel_dilation=2, strides=3)],
    "conv groups": [conv(3, 4), nnx.relu, conv(4, 6, feature_group_count=2), nnx.relu],
    "depthwise": [conv(3, 6), nnx.relu, conv(6, 6, feature_group_count=6), nnx.relu, conv(6, 4, 1)],
    "padding": [conv(3, 4, padding=((2, 0), (1, 3))), nnx.relu, conv(4, 2, 2, padding=((0, 1), (2, 0)))],
    "even window": [conv(3, 4, 2), nnx.relu, conv(4, 2, 4)],
    "max pool": [conv(3, 4), pooled("max"), nnx.relu, conv(4, 3), nnx.relu],
    "relu max pool": [conv(3, 4), nnx.relu, pooled("max"), conv(4, 3)],
    "max pool odd": [conv(3, 4, padding="VALID"), nnx.relu, pooled("max"), conv(4, 3)],
    "max pool overlapping": [conv(3, 4), nnx.relu, pooled("max", (3, 3), (2, 2)), conv(4, 3)],
    "max pool padded": [conv(3, 4), pooled("max", (3, 3), (2, 2), "SAME"), conv(4, 3)],
    "max pool of the input": [pooled("max"), conv(3, 4)],
    "average pool": [conv(3, 4), nnx.relu, pooled("average"), conv(4, 3)],
    "average pool padded": [conv(3, 4), pooled("average", (3, 3), (1, 1), "SAME"), conv(4, 3)],
    "average pool without pads": [
        conv(3, 4),
        pooled("average", (3, 3), (2, 2), "SAME", count_include_pad=False),
    ],
    "global average": [conv(3, 4), nnx.relu, lambda x: x.mean((1, 2))],
    "leaky relu": [conv(3, 4), nnx.leaky_relu, conv(4, 3), nnx.leaky_relu, pooled("max")],
    "sigmoid": [conv(3, 4), nnx.sigmoid, conv(4, 3), nnx.sigmoid],
    "tanh": [conv(3, 4), nnx.tanh, conv(4, 3), nnx.tanh],
    "gelu": [conv(3, 4), nnx.gelu, conv(4, 3), nnx.gelu],
    "gelu exact": [conv(3, 4), lambda x: nnx.gelu(x, approximate=False), conv(4, 3)],
    "elu": [conv(3, 4), nnx.elu, conv(4, 3)],
    "silu": [conv(3, 4), nnx.silu, conv(4, 3)],
    "hard swish": [conv(3, 4), nnx.hard_swish, conv(4, 3)],
    "relu6": [conv(3, 4), nnx.relu6, conv(4, 3)],
    "group norm": [conv(3, 4), nnx.GroupNorm(4, num_groups=2, rngs=nnx.Rngs(0)), nnx.relu, conv(4, 3)],
    "residual": [conv(3, 4), nnx.relu, Residual(4), Residual(4, seed=5)],
    "residual strides": [conv(3, 4), nnx.relu, Residual(4, 2), Residual(4, 2, seed=5)],
    "dropout": [conv(3, 4), nnx.relu, nnx.Dropout(0.5, rngs=nnx.Rngs(0)), conv(4, 3)],
    "doubled": [conv(3, 4), nnx.relu, lambda x: x + x, conv(4, 3)],
    "constants": [lambda x: (x - 0.5) / 3, conv(3, 4), lambda x: nnx.relu(0.5 - 2 * x), conv(4, 3)],
    "concatenation": [
        conv(3, 4),
        nnx.relu,
        lambda x: jnp.concatenate([x, jnp.ones_like(x[..., :2]), x[..., 1:], -x], -1),
        conv(13, 3),
    ],
    "padded by hand": [conv(3, 4), lambda x: jnp.pad(x, ((0, 0), (1, 2), (0, 1), (0, 0))), conv(4, 3)],
    "norm of a constant group": [
        conv(3, 4),
        lambda x: x * jnp.array([[[[0.0, 0.0, 1.0, 1.0]]]]) + 3,
        nnx.GroupNorm(4, num_groups=2, rngs=nnx.Rngs(0)),
        conv(4, 3),
    ],
    "slices": [conv(3, 4), nnx.relu, lambda x: x[:, 1:] + x[:, :-1], conv(4, 3), lambda x: x[:, ::-1]],
    "transposed": [conv(3, 4), lambda x: x.transpose(0, 2, 1, 3), nnx.relu, conv(4, 3)],
}


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


@pytest.mark.parametrize("name", ["lenet5", "conv4", *(pytest.param(n, marks=pytest.mark.slow) for n in BEYOND)])
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


def small(seed=0, **options):
    model = architectures.create("lenet300", num_classes=4, input_shape=(5, 5, 1), rngs=seed, **options)
    return pruned(model, 0.3)


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
    real = codegen.build._make
    monkeypatch.setattr(codegen.build, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(codegen.build, "_make", lambda *a: (built.append(1), real(*a))[1])
    for seed in range(3):
        model = pruned(architectures.create("lenet300", num_classes=3, input_shape=(4, 4, 1), rngs=0), 0.3, seed)
        compile_training(model)
    assert len(built) == 1
