"""The batch of a step, drawn on the device from the step's key."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Integer, Key


def draw_batch(key: Key[Array, ""], images: int, size: int) -> Integer[Array, " size"]:
    """Different indices below `images`, every ordered choice equally likely."""
    if 2 * size > images:
        return jax.random.permutation(key, images)[:size]

    # A permutation of all images would cost more than a small network's step. Instead: draw, and draw again whatever
    # repeats an earlier index. All images are treated alike, so no choice is more likely than another.
    def repeats(chosen: Array) -> Array:
        same = chosen[:, None] == chosen[None, :]
        return jnp.any(jnp.tril(same, -1), axis=1)

    def again(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        key, chosen = carry
        key, now = jax.random.split(key)
        return key, jnp.where(repeats(chosen), jax.random.randint(now, (size,), 0, images), chosen)

    key, first = jax.random.split(key)
    start = (key, jax.random.randint(first, (size,), 0, images))
    return lax.while_loop(lambda carry: jnp.any(repeats(carry[1])), again, start)[1]
