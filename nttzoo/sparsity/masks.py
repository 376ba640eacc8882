"""Scores and counts -> masks: the only top-k in the project; and how dense a model is."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Real, Shaped, UInt

from nttzoo._util import console
from nttzoo.nn import LayerPath, masked_layers, path_name
from nttzoo.sparsity.schemes import Groups

Scores = Mapping[LayerPath, Real[Array | np.ndarray, "..."]]
Masks = dict[LayerPath, Bool[Array, "..."]]


@jax.jit  # once for each shape: iterative methods come back many times
def keep_largest(scores: Shaped[Array, "..."], count: int | Array) -> Bool[Array, "..."]:
    """Keeps the `count` largest scores; ties go to the lower index (C order). `count` may be traced."""
    ranks = _as_ranks(scores.reshape(-1))
    count = jnp.asarray(count, jnp.int32)
    bits = 8 * ranks.dtype.itemsize

    # The largest threshold that at least `count` reach, bit by bit: many times faster than a sort on every backend.
    def decide_bit(i: Array, threshold: Array) -> Array:
        higher = threshold | (jnp.ones((), ranks.dtype) << (bits - 1 - i).astype(ranks.dtype))
        return jnp.where(jnp.sum(ranks >= higher, dtype=jnp.int32) >= count, higher, threshold)

    threshold = lax.fori_loop(0, bits, decide_bit, jnp.zeros((), ranks.dtype))
    above, tied = ranks > threshold, ranks == threshold
    left = count - jnp.sum(above, dtype=jnp.int32)
    return (above | (tied & (jnp.cumsum(tied, dtype=jnp.int32) <= left))).reshape(scores.shape)


def _as_ranks(values: Shaped[Array, " n"]) -> UInt[Array, " n"]:
    """Unsigned integers in the same order as the values."""
    if jnp.issubdtype(values.dtype, jnp.unsignedinteger):
        return values
    unsigned = jnp.dtype(f"uint{8 * values.dtype.itemsize}")
    sign = jnp.array(1 << (8 * values.dtype.itemsize - 1), unsigned)
    if jnp.issubdtype(values.dtype, jnp.floating):
        # The bits of a float are in order, except that negative ones run backwards; and -0 is 0.
        pattern = lax.bitcast_convert_type(jnp.where(values == 0, 0, values), unsigned)
        return jnp.where(pattern >= sign, ~pattern, pattern | sign)
    return lax.bitcast_convert_type(values, unsigned) ^ sign


def keep_in_groups(scores: Scores, groups: Sequence[Sequence[LayerPath]], counts: Sequence[int | Array]) -> Masks:
    """Keeps, in each group of layers, its count of largest scores; ties go to the earlier layer, then the lower index.

    Counts may be traced: under jit, one compilation serves all densities.
    """
    masks: Masks = {}
    for group, count in zip(groups, counts, strict=True):
        kept = keep_largest(jnp.concatenate([scores[path].reshape(-1) for path in group]), count)
        ends = np.cumsum([scores[path].size for path in group])
        for path, part in zip(group, jnp.split(kept, ends[:-1]), strict=True):
            masks[path] = part.reshape(scores[path].shape)
    return {path: masks[path] for path in scores}


def make_masks(scores: Scores, groups: Groups) -> Masks:
    """Masks of the scores' shapes, with exactly as many survivors as `allocation.allocate` gave each group."""
    return keep_in_groups(scores, [group.paths for group in groups], [group.kept for group in groups])


def warn_of_empty_layers(masks: Masks) -> None:
    """Warns, by name, of layers in which no weight survived: they pass on nothing of their inputs."""
    empty = [path_name(path) for path, mask in masks.items() if not bool(mask.any())]
    if empty:
        warnings.warn(
            f"no weight survived in: {', '.join(empty)}. What these layers compute does not depend on their inputs.",
            stacklevel=3,
        )


@dataclass(frozen=True)
class LayerDensity:
    """How many weights of one layer survive."""

    name: str
    size: int
    kept: int

    @property
    def density(self) -> float:
        """Fraction of the weights kept."""
        return self.kept / self.size


@dataclass(frozen=True)
class DensityReport:
    """How many weights survive, per layer and in total; `print` shows a table."""

    layers: tuple[LayerDensity, ...]

    @property
    def total(self) -> LayerDensity:
        """All layers together."""
        return LayerDensity("total", sum(x.size for x in self.layers), sum(x.kept for x in self.layers))

    def __str__(self) -> str:
        rows = [(x.name, f"{x.size:,}", f"{x.kept:,}", f"{x.density:.2%}") for x in (*self.layers, self.total)]
        return console.table("", ("layer", "weights", "kept", "density"), rows, total=True)


def density_report(model: nnx.Module) -> DensityReport:
    """Counts the surviving weights of a model with masks.

    Args:
      model: any NNX module with masked layers.

    Returns:
      The counts per layer and in total; `print` shows a table.

    Example:
      >>> print(nttzoo.masks.density_report(model))
    """
    layers = masked_layers(model)
    return DensityReport(
        tuple(LayerDensity(path_name(p), layer.mask.size, int(layer.mask[...].sum())) for p, layer in layers.items())
    )
