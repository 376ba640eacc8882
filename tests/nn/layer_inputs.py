"""Arrays and initializers for the tests of layers."""

import jax.numpy as jnp
import numpy as np


def normal(seed, shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


# Initializers that, unlike NNX's, need not be compiled for each shape.
INIT = {
    name: lambda key, shape, dtype, seed=seed: jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)
    for seed, name in enumerate(["kernel_init", "bias_init"])
}
