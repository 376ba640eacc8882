"""Models for the tests of kernels of any model."""

import jax.numpy as jnp
import numpy as np
from flax import nnx
from oracle import DOUBLE, close, kernel_alone

from nttzoo.ntk import empirical_ntk


def linear(inputs=4, outputs=4, seed=0, **options):
    return nnx.Linear(inputs, outputs, rngs=nnx.Rngs(seed), bias_init=nnx.initializers.normal(1.0), **options, **DOUBLE)


class Model(nnx.Module):
    """Two layers and a head; what the cases change is how they are called."""

    def __init__(self):
        self.a, self.b, self.head = linear(seed=1), linear(seed=2), linear(4, 2, seed=3)

    def __call__(self, x):
        return self.head(jnp.tanh(self.body(x)))

    def body(self, x):
        return self.b(jnp.tanh(self.a(x)))


def model_with(**methods):
    """A model whose forward pass or construction is another one."""
    change = methods.pop("change", None)
    model = type("Model", (Model,), methods)()
    if change:
        change(model)
    return model


X = np.random.default_rng(0).normal(size=(3, 4))


def check(model, x, tangents):
    close(empirical_ntk(model, x, tangents=tangents), kernel_alone(model, x, tangents))
