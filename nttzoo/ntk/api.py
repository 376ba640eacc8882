"""`empirical_ntk`: the kernel between two sets of examples, block by block where memory is short."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Integer

from nttzoo._util.checks import check_choice
from nttzoo._util.memory import device_memory
from nttzoo.errors import ModelError, ShapeError
from nttzoo.nn import LayerPath, merge_params, path_name, split_params
from nttzoo.ntk.factors import Outputs, shares
from nttzoo.ntk.layer_rules import Affine, Rows, Share, as_rows, gram
from nttzoo.ntk.selfcheck import Structure, checked_shares
from nttzoo.ntk.sharding import Exchange

Tangents = Literal["all", "active"]
# (model, x [n, ...], chosen outputs or None, active=) -> (model outputs, one share per layer)
FindShares = Callable[..., tuple[Array, dict[LayerPath, Share]]]


def empirical_ntk(
    model: nnx.Module,
    x1: Float[Array, "n1 ..."],
    x2: Float[Array, "n2 ..."] | None = None,
    *,
    tangents: Tangents = "all",
    outputs: Literal["full", "trace"] = "full",
    memory: int | None = None,
    implementation: FindShares | None = None,
) -> Float[Array, "n1 n2 o o"] | Float[Array, "n1 n2"]:
    """The empirical tangent kernel of a model with outputs [n, o] between x1 and x2 (None: x1 itself).

    Differentiable with respect to the model's parameters; works under jit. No example's output may depend on chance or
    on other examples: call model.eval() first. The first call for a model's structure compares a random projection of
    the kernel with the model's own derivatives, and falls back to the exact Jacobian, with a warning, if they differ.

    Args:
      model: any NNX module with outputs [n, o].
      x1: n1 examples.
      x2: n2 examples; None: x1.
      tangents: "active" takes derivatives with respect to all parameters of the network as it is, masks included: those
        of pruned weights are zero. "all" takes the derivative of each mask for the identity: the outputs, and the point
        at which derivatives are taken, are the masked network's, but pruned weights count as if they were there. (For
        layers that use their kernel only by way of its mask this is the kernel of a dense network that has zeros for
        the pruned weights.) Refused where masks are applied to kernels that the forward pass computes, as under
        `nnx.WeightNorm`: such zeros would make another network.
      outputs: "full" gives [n1, n2, o, o], "trace" its trace over outputs, [n1, n2].
      memory: the number of bytes that intermediate arrays may take, by default a quarter of the device's; the kernel is
        computed in blocks that fit.
      implementation: how to find the factors of the Jacobian, in place of the rules.

    Returns:
      K(x1, x2), in the precision of the model's parameters.

    Raises:
      ModelError: if the model's examples depend on each other, if it cannot be differentiated, or if the kernel is not
        finite.
      ShapeError: if x1 and x2 do not fit each other or the model.
    """
    check_choice("tangents", tangents, ("all", "active"))
    check_choice("outputs", outputs, ("full", "trace"))
    x1, x2 = check_inputs(model, x1, x2)
    trace, active = outputs == "trace", tangents == "active"
    implementation = implementation or checked_shares(model, x1, active=active)
    kernel = kernel_blocks(model, x1, x2, None, trace=trace, active=active, memory=memory, find_shares=implementation)
    if not isinstance(kernel, jax.core.Tracer) and not bool(jnp.isfinite(kernel).all()):
        raise ModelError(_where_not_finite(model, x1, x2, active, implementation))
    return kernel


def kernel_blocks(
    model: nnx.Module,
    x1: Array,
    x2: Array,
    chosen: Outputs,
    *,
    trace: bool,
    active: bool,
    memory: int | None = None,
    find_shares: FindShares | None = None,
) -> Array:
    """The kernel of the chosen outputs, whole if it fits the memory, else in blocks of examples, and of outputs.

    Each example's own outputs are given for x1 and x2 together, [n1 + n2, r].
    """
    find_shares = find_shares or checked_shares(model, x1, active=active)
    graph, params, rest = split_params(model)
    sizes = _block_sizes(model, x1, chosen, active, memory or _default_memory(), find_shares)
    kernel = partial(
        _kernel,
        *(params, rest, x1, None if x1 is x2 else x2),
        **{
            "structure": Structure(graph),
            "sizes": (sizes.block, sizes.stripe),
            "trace": trace,
            "active": active,
            "find": find_shares,
        },
    )
    rows, columns = halves_of(chosen, len(x1))
    if sizes.outputs == sizes.all_outputs:
        return kernel(rows, None if columns is rows else columns)
    rows, columns = (_blocks_of(each, sizes) for each in (rows, columns))
    if trace:
        return lax.map(lambda one: kernel(one, None), rows).sum(0)
    found = lax.map(lambda one: lax.map(lambda two: kernel(one, two), columns), rows)  # [i, j, n1, n2, r, r]
    whole = found.transpose(2, 3, 0, 4, 1, 5)
    return whole.reshape(*whole.shape[:2], sizes.all_outputs, sizes.all_outputs)


def halves_of(chosen: Outputs, n1: int) -> tuple[Outputs, Outputs]:
    """The outputs that are chosen for the first n1 examples and for the others: the same object if they are shared."""
    return (chosen, chosen) if chosen is None or chosen.ndim == 1 else (chosen[:n1], chosen[n1:])


def per_example(chosen: Outputs, n: int) -> Integer[Array, "n r"] | None:
    """Shared outputs repeated for each of n examples; others as they are."""
    return chosen if chosen is None or chosen.ndim == 2 else jnp.broadcast_to(chosen, (n, len(chosen)))


def _blocks_of(chosen: Outputs, sizes: _Sizes) -> Integer[Array, "blocks ... outputs"]:
    """The outputs in blocks of equal size, which come first."""
    every = jnp.arange(sizes.all_outputs) if chosen is None else chosen
    return jnp.moveaxis(every.reshape(*every.shape[:-1], -1, sizes.outputs), -2, 0)


# Compiled as a whole, also when it is called eagerly: operation by operation it would be slow and hungry.
@partial(jax.jit, static_argnames=("structure", "sizes", "trace", "active", "find"))
def _kernel(
    params: Any,
    rest: Any,
    x1: Array,
    x2: Array | None,
    chosen: Outputs,
    other: Outputs,
    *,
    structure: Structure,
    sizes: tuple[int, int],
    trace: bool,
    active: bool,
    find: FindShares,
) -> Array:
    """Between the chosen outputs for x1 and the `other` ones (None: the same) for x2 (None: x1)."""
    columns = x1 if x2 is None else x2
    graph = structure.graph
    block_size, stripe_size = sizes
    left = x1, per_example(chosen, len(x1))
    right = columns, per_example(chosen if other is None else other, len(columns))
    if len(x1) + len(columns) <= 2 * block_size:
        model = merge_params(graph, params, rest)
        both = chosen if other is None else jnp.concatenate([left[1], right[1]])  # type: ignore[list-item]
        return sum(pair_shares(model, x1, columns, both, trace, active, find)[1].values())  # type: ignore[return-value]

    def rows_of(params: Any, piece: tuple[Array, Outputs]) -> dict[LayerPath, Share]:
        found = find(merge_params(graph, params, rest), *piece, active=active)[1]
        return {path: as_rows(share) for path, share in found.items()}

    # The rows of a stripe are kept, computed block by block, and multiplied with all columns, block by block. A
    # backward pass computes everything again: keeping it would need the memory that blocks save.
    @jax.checkpoint
    def stripe(params: Any, rows: tuple[Array, Outputs]) -> Array:
        first = jax.tree.map(lambda leaf: leaf[:block_size], rows)
        masks = {path: getattr(share, "mask", None) for path, share in rows_of(params, first).items()}
        found = lax.map(lambda piece: _unmasked(rows_of(params, piece)), _cut(rows, block_size))
        kept = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), found)

        @jax.checkpoint
        def block(kept: Any, piece: tuple[Array, Outputs]) -> Array:
            pairs = ((_masked(kept[path], masks[path]), two) for path, two in rows_of(params, piece).items())
            return sum(gram(one, two, trace=trace) for one, two in pairs)  # type: ignore[return-value]

        across = lax.map(lambda piece: block(kept, piece), _cut(right, block_size))
        return jnp.moveaxis(across, 0, 1).reshape(across.shape[1], -1, *across.shape[3:])

    stripes = lax.map(lambda rows: stripe(params, rows), _cut(left, stripe_size))
    return stripes.reshape(-1, *stripes.shape[2:])[: len(x1), : len(columns)]


def _unmasked(found: dict[LayerPath, Share]) -> dict[LayerPath, Share]:
    """The shares without their masks, which have no axis of examples."""
    return {p: replace(share, mask=None) if isinstance(share, Affine) else share for p, share in found.items()}


def _masked(share: Share, mask: Array | None) -> Share:
    return replace(share, mask=mask) if isinstance(share, Affine) else share


def _cut(examples: Any, block: int) -> Any:
    """Arrays [n, ...] in blocks of equal size [blocks, block, ...]; the last is filled up with the first example."""

    def cut(x: Array) -> Array:
        missing = -len(x) % block
        filled = jnp.concatenate([x, jnp.broadcast_to(x[:1], (missing, *x.shape[1:]))]) if missing else x
        return filled.reshape(-1, block, *x.shape[1:])

    return jax.tree.map(cut, examples)


def outputs_and_kernel(
    model: nnx.Module,
    x: Float[Array, "n ..."],
    chosen: Outputs,
    *,
    active: bool,
    exchange: Exchange | None = None,
) -> tuple[Float[Array, "n o"], Float[Array, "n//2 _ r r"]]:
    """The outputs for a batch and the kernel between its halves, from one forward pass if that fits the memory.

    With an `exchange`, the batch and the outputs are one device's part, and so are the kernel's rows; its columns are
    all devices' second halves.
    """
    x1, x2 = x[: len(x) // 2], x[len(x) // 2 :]
    find = checked_shares(model, x, active=active)
    if exchange:
        y, kernels = pair_shares(model, x1, x2, chosen, False, active, partial(find, exchange=exchange))
        return y, exchange.own_rows_of_sum(sum(kernels.values()))  # type: ignore[arg-type]
    if len(x) > 2 * _block_sizes(model, x1, chosen, active, _default_memory(), find).block:
        return nnx.clone(model)(x), kernel_blocks(model, x1, x2, chosen, trace=False, active=active, find_shares=find)
    y, kernels = pair_shares(model, x1, x2, chosen, False, active, find)
    return y, sum(kernels.values())  # type: ignore[return-value]


def pair_shares(
    model: nnx.Module,
    x1: Array,
    x2: Array,
    chosen: Outputs,
    trace: bool,
    active: bool,
    find_shares: FindShares = shares,
) -> tuple[Array, dict[LayerPath, Array]]:
    """The outputs for x1 and x2 together, [n1 + n2, o], and each layer's share of the kernel: one forward pass."""
    # The same array on both sides is looked at once.
    same = x1 is x2 and (chosen is None or chosen.ndim == 1)
    both = x1 if same else jnp.concatenate([x1, x2])
    y, found = find_shares(model, both, chosen, active=active)
    kernels = {}
    for path, share in found.items():
        # An exchange between devices gives shares of more examples than came in here.
        n = len(share.rows if isinstance(share, Rows) else share.a) * len(x1) // len(both)
        one, two = (share, share) if same else (_examples(share, slice(n)), _examples(share, slice(n, None)))
        kernels[path] = gram(one, two, trace=trace)
    return y, kernels


