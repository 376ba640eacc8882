"""`empirical_ntk`: the kernel between two sets of examples, block by block where memory is short."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import psutil
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Integer

from nttzoo.errors import ModelError, OptionError, ShapeError
from nttzoo.nn import Path, merge_params, path_name, split_params
from nttzoo.ntk.layers import Affine, Rows, Share, gram
from nttzoo.ntk.shares import shares

Tangents = Literal["all", "active"]
# (model, x [n, ...], chosen outputs or None, active=) -> (model outputs, one share per layer)
FindShares = Callable[..., tuple[Array, dict[Path, Share]]]


def empirical_ntk(
    model: nnx.Module,
    x1: Float[Array, "n1 ..."],
    x2: Float[Array, "n2 ..."] | None = None,
    *,
    tangents: Tangents = "all",
    outputs: Literal["full", "trace"] = "full",
    memory: int | None = None,
    implementation: FindShares = shares,
) -> Float[Array, "n1 n2 o o"] | Float[Array, "n1 n2"]:
    """The empirical tangent kernel of a model with outputs [n, o] between x1 and x2 (None: x1 itself).

    `tangents`: "all" takes derivatives with respect to every weight, pruned ones included, at the masked point;
    "active" only with respect to surviving ones. `outputs`: "full" gives [n1, n2, o, o], "trace" its trace over outputs
    [n1, n2]. `memory` is the number of bytes that intermediate arrays may take, by default a quarter of the device's;
    the kernel is computed in blocks that fit. Differentiable with respect to the model's parameters; works under jit.
    """
    check_choice("tangents", tangents, ("all", "active"))
    check_choice("outputs", outputs, ("full", "trace"))
    x1, x2 = check_inputs(model, x1, x2)
    trace, active = outputs == "trace", tangents == "active"
    kernel = kernel_blocks(model, x1, x2, None, trace=trace, active=active, memory=memory, find_shares=implementation)
    if not isinstance(kernel, jax.core.Tracer) and not bool(jnp.isfinite(kernel).all()):
        raise ModelError(_where_not_finite(model, x1, x2, active, implementation))
    return kernel


def kernel_blocks(
    model: nnx.Module,
    x1: Array,
    x2: Array,
    chosen: Integer[Array, " r"] | None,
    *,
    trace: bool,
    active: bool,
    memory: int | None = None,
    find_shares: FindShares = shares,
) -> Array:
    """The kernel of the chosen outputs, whole if it fits the memory, else in blocks of examples."""
    block = _block_size(model, x1, chosen, active, memory or default_memory(), find_shares)
    graph, params, rest = split_params(model)
    other = None if x1 is x2 else x2
    return _kernel(
        params, rest, x1, other, chosen, graph=graph, block=block, trace=trace, active=active, find=find_shares
    )


# Compiled as a whole, also when it is called eagerly: operation by operation it would be slow and hungry.
@partial(jax.jit, static_argnames=("graph", "block", "trace", "active", "find"))
def _kernel(
    params: Any,
    rest: Any,
    x1: Array,
    x2: Array | None,
    chosen: Array | None,
    *,
    graph: Any,
    block: int,
    trace: bool,
    active: bool,
    find: FindShares,
) -> Array:
    def pair(params: Any, rows: Array, columns: Array) -> Array:
        model = merge_params(graph, params, rest)
        return sum(pair_shares(model, rows, columns, chosen, trace, active, find)[1].values())  # type: ignore[return-value]

    columns = x1 if x2 is None else x2
    if len(x1) + len(columns) <= 2 * block:
        return pair(params, x1, columns)
    # Recomputed in the backward pass: keeping every block's Jacobian would need the memory that blocks save.
    frugal = jax.checkpoint(pair)
    across = lax.map(lambda x: lax.map(lambda y: frugal(params, x, y), _cut(columns, block)), _cut(x1, block))
    # [blocks1, blocks2, block, block, ...] -> [n1, n2, ...], without the padding
    joined = jnp.moveaxis(across, 2, 1)
    joined = joined.reshape(joined.shape[0] * joined.shape[1], -1, *joined.shape[4:])
    return joined[: len(x1), : len(columns)]


def _cut(x: Array, block: int) -> Float[Array, "blocks block ..."]:
    """Blocks of equal size; the last one is filled up with the first example."""
    missing = -len(x) % block
    filled = jnp.concatenate([x, jnp.broadcast_to(x[:1], (missing, *x.shape[1:]))]) if missing else x
    return filled.reshape(-1, block, *x.shape[1:])


def pair_shares(
    model: nnx.Module,
    x1: Array,
    x2: Array,
    chosen: Array | None,
    trace: bool,
    active: bool,
    find_shares: FindShares = shares,
) -> tuple[Array, dict[Path, Array]]:
    """The outputs for x1 and x2 together, [n1 + n2, o], and each layer's share of the kernel: one forward pass."""
    # The same array on both sides is looked at once.
    both = x1 if x1 is x2 else jnp.concatenate([x1, x2])
    y, found = find_shares(model, both, chosen, active=active)
    n = len(x1)
    kernels = {}
    for path, share in found.items():
        one, two = (share, share) if x1 is x2 else (_examples(share, slice(n)), _examples(share, slice(n, None)))
        kernels[path] = gram(one, two, trace=trace)
    return y, kernels


