"""Checks of the examples and the model of a kernel."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from nttzoo.errors import ModelError, OptionError, ShapeError
from nttzoo.nn import path_name


def as_array(name: str, value: Any) -> Array:
    """A JAX array, or an error that names the argument."""
    try:
        return jnp.asarray(value)
    except (OverflowError, TypeError, ValueError) as error:
        raise OptionError(f"{name} is not an array of numbers: {error}") from error


def check_inputs(model: nnx.Module, x1: Any, x2: Any) -> tuple[Array, Array]:
    """The two sets of examples as arrays; raises if they or the model's mode are invalid."""
    same = x2 is None or x2 is x1
    x1 = as_array("x1", x1)
    x2 = x1 if same else as_array("x2", x2)
    embeds = any(isinstance(module, nnx.Embed) for _, module in nnx.iter_modules(model))
    for name, x in (("x1", x1), ("x2", x2)):
        if x.ndim == 0 or len(x) == 0:
            raise ShapeError(f"{name} is empty (shape {list(x.shape)}); a kernel needs at least one example.")
        if not jnp.issubdtype(x.dtype, jnp.floating) and not embeds:
            raise ShapeError(
                f"{name} has type {x.dtype}; a kernel needs floating-point examples: standardize them first."
            )
    if x1.shape[1:] != x2.shape[1:] or x1.dtype != x2.dtype:
        raise ShapeError(
            f"x1 and x2 must hold examples of one shape and type; got {x1.dtype} {list(x1.shape[1:])} and "
            f"{x2.dtype} {list(x2.shape[1:])}."
        )
    for path, module in nnx.iter_modules(model):
        drops = isinstance(module, nnx.Dropout) and module.rate > 0 and not module.deterministic
        drops |= isinstance(module, nnx.MultiHeadAttention) and module.dropout_rate > 0 and not module.deterministic
        batch = isinstance(module, nnx.BatchNorm) and not module.use_running_average
        if drops or batch:
            raise ModelError(
                f"'{path_name(path)}' ({type(module).__name__}) is in training mode, where an example's output depends "
                "on chance or on the other examples. Call model.eval() first."
            )
    try:
        y = jax.eval_shape(lambda x: nnx.clone(model)(x), jax.ShapeDtypeStruct((2, *x1.shape[1:]), x1.dtype))
    except (TypeError, ValueError) as error:
        raise ShapeError(
            f"{type(model).__name__} does not take a batch of two examples of shape {list(x1.shape[1:])}: {error}"
        ) from error
    if not hasattr(y, "shape") or len(y.shape) != 2 or y.shape[0] != 2 or y.shape[1] == 0:
        raise ModelError(f"a kernel needs a model with outputs [n, o]; {type(model).__name__} gives {y}.")
    if not jax.tree.leaves(nnx.state(model, nnx.Param)):
        raise ModelError(f"{type(model).__name__} has no parameters (nnx.Param), so it has no tangent kernel.")
    for path, parameter in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        if jnp.issubdtype(parameter[...].dtype, jnp.complexfloating):
            raise ModelError(f"the parameter {path_name(path)} is complex; a kernel needs real parameters.")
    return x1, x2


def count_outputs(model: nnx.Module, x: Any) -> int:
    """How many outputs the model has for an example."""
    return jax.eval_shape(lambda x: nnx.clone(model)(x), x).shape[1]