def _examples(share: Share, which: slice) -> Share:
    if isinstance(share, Rows):
        return Rows(share.rows[which])
    return Affine(share.a[which], share.b[which], share.mask, None if share.bias is None else share.bias[which])


def _default_memory() -> int:
    return device_memory() // 4


class _Sizes(NamedTuple):
    """How many examples' factors, how many examples' rows and how many outputs fit into memory at a time."""

    block: int
    stripe: int
    outputs: int
    all_outputs: int


def _block_sizes(
    model: nnx.Module, x: Array, chosen: Outputs, active: bool, memory: int, find_shares: FindShares
) -> _Sizes:
    graph, params, rest = split_params(model)
    # Two examples, not one: a layer that sees one example may look as if it had no axis of examples at all.
    two = jax.ShapeDtypeStruct((2, *x.shape[1:]), x.dtype)
    total = count_outputs(model, two) if chosen is None else chosen.shape[-1]

    def bytes_of_an_example(outputs: int) -> tuple[float, float]:
        def factors(params: Any, example: Array) -> Any:
            some = jnp.arange(outputs)
            found = find_shares(merge_params(graph, params, rest), example, some, active=active)[1]
            return found, {path: as_rows(share) for path, share in found.items()}

        found, rows = (jax.tree.leaves(tree) for tree in jax.eval_shape(factors, params, two))
        return tuple(sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) / 2 for leaves in (found, rows))

    # If not even one example fits, fewer of its outputs may: a part of them that leaves no rest.
    for outputs in (size for size in range(total, 0, -1) if total % size == 0):
        looked_at, kept = bytes_of_an_example(outputs)
        if 4 * (looked_at + kept) <= memory:
            break
    # Each example that is looked at has its factors and rows, and about as much again in passing, for two sides.
    alone = max(1, int(memory / (4 * (looked_at + kept))))
    if len(x) <= alone:
        return _Sizes(alone, alone, outputs, total)
    # Half of the memory is for the rows of a stripe, in whole blocks; the other half for one block.
    block = max(1, min(alone, int(memory / 2 / (4 * (looked_at + kept)))))
    stripe = max(1, int(memory / 2 / kept) // block) * block
    return _Sizes(block, min(stripe, -(-len(x) // block) * block), outputs, total)


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
        raise ModelError(f"{type(model).__name__} has no parameters (nnx.Param), and so no tangents.")
    for path, parameter in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        if jnp.issubdtype(parameter[...].dtype, jnp.complexfloating):
            raise ModelError(f"the parameter {path_name(path)} is complex; a kernel needs real parameters.")
    return x1, x2


def count_outputs(model: nnx.Module, x: Any) -> int:
    """How many outputs the model has for an example."""
    return jax.eval_shape(lambda x: nnx.clone(model)(x), x).shape[1]


def _where_not_finite(model: nnx.Module, x1: Array, x2: Array, active: bool, find_shares: FindShares) -> str:
    _, kernels = pair_shares(model, x1[:8], x2[:8], None, True, active, find_shares)
    bad = [path_name(path) for path, kernel in kernels.items() if not bool(jnp.isfinite(kernel).all())]
    where = f"the shares of {', '.join(bad)}" if bad else "a layer's share"
    return f"the kernel is not finite: look at {where}; are there NaN or huge values in its weights or in the inputs?"
