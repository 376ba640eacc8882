"""Keys and generators from an argument `rngs`: an `nnx.Rngs`, a JAX key, or a number."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from nttzoo._util.checks import check_seed

RngsLike = nnx.Rngs | Array | int


def as_key(rngs: Any, name: str = "rngs") -> Array:
    """A JAX key: the next one of an `nnx.Rngs`, a key itself, or the key of a number."""
    if isinstance(rngs, nnx.Rngs):
        return rngs()
    if isinstance(rngs, jax.Array) and (_is_typed(rngs) or (rngs.dtype == jnp.uint32 and rngs.ndim == 1)):
        return rngs
    return jax.random.key(check_seed(rngs, name))


def as_generator(rngs: Any, name: str = "rngs") -> np.random.Generator:
    """A NumPy generator for work on the host, seeded by a number, or by the bits of a key."""
    if isinstance(rngs, nnx.Rngs | jax.Array):
        key = as_key(rngs, name)
        words = jax.random.key_data(key) if _is_typed(key) else key
        return np.random.default_rng([int(word) for word in np.asarray(words)])
    return np.random.default_rng(check_seed(rngs, name))


def _is_typed(key: Array) -> bool:
    return bool(jnp.issubdtype(key.dtype, jax.dtypes.prng_key))
