"""The distance of two kernels: the mean squared entry, exact or estimated from some of the outputs.

The best estimate gives each example outputs of its own, spread evenly (`spread_outputs`): then even one output per
example sees all kinds of entries, and the gradient is ten to sixty times less noisy than if all examples shared the
same one or two outputs (`scripts/bench.py estimators`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Integer, Key, Num

from nttzoo._util.checks import check_choice, check_count, check_model
from nttzoo.errors import OptionError, ShapeError
from nttzoo.ntk.api import Tangents
from nttzoo.ntk.blocks import halves_of, kernel_blocks, per_example
from nttzoo.ntk.factors import Outputs
from nttzoo.ntk.inputs import as_array, check_inputs, count_outputs


def kernel_distance(
    student: nnx.Module,
    teacher: nnx.Module | Float[Array, "n1 n2 o o"],
    x1: Num[Array | np.ndarray, "n1 ..."],
    x2: Num[Array | np.ndarray, "n2 ..."],
    *,
    tangents: Tangents = "all",
    outputs: Outputs | Integer[np.ndarray, "..."] = None,
    memory: int | None = None,
) -> Float[Array, ""]:
    """The mean squared entry of K_student(x1, x2) - K_teacher(x1, x2).

    Args:
      student: any NNX module with outputs [n, o].
      teacher: an NNX module, its kernel [n1, n2, o, o], or its kernel of the sampled `outputs` only, [n1, n2, r, r].
      x1: n1 examples.
      x2: n2 examples.
      tangents: "all" or "active", as in `empirical_ntk`.
      outputs: indices of r of the o outputs, from which the mean over all is estimated at r / o of the cost. Either
        [n1 + n2, r], each example's own, as `spread_outputs` draws them: unbiased for any r. Or [r], the same for all
        examples: unbiased if they are drawn uniformly without replacement and r >= 2; r = 1 sees diagonal entries only.
      memory: the number of bytes for intermediate arrays, as in `empirical_ntk`.

    Returns:
      The distance, a scalar; differentiable with respect to the student's parameters.

    Raises:
      ShapeError: if the two kernels do not have the same shape.
      OptionError: if `outputs` are not different indices of outputs.

    Example:
      >>> distance = nttzoo.kernel_distance(student, teacher, images[:32], images[32:64])
    """
    check_model("student", student)
    check_choice("tangents", tangents, ("all", "active"))
    if memory is not None:
        check_count("memory", memory, most=2**63 - 1)
    x1, x2 = check_inputs(student, x1, x2)
    total = count_outputs(student, x1)
    chosen = None if outputs is None else _check_outputs(outputs, total, len(x1) + len(x2))
    options: dict[str, Any] = {"trace": False, "memory": memory}
    ours = kernel_blocks(student, x1, x2, chosen, active=tangents == "active", **options)
    if isinstance(teacher, nnx.Module):
        check_inputs(teacher, x1, x2)
        if (count := count_outputs(teacher, x1)) != total:
            raise ShapeError(f"the teacher has {count} outputs, the student {total}: their kernels cannot be compared.")
        theirs = kernel_blocks(teacher, x1, x2, chosen, active=tangents == "active", **options)
    else:
        theirs = as_array("teacher", teacher)
        if theirs.shape == (len(x1), len(x2), total, total):
            theirs = entries(theirs, *halves_of(chosen, len(x1)))
    if theirs.shape != ours.shape:
        raise ShapeError(f"the teacher's kernel has shape {list(theirs.shape)}, the student's {list(ours.shape)}.")
    return mean_squared_entry(ours - theirs, chosen, total)


def mean_squared_entry(difference: Float[Array, "n m r r"], outputs: Outputs, total: int) -> Float[Array, ""]:
    """The mean squared entry over all `total` outputs, estimated if the difference is that of only r of them."""
    if outputs is None or outputs.ndim == 2:
        return jnp.mean(jnp.square(difference))
    weights = output_weights(total, difference.shape[-1]).astype(difference.dtype)
    return jnp.mean(jnp.einsum("nmrs,rs->nm", jnp.square(difference), weights))


def spread_outputs(key: Key[Array, ""], examples: int, total: int, sampled: int) -> Integer[Array, "examples r"]:
    """Draws each example's own outputs for `kernel_distance`, for a batch whose halves are x1 and x2.

    Within a half, examples take turns through the outputs in random order, so that all outputs are equally frequent.
    The orders of the halves are independent, so that any two outputs of any x1 and x2 are equally likely to meet.

    Args:
      key: a JAX key.
      examples: number of examples in both halves together.
      total: number of outputs of the model.
      sampled: number of outputs per example, r.

    Returns:
      Indices of outputs, [examples, r].

    Raises:
      OptionError: if there are no two equal halves, or not that many outputs.

    Example:
      >>> outputs = nttzoo.ntk.spread_outputs(jax.random.key(0), 64, total=10, sampled=1)
      >>> estimate = nttzoo.kernel_distance(student, teacher, x[:32], x[32:], outputs=outputs)
    """
    if not isinstance(key, jax.Array):
        raise OptionError(f"key is {key!r}; it must be a JAX key, such as jax.random.key(0).")
    for name, value in (("examples", examples), ("total", total), ("sampled", sampled)):
        check_count(name, value)
    if examples % 2 or not 1 <= sampled <= total:
        raise OptionError(
            f"cannot spread {sampled} of {total} outputs over {examples} examples: the batch must have two equal "
            f"halves, and each example 1 to {total} outputs."
        )
    turns = jnp.arange(examples // 2 * sampled) % total
    orders = [jax.random.permutation(half, total) for half in jax.random.split(key)]
    return jnp.concatenate([order[turns].reshape(-1, sampled) for order in orders])


def entries(kernel: Float[Array, "n1 n2 o o"], rows: Outputs, columns: Outputs) -> Float[Array, "n1 n2 r r"]:
    """The entries of a full kernel between the outputs chosen for its rows and for its columns."""
    n1, n2 = kernel.shape[:2]
    rows, columns = per_example(rows, n1), per_example(columns, n2)
    if rows is None or columns is None:
        return kernel
    i, j = jnp.arange(n1)[:, None, None, None], jnp.arange(n2)[None, :, None, None]
    return kernel[i, j, rows[:, None, :, None], columns[None, :, None, :]]


def output_weights(total: int, sampled: int) -> Float[Array, "r r"]:
    """Weights of a block's entries such that their weighted sum estimates the mean over all o x o entries of a block.

    A diagonal entry stands for o / r of its kind, an off-diagonal one for o (o - 1) / (r (r - 1)); each kind counts
    with its share of the o^2 entries.
    """
    diagonal = 1 / (total * sampled)
    beside = (total - 1) / (total * sampled * (sampled - 1)) if sampled > 1 else 0.0
    return jnp.where(jnp.eye(sampled, dtype=bool), diagonal, beside)


def _check_outputs(outputs: Any, total: int, examples: int) -> Array:
    chosen = as_array("outputs", outputs)
    fits = chosen.ndim in (1, 2) and 1 <= chosen.shape[-1] <= total and jnp.issubdtype(chosen.dtype, jnp.integer)
    if not fits or (chosen.ndim == 2 and len(chosen) != examples):
        raise OptionError(
            f"outputs must be 1 to {total} different indices from 0 to {total - 1}, [r] or for each of the {examples} "
            f"examples of x1 and x2 [{examples}, r]; got {chosen.dtype} {list(chosen.shape)}."
        )
    if not isinstance(outputs, jax.core.Tracer):
        values = np.sort(np.asarray(outputs), -1)  # NumPy: inside jit, JAX would trace even known values
        if values.min() < 0 or values.max() >= total or (np.diff(values, axis=-1) == 0).any():
            raise OptionError(f"outputs must be different indices from 0 to {total - 1}; got {values.tolist()}.")
    return chosen
