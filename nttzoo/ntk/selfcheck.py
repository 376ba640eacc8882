"""A numerical check of the kernel's rules against a model's own derivatives, once for every model structure.

Two examples, a few outputs and a random vector u: u K u, from the rules, must be the inner products of gradients that
`jax.vjp` takes of the model itself, one example at a time. If they differ, the exact Jacobian is used instead. And the
outputs for a batch must be those for its examples alone.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.extend.core import jaxprs_in_params
from jaxtyping import Array, Float

from nttzoo.dataflow import Structure, fingerprint, outputs_alone, smallest_batch, trace
from nttzoo.errors import ModelError, NttzooError
from nttzoo.nn import merge_params, split_params
from nttzoo.ntk.factors import at_masked_point, dense_rows, shares
from nttzoo.ntk.layer_rules import gram

OUTPUTS = 4  # the most that are compared
EXAMPLES = 2  # whose kernel is compared
BATCH = 4  # the largest batch: in a batch of two, a roll by two changes nothing
# Compiled for a single use: optimizing would take longer than it saves.
_QUICKLY: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


_trusted: dict[Any, bool] = {}


def checked_shares(model: nnx.Module, x: Array, *, active: bool) -> Any:
    """`shares`, or `dense_rows` for a model whose own derivatives disagree with it."""
    key = Structure(split_params(model)[0], fingerprint(trace(model, x[0]).closed)), active
    if key not in _trusted:
        _trusted[key] = _agrees(model, x, active)
    return shares if _trusted[key] else dense_rows


def forget() -> None:
    """Clears the record of checked structures."""
    _trusted.clear()


def _agrees(model: nnx.Module, x: Array, active: bool) -> bool:
    name = type(model).__name__
    # Outside of any trace. (`ensure_compile_time_eval` would run every constant of the model by itself.)
    with jax.core.eval_context(), jax.default_matmul_precision("highest"):
        model, x = _concrete(model, x)
        tolerance = _tolerance(model, x)
        vectors = _vectors(EXAMPLES, jax.eval_shape(lambda x: nnx.clone(model)(x), x).shape[1])
        seen = _own_derivatives(model, model if active else at_masked_point(model), x, vectors)
        if _differ(seen.alone, seen.together, tolerance):
            raise ModelError(
                f"{name} gives an example a different output in a batch than alone: a kernel "
                "needs a model whose examples do not depend on each other. Call model.eval() first, if it has a "
                "training mode."
            )
        if not active and _differ(seen.alone[:EXAMPLES], seen.at_point, tolerance):
            # The network does not use a kernel only through its mask: the masked point is another network.
            active = True
            seen = _own_derivatives(model, model, x, vectors)
        try:
            found = _by_rules(model, x[:EXAMPLES], vectors, active)
        except NttzooError:
            raise
        except Exception as error:
            return _distrust(name, f"the fast rules fail on it ({type(error).__name__}: {str(error)[:200]})")
        if np.isfinite(seen.products).all() and _differ(seen.products, found, tolerance):
            gap = np.abs(seen.products - found).max() / np.abs(seen.products).max()
            return _distrust(name, f"the fast rules differ from its own derivatives by {gap:.1e}")
    return True


def _distrust(name: str, why: str) -> bool:
    warnings.warn(
        f"the exact Jacobian is used for the kernel of {name}: {why}. This is exact, but slower and needs more memory.",
        stacklevel=2,
    )
    return False


def _differ(one: Array, two: Array, tolerance: float) -> bool:
    ours, theirs = np.asarray(one, np.float64), np.asarray(two, np.float64)
    return bool(np.abs(ours - theirs).max() > tolerance * max(np.abs(ours).max(), np.abs(theirs).max()))


def _vectors(examples: int, total: int) -> Float[np.ndarray, "n o"]:
    """Random, and zero at most outputs."""
    rng = np.random.default_rng(0)
    vectors = np.zeros((examples, total))
    chosen = rng.permutation(total)[:OUTPUTS]
    vectors[:, chosen] = rng.normal(size=(examples, len(chosen)))
    return vectors


class _Own(NamedTuple):
    """The model's outputs in a batch and one by one, and at the point where inner products of gradients are taken."""

    together: Array
    alone: Array
    at_point: Array
    products: Array


