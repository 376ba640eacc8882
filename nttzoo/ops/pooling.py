"""Max pooling with a derivative that is cheap to differentiate again."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float


@jax.custom_jvp
def max_pool(x: Float[Array, "n h w c"]) -> Float[Array, "n h//2 w//2 c"]:
    """2x2 max pooling with stride 2; an odd last row or column is dropped; ties go to the first pixel in C order."""
    return nnx.max_pool(x, window_shape=(2, 2), strides=(2, 2), padding="VALID")


@max_pool.defjvp
def _max_pool_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # XLA's own derivative scatters. The argmax is piecewise constant: computed once per example, on the values, it
    # leaves a selection that is cheap to differentiate again and shared by all outputs of a tangent kernel.
    (x,), (tangent,) = primals, tangents
    top = max_pool(x)
    values = _blocks(x)
    pixel = jnp.arange(4).reshape(1, 1, 2, 1, 2, 1)
    # NaN, which equals nothing, counts as largest: it must not vanish here.
    largest = (values == top[:, :, None, :, None]) | jnp.isnan(values)
    first = jnp.where(largest, pixel, 4).min((2, 4), keepdims=True)
    return top, jnp.where(pixel == first, _blocks(tangent), 0).sum((2, 4))


def _blocks(x: Float[Array, "n h w c"]) -> Float[Array, "n h//2 2 w//2 2 c"]:
    n, h, w, c = x.shape
    return x[:, : h // 2 * 2, : w // 2 * 2].reshape(n, h // 2, 2, w // 2, 2, c)
