"""Networks and batches for the tests of compiled training."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from nttzoo import architectures, nn


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


def small(seed=0, **options):
    model = architectures.create("lenet300", num_classes=4, input_shape=(5, 5, 1), rngs=seed, **options)
    return pruned(model, 0.3)
