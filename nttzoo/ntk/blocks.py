"""A kernel in blocks of examples and outputs that fit into memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Integer

from nttzoo._util.memory import device_memory
from nttzoo.dataflow import Structure, fingerprint
from nttzoo.nn import LayerPath, merge_params, split_params
from nttzoo.ntk.factors import Outputs, shares
from nttzoo.ntk.inputs import count_outputs
from nttzoo.ntk.layer_rules import Affine, Rows, Share, as_rows, gram
from nttzoo.ntk.selfcheck import checked_shares

# (model, x [n, ...], chosen outputs or None, active=) -> (model outputs, one share per layer)
FindShares = Callable[..., tuple[Array, dict[LayerPath, Share]]]


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
    sizes = block_sizes(model, x1, chosen, active, memory or default_memory(), find_shares)
    kernel = partial(
        _kernel,
        *(params, rest, x1, None if x1 is x2 else x2),
        **{
            "structure": Structure(graph, sizes.program),
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


def _blocks_of(chosen: Outputs, sizes: BlockSizes) -> Integer[Array, "blocks ... outputs"]:
    """The outputs in blocks of equal size, which come first."""
    every = jnp.arange(sizes.all_outputs) if chosen is None else chosen
    return jnp.moveaxis(every.reshape(*every.shape[:-1], -1, sizes.outputs), -2, 0)


# Compiled as a whole even in eager calls: operation by operation it would be slow and need more memory.
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
    # The same array on both sides is processed once.
    same = x1 is x2 and (chosen is None or chosen.ndim == 1)
    both = x1 if same else jnp.concatenate([x1, x2])
    y, found = find_shares(model, both, chosen, active=active)
    kernels = {}
    for path, share in found.items():
        # After an exchange between devices, shares have more examples than the inputs here.
        n = len(share.rows if isinstance(share, Rows) else share.a) * len(x1) // len(both)
        one, two = (share, share) if same else (_examples(share, slice(n)), _examples(share, slice(n, None)))
        kernels[path] = gram(one, two, trace=trace)
    return y, kernels


def _examples(share: Share, which: slice) -> Share:
    if isinstance(share, Rows):
        return Rows(share.rows[which])
    return Affine(share.a[which], share.b[which], share.mask, None if share.bias is None else share.bias[which])


def default_memory() -> int:
    """Bytes for intermediate arrays: a quarter of the device's memory."""
    return device_memory() // 4


class BlockSizes(NamedTuple):
    """The numbers of examples for factors, of examples for rows, and of outputs that fit into memory at a time."""

    block: int
    stripe: int
    outputs: int
    all_outputs: int
    program: str  # a hash of how factors are computed


def block_sizes(
    model: nnx.Module, x: Array, chosen: Outputs, active: bool, memory: int, find_shares: FindShares
) -> BlockSizes:
    """The largest blocks that fit into this many bytes."""
    graph, params, rest = split_params(model)
    # Two examples: with one, the axis of examples of a layer's arrays could not be identified.
    two = jax.ShapeDtypeStruct((2, *x.shape[1:]), x.dtype)
    total = count_outputs(model, two) if chosen is None else chosen.shape[-1]

    def bytes_of_an_example(outputs: int) -> tuple[float, float, str]:
        def factors(params: Any, rest: Any, example: Array) -> Any:
            some = jnp.arange(outputs)
            found = find_shares(merge_params(graph, params, rest), example, some, active=active)[1]
            return found, {path: as_rows(share) for path, share in found.items()}

        program, shapes = jax.make_jaxpr(factors, return_shape=True)(params, rest, two)
        found, rows = (sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)) / 2 for tree in shapes)
        return found, rows, fingerprint(program)

    # If not even one example fits, fewer of its outputs may: a divisor of their number.
    for outputs in (size for size in range(total, 0, -1) if total % size == 0):
        looked_at, kept, program = bytes_of_an_example(outputs)
        if 4 * (looked_at + kept) <= memory:
            break
    # Each example needs its factors and rows, and about as much again temporarily, on both sides.
    alone = max(1, int(memory / (4 * (looked_at + kept))))
    if len(x) <= alone:
        return BlockSizes(alone, alone, outputs, total, program)
    # Half of the memory is for the rows of a stripe, in whole blocks; the other half for one block.
    block = max(1, min(alone, int(memory / 2 / (4 * (looked_at + kept)))))
    stripe = max(1, int(memory / 2 / kept) // block) * block
    return BlockSizes(block, min(stripe, -(-len(x) // block) * block), outputs, total, program)
