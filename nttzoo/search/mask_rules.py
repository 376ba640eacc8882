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

from nttzoo.nn import masked_layers
from nttzoo.registry import Registry
from nttzoo.sparsity import paths, scores
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
    used = paths.path_weights(model, shape)
    ranked = {}
    for path, layer in masked_layers(model).items():
        size = jnp.abs(layer.kernel[...])
        ranked[path] = size + jnp.where(used[path] > 0, jnp.max(size), 0)
    return ranked


@MASK_RULES.register("covering")
def covering(model: nnx.Module, shape: tuple[int, ...], settled: Bool[Array, ""]) -> Scores:
    """|w|, but first come weights that keep an output connected, then those on a path from inputs to outputs.

    In each layer, every output of the model keeps the largest weight that can connect it to the inputs: an output
    without a path is constant and never learns. While the density falls, a unit that has lost all its inputs may get
    some back, so that units are exchanged for better ones; later it gets none, as its outputs leave at the same time.
    """
    passed = paths.path_weights_by_output(model, shape)
    layers = masked_layers(model)
    sizes = {path: jnp.abs(layer.kernel[...]) for path, layer in layers.items()}
    most = jnp.max(jnp.stack([jnp.max(size) for size in sizes.values()]))
    ranked = {}
    for path, size in sizes.items():
        leads_to = jnp.asarray(passed[path]) > 0
        useful = leads_to.any(0) & (_has_inputs(layers[path]) | ~settled)
        ranked[path] = size + jnp.where(_best_of_each(leads_to, size), 2 * most, jnp.where(useful, most, 0))
    return ranked


def _has_inputs(layer: Any) -> Bool[Array, "..."]:
    """Whether a unit has any surviving input, for every place of its weights."""
    mask = layer.mask[...]
    inputs = tuple(range(mask.ndim - len(layer.output_units())))
    return mask.any(inputs, keepdims=True)


def _best_of_each(leads_to: Bool[Array, "o ..."], size: Array) -> Bool[Array, "..."]:
    """The largest weight that leads to each output; none where no place leads to it."""
    candidates = jnp.where(leads_to, size, -1).reshape(len(leads_to), -1)
    found = jnp.max(candidates, 1) >= 0
    best = jnp.zeros(size.size, bool).at[jnp.argmax(candidates, 1)].max(found)
    return best.reshape(size.shape)


@MASK_RULES.register("flow")
def flow(model: nnx.Module, shape: tuple[int, ...], settled: Bool[Array, ""]) -> Scores:
    """|w| times how much reaches the weight from the inputs and the outputs from it, over all surviving paths."""
    used = paths.path_weights(model, shape)
    return {path: jnp.abs(layer.kernel[...]) * used[path] for path, layer in masked_layers(model).items()}
