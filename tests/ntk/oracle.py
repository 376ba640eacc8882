"""Kernels by jax.jacrev of the model itself, in double precision and one example at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import nttzoo
from nttzoo import nn
from nttzoo.nn import layers

DOUBLE = {"param_dtype": jnp.float64}


@jax.custom_jvp
def straight_through(mask, kernel):
    return jnp.where(mask, kernel, 0)


straight_through.defjvps(None, lambda tangent, answer, mask, kernel: tangent)


def kernel_alone(model, x, tangents):
    """The kernel of x with itself. For all tangents, the derivative of every mask is the identity."""
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    with pytest.MonkeyPatch.context() as patch:
        if tangents == "all":
            mask = lambda layer: straight_through(layer.mask[...], layer.kernel[...])  # noqa: E731
            patch.setattr(layers._Masked, "masked_kernel", mask)

        @jax.jit
        def rows(params, example):
            jacobian = jax.jacrev(lambda p: nnx.merge(graph, p, rest, copy=True)(example[None])[0])(params)
            return jnp.concatenate([leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(jacobian)], -1)

        found = jnp.stack([rows(params, example) for example in x])
    return jnp.einsum("nrd,msd->nmrs", found, found)


def pruned_at_random(model, seed=0, density=0.6):
    model = nttzoo.sparsify(model)
    rng = np.random.default_rng(seed)
    for layer in nn.masked_layers(model).values():
        layer.mask[...] = jnp.asarray(rng.random(layer.mask.shape) < density)
    return model


def close(one, two, tolerance=1e-9):
    np.testing.assert_allclose(one, two, rtol=0, atol=tolerance * float(jnp.abs(two).max()))
