"""Kernels of every kind of layer."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from odd_models import Model, X, check, linear
from oracle import DOUBLE, close, kernel_alone, pruned_at_random

from nttzoo.ntk import empirical_ntk, factors

pytestmark = [
    pytest.mark.usefixtures("x64"),
    pytest.mark.filterwarnings("ignore:no fast tangent rule", "ignore:sparsify left"),
]


class Shaped(nnx.Module):
    """One layer of another kind, and a mean over all axes but the last."""

    def __init__(self, layer):
        self.layer = layer

    def __call__(self, x):
        y = jnp.tanh(self.layer(x))
        return jnp.sin(y).mean(tuple(range(1, y.ndim - 1)))


def conv(inputs, outputs, window, **options):
    return nnx.Conv(inputs, outputs, window, rngs=nnx.Rngs(0), **options, **DOUBLE)


def general(inputs, outputs, **options):
    return nnx.LinearGeneral(inputs, outputs, rngs=nnx.Rngs(0), **options, **DOUBLE)


def lora():
    layer = nnx.LoRA(4, 2, 3, base_module=linear(4, 3), rngs=nnx.Rngs(1))
    layer.lora_a = nnx.LoRAParam(layer.lora_a[...].astype(jnp.float64))
    layer.lora_b = nnx.LoRAParam(jnp.ones((2, 3)))
    return layer


LAYERS = {
    "axes not in order": (lambda: general((3, 4), 5, axis=(-1, -2)), (3, 4)),
    "axes in the middle": (lambda: general(3, (2, 5), axis=1), (3, 4)),
    "padding in a list": (lambda: conv(2, 3, (3,), padding=[(1, 2)]), (6, 2)),
    "padding by a number": (lambda: conv(2, 3, (3, 2), padding=[1, (0, 2)], strides=(2, 1)), (6, 5, 2)),
    "reflected": (lambda: conv(2, 4, (2, 3), padding="REFLECT", kernel_dilation=2, feature_group_count=2), (6, 5, 2)),
    "causal": (lambda: conv(2, 3, (3,), padding="CAUSAL"), (5, 2)),
    "stretched": (lambda: conv(2, 3, (2, 2), input_dilation=2, padding=((0, 1), (1, 0))), (3, 4, 2)),
    "transposed": (lambda: nnx.ConvTranspose(2, 3, (2, 3), strides=2, rngs=nnx.Rngs(0), **DOUBLE), (3, 4, 2)),
    "several batch axes": (lambda: conv(2, 3, (2,)), (3, 4, 2)),
    "einsum": (lambda: nnx.Einsum("nta,hab->nthb", (2, 4, 3), (2, 3), rngs=nnx.Rngs(0), **DOUBLE), (3, 4)),
    "low rank": (lora, (4,)),
    "attention": (lambda: nnx.MultiHeadAttention(2, 4, 6, decode=False, rngs=nnx.Rngs(0), **DOUBLE), (3, 4)),
    "recurrent": (lambda: nnx.RNN(nnx.GRUCell(3, 4, rngs=nnx.Rngs(0), **DOUBLE)), (5, 3)),
    "backwards": (lambda: nnx.RNN(nnx.OptimizedLSTMCell(3, 4, rngs=nnx.Rngs(0), **DOUBLE), reverse=True), (5, 3)),
}  # fmt: skip


@pytest.mark.parametrize("tangents", ["all", "active"])
@pytest.mark.parametrize("name", LAYERS)
def test_every_kind_of_layer(name, tangents):
    make, shape = LAYERS[name]
    x = jax.random.normal(jax.random.key(1), (2, *shape), jnp.float64)
    model = Shaped(make())
    check(pruned_at_random(model) if name not in ("einsum", "transposed") else model, x, tangents)


class Stacked(nnx.Module):
    """Three layers whose weights are slices of one array."""

    def __init__(self, call):
        @nnx.vmap(in_axes=0, out_axes=0)
        def make(key):
            return nnx.Linear(4, 4, rngs=nnx.Rngs(key), **DOUBLE)

        self.layers, self.call = make(jax.random.split(jax.random.key(0), 3)), nnx.static(call)

    def __call__(self, x):
        return self.call(self.layers, x)


def in_a_row():
    return nnx.scan(lambda layer, x: jnp.tanh(layer(x)), in_axes=(0, nnx.Carry), out_axes=nnx.Carry)


def side_by_side():
    every = nnx.vmap(lambda layer, x: layer(x), in_axes=(0, None))
    return lambda layers, x: jnp.tanh(every(layers, x)).sum(0)


@pytest.mark.parametrize("tangents", ["all", "active"])
@pytest.mark.parametrize("make", [in_a_row, side_by_side])
def test_weights_in_slices(make, tangents):
    ours, theirs = (pruned_at_random(Stacked(make())) for _ in range(2))  # two, as JAX keeps what it traced
    close(empirical_ntk(ours, jnp.asarray(X), tangents=tangents), kernel_alone(theirs, jnp.asarray(X), tangents))


@pytest.mark.parametrize("recurrent", [False, True])
def test_recurrent_and_ordinary_layers_need_no_exact_jacobian(recurrent):
    model = Shaped(LAYERS["recurrent"][0]()) if recurrent else Model()
    x = jnp.ones((2, 5, 3)) if recurrent else jnp.asarray(X)
    _, found = factors.shares(model, x, None, active=False)
    assert [path for path, share in found.items() if isinstance(share, factors.Rows)] == []