def _own_derivatives(model: nnx.Module, point: nnx.Module, x: Array, vectors: np.ndarray) -> _Own:
    graph, params, rest = split_params(model)
    _, *there = split_params(point)
    copies = smallest_batch(model, x[0])

    @partial(jax.jit, compiler_options=_options())
    def run(here: Any, there: Any, x: Array, vectors: Array) -> _Own:
        def outputs(params: Any, rest: Any, example: Array) -> Array:
            return outputs_alone(merge_params(graph, params, rest), example, copies)

        def gradient(example: Array, vector: Array) -> tuple[Array, Array]:
            at_point, pull = jax.vjp(lambda params: outputs(params, there[1], example), there[0])
            leaves = jax.tree.leaves(pull(vector.astype(at_point.dtype))[0])
            real = [leaf.reshape(-1) for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
            return at_point, jnp.concatenate(real)

        alone = lax.map(lambda example: outputs(here[0], here[1], example), x)
        at_point, gradients = lax.map(lambda pair: gradient(*pair), (x[:EXAMPLES], vectors))
        return _Own(merge_params(graph, *here)(x), alone, at_point, gradients @ gradients.T)

    try:
        return run((params, rest), tuple(there), x, jnp.asarray(vectors))
    except Exception as error:
        hint = ""
        if "Reverse-mode differentiation" in str(error):
            hint = " Use lax.scan, nnx.scan or a Python loop where it has a lax.while_loop."
        raise ModelError(f"{type(model).__name__} cannot be differentiated: {str(error)[:300]}{hint}") from error


def _by_rules(model: nnx.Module, x: Array, vectors: np.ndarray, active: bool) -> Array:
    graph, params, rest = split_params(model)
    chosen = np.flatnonzero(vectors.any(0))

    @partial(jax.jit, compiler_options=_options())
    def run(params: Any, rest: Any, x: Array, vectors: Array) -> Array:
        _, found = shares(merge_params(graph, params, rest), x, jnp.asarray(chosen), active=active)
        kernel: Any = sum(gram(share, share, trace=False) for share in found.values())
        return jnp.einsum("nmrs,nr,ms->nm", kernel, vectors, vectors)

    return run(params, rest, x, jnp.asarray(vectors[:, chosen]))


def _options() -> dict[str, Any] | None:
    return _QUICKLY if jax.default_backend() == "cpu" else None


def _concrete(model: nnx.Module, x: Array) -> tuple[Any, Array]:
    """The model with slightly perturbed weights, so that none is zero by chance; random numbers for traced values."""
    rng = np.random.default_rng(1)
    graph, params, rest = split_params(model)

    def known(leaf: Any) -> Any:
        if not isinstance(leaf, jax.core.Tracer):
            return leaf
        if leaf.dtype == bool:
            return jnp.asarray(rng.random(leaf.shape) < 0.5)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(0), leaf.shape) if leaf.shape else jax.random.key(0)
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.asarray(rng.uniform(0.5, 1.5, leaf.shape), leaf.dtype)
        return jnp.zeros(leaf.shape, leaf.dtype)

    def moved(leaf: Any) -> Any:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return known(leaf)
        noise = rng.normal(size=leaf.shape)
        if isinstance(leaf, jax.core.Tracer):
            return jnp.asarray(noise / max(np.prod(leaf.shape[:-1]), 1) ** 0.5, leaf.dtype)
        value = np.asarray(leaf, np.float64)
        scale = np.sqrt(np.mean(np.square(value[np.isfinite(value)]))) if np.isfinite(value).any() else 0.0
        return jnp.asarray(value + 0.1 * (scale or 1.0) * noise, leaf.dtype)

    examples = np.asarray(known(x)) if isinstance(x, jax.core.Tracer) else np.asarray(x[:BATCH])
    examples = np.resize(examples, (max(min(len(x), BATCH), EXAMPLES), *x.shape[1:]))
    if jnp.issubdtype(x.dtype, jnp.floating):
        for i in range(1, len(examples)):
            if any((examples[i] == other).all() for other in examples[:i]):
                examples[i] += rng.normal(size=x.shape[1:])  # equal ones would not reveal a dependence
    return merge_params(graph, jax.tree.map(moved, params), jax.tree.map(known, rest)), jnp.asarray(examples, x.dtype)


def _tolerance(model: nnx.Module, x: Array) -> float:
    """The square root of the rounding error of the least precise type in the model's computation."""

    def types(jaxpr: Any) -> set[Any]:
        own = {var.aval.dtype for equation in jaxpr.eqns for var in equation.outvars if hasattr(var.aval, "dtype")}
        inner = [types(sub) for equation in jaxpr.eqns for sub in jaxprs_in_params(equation.params)]
        return own.union(*inner)

    floating = [dtype for dtype in types(trace(model, x[0]).jaxpr) if jnp.issubdtype(dtype, jnp.floating)]
    return float(max((jnp.finfo(dtype).eps for dtype in floating), default=jnp.finfo(jnp.float32).eps)) ** 0.5
