"""How a search ranks weights when it updates a mask: a score for each weight, the higher the better.

A rule takes (model, shape of one input, settled) and runs inside the compiled update; `settled` is true once the
density has reached its target. Pruned weights keep their values, so a rule sees both those that survive and those that
may return.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool

from nttzoo.nn import masked_layers, set_masks
from nttzoo.registry import Registry
from nttzoo.sparsity import paths, scores, uses
from nttzoo.sparsity.masks import Scores

MaskRule = Callable[[Any, tuple[int, ...], Bool[Array, ""]], Scores]
MASK_RULES: Registry[MaskRule] = Registry("mask rule")


@MASK_RULES.register("magnitude")
def magnitude(model: nnx.Module, shape: tuple[int, ...], settled: Bool[Array, ""]) -> Scores:
    """|w|, the paper's rule."""
    return scores.magnitude_scores(model)


@MASK_RULES.register("connected")
def connected(model: nnx.Module, shape: tuple[int, ...], settled: Bool[Array, ""]) -> Scores:
    """|w|, but weights that no path from inputs to outputs uses come last.

    At 1 % most units of a layer have no surviving weight on one side. Weights on their other side are dead: they
    neither compute nor learn. By magnitude they stay; by this rule they move to units that are in use.
    """
    used = uses.places_on_paths(model, shape)
    ranked = {}
    for path, layer in masked_layers(model).items():
        size = jnp.abs(layer.kernel[...])
        ranked[path] = size + jnp.where(used[path], jnp.max(size), 0)
    return ranked


@MASK_RULES.register("covering")
def covering(model: nnx.Module, shape: tuple[int, ...], settled: Bool[Array, ""]) -> Scores:
    """|w|, but first come weights that keep an output connected, then those on a path from inputs to outputs.

    Every output of the model keeps one path to the inputs: its own largest weight, the largest of the unit where that
    comes from, and so on. An output without a path is constant and never learns. While the density falls, a unit that
    has lost all its inputs may get some back, so that units are exchanged for better ones. Later it gets none, as its
    outputs leave at the same time, and paths take surviving weights.
    """
    used = uses.places_on_paths(model, shape)
    layers = masked_layers(model)
    largest = {path: _largest_of_each_unit(layer, settled) for path, layer in layers.items()}
    skeleton = nnx.clone(model)
    set_masks(skeleton, largest)
    reached = uses.places_on_paths(skeleton, shape)
    sizes = {path: jnp.abs(layer.kernel[...]) for path, layer in layers.items()}
    most = jnp.max(jnp.stack([jnp.max(size) for size in sizes.values()]))
    ranked = {}
    for path, size in sizes.items():
        needed = largest[path] & reached[path]
        useful = used[path] & (_has_inputs(layers[path]) | ~settled)
        ranked[path] = size + jnp.where(needed, 2 * most, jnp.where(useful, most, 0))
    return ranked


def _inputs_of(layer: Any) -> tuple[int, ...]:
    """The axes of a kernel that number a unit's inputs."""
    return tuple(range(layer.kernel.ndim - len(layer.output_units())))


def _has_inputs(layer: Any) -> Bool[Array, "..."]:
    """Whether a unit has any surviving input, for every place of its weights."""
    return layer.mask[...].any(_inputs_of(layer), keepdims=True)


def _largest_of_each_unit(layer: Any, settled: Bool[Array, ""]) -> Bool[Array, "..."]:
    """One place for each unit: that of its largest weight, which has to survive if `settled` and any does."""
    size = jnp.abs(layer.kernel[...])
    size = jnp.where(settled & _has_inputs(layer) & ~layer.mask[...], -1, size)
    units = layer.output_units()
    flat = size.reshape(-1, *units)
    first = jnp.argmax(flat, 0, keepdims=True)
    return (jnp.arange(len(flat)).reshape(-1, *(1 for _ in units)) == first).reshape(size.shape)


@MASK_RULES.register("flow")
def flow(model: nnx.Module, shape: tuple[int, ...], settled: Bool[Array, ""]) -> Scores:
    """|w| times how much reaches the weight from the inputs and the outputs from it, over all surviving paths."""
    used = paths.path_weights(model, shape)
    return {path: jnp.abs(layer.kernel[...]) * used[path] for path, layer in masked_layers(model).items()}