def _examples(share: Share, which: slice) -> Share:
    if isinstance(share, Rows):
        return Rows(share.rows[which])
    return Affine(share.a[which], share.b[which], share.mask, share.bias)


def default_memory() -> int:
    """A quarter of the memory of the device that computations run on, in bytes."""
    statistics = jax.local_devices()[0].memory_stats() or {}
    return (statistics.get("bytes_limit") or psutil.virtual_memory().total) // 4


def _block_size(
    model: nnx.Module, x: Array, chosen: Array | None, active: bool, memory: int, find_shares: FindShares
) -> int:
    """How many examples a block may hold on each side."""
    graph, params, rest = split_params(model)

    def factors(params: Any, example: Array) -> Any:
        return find_shares(merge_params(graph, params, rest), example, chosen, active=active)[1]

    # Two examples, not one: a layer that sees one example may look as if it had no axis of examples at all.
    found = jax.eval_shape(factors, params, jax.ShapeDtypeStruct((2, *x.shape[1:]), x.dtype))
    per_example = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(found)) / 2
    for share in found.values():
        if isinstance(share, Affine) and share.a.shape[1] > 1:  # the rows of the Jacobian
            rows = math.prod(share.b.shape[1:4]) * share.a.shape[3]
            per_example += rows * share.b.dtype.itemsize
    # Two sides, each with its factors, their unfolded copies and a gradient's worth of both.
    return max(1, int(memory / (2 * 3 * per_example)))


def check_choice(option: str, value: object, choices: tuple[str, ...]) -> None:
    """Raises unless the value is one of the choices."""
    if value not in choices:
        raise OptionError(f"{option}={value!r} is not one of {', '.join(map(repr, choices))}.")


def check_inputs(model: nnx.Module, x1: Any, x2: Any) -> tuple[Array, Array]:
    """The two sets of examples as arrays, or an error that says what is wrong with them or with the model's mode."""
    same = x2 is None or x2 is x1
    x1 = jnp.asarray(x1)
    x2 = x1 if same else jnp.asarray(x2)
    embeds = any(isinstance(module, nnx.Embed) for _, module in nnx.iter_modules(model))
    for name, x in (("x1", x1), ("x2", x2)):
        if x.ndim == 0 or len(x) == 0:
            raise ShapeError(f"{name} is empty (shape {list(x.shape)}); a kernel needs at least one example.")
        if not jnp.issubdtype(x.dtype, jnp.floating) and not embeds:
            raise ShapeError(
                f"{name} has type {x.dtype}; a kernel needs floating-point examples: standardise them first."
            )
    if x1.shape[1:] != x2.shape[1:] or x1.dtype != x2.dtype:
        raise ShapeError(
            f"x1 and x2 must hold examples of one shape and type; got {x1.dtype} {list(x1.shape[1:])} and "
            f"{x2.dtype} {list(x2.shape[1:])}."
        )
    for path, module in nnx.iter_modules(model):
        drops = isinstance(module, nnx.Dropout) and module.rate > 0 and not module.deterministic
        batch = isinstance(module, nnx.BatchNorm) and not module.use_running_average
        if drops or batch:
            raise ModelError(
                f"'{path_name(path)}' ({type(module).__name__}) is in training mode, where an example's output depends "
                "on chance or on the other examples. Call model.eval() first."
            )
    y = jax.eval_shape(lambda x: nnx.clone(model)(x), jax.ShapeDtypeStruct((2, *x1.shape[1:]), x1.dtype))
    if not hasattr(y, "shape") or len(y.shape) != 2 or y.shape[0] != 2:
        raise ModelError(f"a kernel needs a model with outputs [n, o]; {type(model).__name__} gives {y}.")
    return x1, x2


def _where_not_finite(model: nnx.Module, x1: Array, x2: Array, active: bool, find_shares: FindShares) -> str:
    _, kernels = pair_shares(model, x1[:8], x2[:8], None, True, active, find_shares)
    bad = [path_name(path) for path, kernel in kernels.items() if not bool(jnp.isfinite(kernel).all())]
    where = f"the shares of {', '.join(bad)}" if bad else "a layer's share"
    return f"the kernel is not finite: look at {where}; are there NaN or huge values in its weights or in the inputs?"
