"""A model's shares: one forward and one vectorized backward pass give every parameter's factors of the Jacobian."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Integer, Num

from nttzoo import nn
from nttzoo.dataflow import Position, Program, Seen, outputs_alone, smallest_batch, trace
from nttzoo.errors import ModelError
from nttzoo.nn import LayerPath, merge_params, path_name, split_params
from nttzoo.nn.layers import mask_p
from nttzoo.ntk.layer_rules import Rows, Share, affine_share
from nttzoo.ntk.sharding import Exchange
from nttzoo.ops.convolution import varying_alike

# The selected outputs of the network: all, the same ones for all examples, or each example's own.
Outputs = Integer[Array, " r"] | Integer[Array, "_ r"] | None

_MOST_AXES = 6
_ENTRYWISE = {"gather", "add", "mul"}
_warned: set[tuple[str, tuple[str, ...]]] = set()


def shares(
    model: nnx.Module,
    x: Num[Array, "n ..."],
    outputs: Outputs,
    *,
    active: bool,
    exchange: Exchange | None = None,
    sparse: bool = False,
) -> tuple[Float[Array, "n o"], dict[LayerPath, Share]]:
    """The model's outputs [n, o] and, per parameter, the factors of d outputs[r] / d parameter for the chosen outputs.

    A bias that belongs to a kernel is part of its kernel's share. With an `exchange`, x is one device's part of the
    examples, and so are the outputs; the shares are of all examples. `sparse`: the passes skip pruned weights where
    they can.
    """
    program = trace(model, x[0])
    if not active:
        _check_masks(model, program)
    _, params, rest = split_params(model)
    parameters, others = jax.tree.leaves(params), jax.tree.leaves(rest)
    n = len(x)
    products = {at: jnp.zeros((n, *s.lengths, *s.results), s.dtype) for at, s in program.sites.items()}
    loose = {i: parameters[i] for i in program.loose if _counts(parameters[i])}
    moves = {i: jnp.zeros((n, *parameter.shape), parameter.dtype) for i, parameter in loose.items()}
    # Inside shard_map a perturbation must vary as the examples do, or its cotangents would be summed over devices.
    products, moves = jax.tree.map(lambda zero: varying_alike(zero, x)[0], (products, moves))

    def one(products: dict[Position, Array], moves: dict[int, Array], example: Array) -> Any:
        (y,), seen = program.run(parameters, others, example, products, moves, straight=not active, sparse=sparse)
        return y, {at: saw.inputs for at, saw in seen.items()}, {at: saw.passes for at, saw in seen.items()}

    def perturbed(products: dict[Position, Array], moves: dict[int, Array]) -> Any:
        y, *seen = jax.vmap(one, out_axes=(0, 0, None))(products, moves, x)
        return y, seen

    # One forward pass; one backward pass per output, each for all examples at once.
    y, pull, (inputs, passes) = jax.vjp(perturbed, products, moves, has_aux=True)
    cotangents, moved = _each(pull, _one_hot(outputs, program.outputs, n), program.rank + 1)

    grouped: dict[int, list[Position]] = {}
    for at, site in program.sites.items():
        grouped.setdefault(site.parameter, []).append(at)
    found: dict[LayerPath, Share] = {}
    for parameter, places in grouped.items():
        found[program.names[parameter]] = affine_share(
            [program.sites[at] for at in places],
            [Seen(inputs[at], passes[at]) for at in places],
            [cotangents[at] for at in places],
            dtype=parameters[parameter].dtype,
            exchange=exchange,
        )
    for i, rows in moved.items():
        rows = rows.reshape(*rows.shape[:2], -1).swapaxes(0, 1)
        found[program.names[i]] = Rows(exchange.own_columns(rows, 2) if exchange else rows)
    _warn_of_slow_parameters(model, program, parameters)
    return y, found


def _each(pull: Callable[[Array], Any], rows: Float[Array, "r n o"], rank: int) -> Any:
    """`pull` of every row: vectorized, or in a loop if arrays of `rank` axes would get too many axes.

    In jaxlib 0.10.2 and 0.11, sums over float32 arrays of seven and more axes may crash the process on CPUs
    (jax-ml/jax#39257). Networks with GroupNorm have such arrays here; in a loop they have six.
    """
    if rank + 1 > _MOST_AXES and jax.default_backend() == "cpu":
        return lax.map(pull, rows)
    return jax.vmap(pull)(rows)


def _counts(parameter: Array) -> bool:
    return jnp.issubdtype(parameter.dtype, jnp.floating)


def _one_hot(outputs: Outputs, y: Any, examples: int) -> Float[Array, "r n o"]:
    """Ones at the chosen outputs of every example."""
    rows = jnp.eye(y.shape[0], dtype=y.dtype)
    if outputs is not None:
        rows = rows[outputs]
    return rows.swapaxes(0, 1) if rows.ndim == 3 else jnp.broadcast_to(rows[:, None], (len(rows), examples, *y.shape))


def hides_masks(model: nnx.Module, example: Array) -> bool:
    """Whether masks are applied to what the forward pass computes: then only active tangents are defined."""
    return bool(trace(model, example).analysis.hidden_masks)


def _check_masks(model: nnx.Module, program: Program) -> None:
    if hidden := program.analysis.hidden_masks:
        inside = ", ".join(sorted(set(hidden) - {mask_p.name}))
        raise ModelError(
            f"tangents='all' takes the derivative of a mask for the identity, but {type(model).__name__} applies masks "
            f"{f'inside {inside}' if inside else 'to kernels that it computes in its forward pass'}. "
            "Use tangents='active'."
        )


def _warn_of_slow_parameters(model: nnx.Module, program: Program, parameters: list[Array]) -> None:
    # For a parameter that is looked up, added or multiplied entry by entry, nothing is faster than rows.
    slow = (i for i, why in program.analysis.loose.items() if parameters[i].ndim > 1 and not why <= _ENTRYWISE)
    names = tuple(sorted(path_name(program.names[i]) for i in slow))
    key = (type(model).__name__, names)
    if names and key not in _warned:
        _warned.add(key)
        warnings.warn(
            f"no fast tangent rule for these parameters of {key[0]}: {', '.join(names)}. Their exact Jacobian is used, "
            "which is correct, but slower and needs more memory.",
            stacklevel=2,
        )


def dense_rows(
    model: nnx.Module,
    x: Array,
    outputs: Outputs,
    *,
    active: bool,
    exchange: Exchange | None = None,
    sparse: bool = False,
) -> tuple[Array, dict[LayerPath, Share]]:
    """`shares` from the whole Jacobian of the model itself, example by example: the slow and simple reference.

    With all tangents, the network must use a masked kernel only through its mask.
    """
    point = model if active else at_masked_point(model)
    graph, params, rest = split_params(point)
    copies = smallest_batch(model, x[0])
    rank = trace(model, x[0]).rank + 1
    y = jax.eval_shape(lambda example: outputs_alone(nnx.clone(point), example, copies), x[0])

    def one_example(example: Array, chosen: Float[Array, "r o"]) -> tuple[Array, Array]:
        y, pull = jax.vjp(lambda params: outputs_alone(merge_params(graph, params, rest), example, copies), params)
        rows = _each(lambda row: pull(row)[0], chosen, rank)
        counted = [leaf for leaf in jax.tree.leaves(rows) if _counts(leaf)]
        return y, jnp.concatenate([leaf.reshape(len(chosen), -1) for leaf in counted], 1)

    y, rows = jax.vmap(one_example, in_axes=(0, 1))(x, _one_hot(outputs, y, len(x)))
    return y, {("(all parameters)",): Rows(exchange.own_columns(rows, 2) if exchange else rows)}


def at_masked_point(model: Any) -> Any:
    """A copy with full masks and zeros for pruned weights: the same function, every weight of which is a parameter."""
    copy = nnx.clone(model)
    for _, layer in nnx.iter_modules(copy):
        if nn.is_masked(layer):
            layer.kernel[...] = layer.masked_kernel()  # type: ignore[attr-defined]
            layer.mask[...] = jnp.ones_like(layer.mask[...])  # type: ignore[attr-defined]
    return copy
