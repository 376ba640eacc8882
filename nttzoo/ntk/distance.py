"""How far apart two kernels are: the mean squared entry, exact or estimated from some of the outputs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Integer

from nttzoo.errors import OptionError, ShapeError
from nttzoo.ntk.kernel import FindShares, Tangents, check_choice, check_inputs, kernel_blocks
from nttzoo.ntk.shares import shares


def kernel_distance(
    student: nnx.Module,
    teacher: nnx.Module | Float[Array, "n1 n2 o o"],
    x1: Float[Array, "n1 ..."],
    x2: Float[Array, "n2 ..."],
    *,
    tangents: Tangents = "all",
    outputs: Integer[Array, " r"] | None = None,
    memory: int | None = None,
    implementation: FindShares = shares,
) -> Float[Array, ""]:
    """The mean squared entry of K_student(x1, x2) - K_teacher(x1, x2); the teacher is a model or its full kernel.

    `outputs`: indices of r of the o outputs, from which the mean over all is estimated at r / o of the cost: without
    bias if they are drawn uniformly without replacement and r >= 2; a single output sees diagonal entries only. A
    teacher's kernel may also be given for just these outputs, [n1, n2, r, r].
    """
    check_choice("tangents", tangents, ("all", "active"))
    x1, x2 = check_inputs(student, x1, x2)
    total = jax.eval_shape(lambda x: nnx.clone(student)(x), x1).shape[1]
    chosen = None if outputs is None else _check_outputs(outputs, total)
    options: dict[str, Any] = {"trace": False, "memory": memory, "find_shares": implementation}
    ours = kernel_blocks(student, x1, x2, chosen, active=tangents == "active", **options)
    if isinstance(teacher, nnx.Module):
        theirs = kernel_blocks(teacher, x1, x2, chosen, active=tangents == "active", **options)
    else:
        theirs = jnp.asarray(teacher)
        if chosen is not None and theirs.shape[2:] == (total, total):
            theirs = theirs[:, :, chosen[:, None], chosen[None, :]]
    if theirs.shape != ours.shape:
        raise ShapeError(f"the teacher's kernel has shape {list(theirs.shape)}, the student's {list(ours.shape)}.")
    return mean_squared_entry(ours - theirs, total)


def mean_squared_entry(difference: Float[Array, "n m r r"], total: int) -> Float[Array, ""]:
    """The mean squared entry over all `total` outputs, estimated if the difference is that of only r of them."""
    weights = output_weights(total, difference.shape[-1]).astype(difference.dtype)
    return jnp.mean(jnp.einsum("nmrs,rs->nm", jnp.square(difference), weights))


def output_weights(total: int, sampled: int) -> Float[Array, "r r"]:
    """Weights of a block's entries such that their weighted sum estimates the mean over all o x o entries of a block.

    A diagonal entry stands for o / r of its kind, an off-diagonal one for o (o - 1) / (r (r - 1)); each kind counts
    with its share of the o^2 entries.
    """
    diagonal = 1 / (total * sampled)
    beside = (total - 1) / (total * sampled * (sampled - 1)) if sampled > 1 else 0.0
    return jnp.where(jnp.eye(sampled, dtype=bool), diagonal, beside)


def _check_outputs(outputs: Any, total: int) -> Array:
    chosen = jnp.asarray(outputs)
    if chosen.ndim != 1 or not 1 <= len(chosen) <= total or not jnp.issubdtype(chosen.dtype, jnp.integer):
        raise OptionError(f"outputs must be 1 to {total} different indices from 0 to {total - 1}; got {outputs}.")
    if not isinstance(outputs, jax.core.Tracer):
        values = sorted(np.asarray(outputs).tolist())  # NumPy: inside jit, JAX would trace even known values
        if values[0] < 0 or values[-1] >= total or len(set(values)) < len(values):
            raise OptionError(f"outputs must be different indices from 0 to {total - 1}; got {values}.")
    return chosen
