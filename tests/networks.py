"""Small networks of many kinds, in double precision, for the tangent kernel's tests."""

import jax
import jax.numpy as jnp
from flax import nnx

from nttzoo import architectures

DOUBLE = {"param_dtype": jnp.float64}


class Strided(nnx.Module):
    """SAME padding, strides, dilation, groups."""

    def __init__(self, rngs):
        self.first = nnx.Conv(2, 4, (3, 3), strides=2, rngs=rngs, **DOUBLE)
        self.grouped = nnx.Conv(4, 6, (3, 2), feature_group_count=2, kernel_dilation=2, rngs=rngs, **DOUBLE)
        self.last = nnx.Linear(6, 3, use_bias=False, rngs=rngs, **DOUBLE)

    def __call__(self, x):
        x = jax.nn.relu(self.first(x))
        return self.last(jnp.tanh(self.grouped(x)).mean((1, 2)))


class Residual(nnx.Module):
    """A residual block with norms, one of them shared."""

    def __init__(self, rngs):
        self.stem = nnx.Conv(2, 4, (3, 3), padding="CIRCULAR", rngs=rngs, **DOUBLE)
        self.norm = nnx.GroupNorm(4, 2, rngs=rngs, **DOUBLE)
        self.batch = nnx.BatchNorm(4, rngs=rngs, **DOUBLE)
        self.conv = nnx.Conv(4, 4, (3, 3), rngs=rngs, **DOUBLE)
        self.last = nnx.Linear(4, 3, rngs=rngs, **DOUBLE)

    def __call__(self, x):
        x = self.batch(self.stem(x))
        for _ in range(2):
            x = x + self.conv(jax.nn.gelu(self.norm(x)))
        return self.last(x.mean((1, 2)))


class Unrolled(nnx.Module):
    """A GRU, unrolled over time: its layers are called at every step."""

    def __init__(self, rngs):
        self.cell = nnx.GRUCell(3, 4, rngs=rngs, **DOUBLE)
        self.last = nnx.Linear(4, 2, rngs=rngs, **DOUBLE)

    def __call__(self, x):
        state = jnp.zeros((len(x), 4), x.dtype)
        for t in range(x.shape[1]):
            state, _ = self.cell(state, x[:, t])
        return self.last(state)


class Attention(nnx.Module):
    """Self-attention with a LayerNorm."""

    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(4, rngs=rngs, **DOUBLE)
        self.attention = nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs, **DOUBLE)
        self.last = nnx.Linear(4, 2, rngs=rngs, **DOUBLE)

    def __call__(self, x):
        x = x + self.attention(self.norm(x))
        return self.last(x.mean(1))


class Scanned(nnx.Module):
    """A GRU inside nnx.scan, a free parameter, and a kernel used outside its layer: nothing that taps could see."""

    def __init__(self, rngs):
        self.recurrent = nnx.RNN(nnx.GRUCell(3, 4, rngs=rngs, **DOUBLE))
        self.shift = nnx.Param(jnp.full((3,), 0.3))
        self.tied = nnx.Linear(4, 4, rngs=rngs, **DOUBLE)
        self.last = nnx.Linear(4, 2, rngs=rngs, **DOUBLE)

    def __call__(self, x):
        x = self.recurrent(x * self.shift[...].reshape(1, 1, 3))[:, -1]
        return self.last(jnp.tanh(self.tied(x)) @ self.tied.kernel[...].T)


class Tokens(nnx.Module):
    """An embedding of integer tokens."""

    def __init__(self, rngs):
        self.embed = nnx.Embed(5, 3, rngs=rngs, **DOUBLE)
        self.last = nnx.Linear(3, 2, rngs=rngs, **DOUBLE)

    def __call__(self, tokens):
        return self.last(jnp.tanh(self.embed(tokens)).mean(1))


def paper(name, shape, *, classes=3, seed=0):
    network = architectures.create(name, num_classes=classes, input_shape=shape, rngs=seed)
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float64) if leaf.dtype == jnp.float32 else leaf, network)


# name -> (model, shape of one example)
BUILDERS = {
    "lenet300": lambda: (paper("lenet300", (5, 4, 1)), (5, 4, 1)),
    "lenet5": lambda: (paper("lenet5", (16, 16, 1)), (16, 16, 1)),
    "conv4": lambda: (paper("conv4", (16, 16, 1)), (16, 16, 1)),
    "strided": lambda: (Strided(nnx.Rngs(1)), (7, 6, 2)),
    "residual": lambda: (Residual(nnx.Rngs(1)), (4, 5, 2)),
    "gru": lambda: (Unrolled(nnx.Rngs(1)), (3, 3)),
    "gru_rows": lambda: (paper("gru", (4, 3, 1)), (4, 3, 1)),
    "ds_cnn": lambda: (paper("ds_cnn", (6, 5, 1)), (6, 5, 1)),
    "resnet20": lambda: (paper("resnet20", (8, 8, 3)), (8, 8, 3)),
    "attention": lambda: (Attention(nnx.Rngs(1)), (3, 4)),
}

LARGE = ("conv4", "ds_cnn", "resnet20")  # take seconds to compile


def build(name):
    """(model in evaluation mode, x1 of 3 examples, x2 of 2 examples)."""
    model, shape = BUILDERS[name]()
    model.eval()
    keys = jax.random.split(jax.random.key(2), 2)
    return model, *(jax.random.normal(key, (n, *shape), jnp.float64) for key, n in zip(keys, (3, 2), strict=True))
