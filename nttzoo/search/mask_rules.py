"""How a search ranks weights when it updates a mask: a score for each weight, the higher the better.

A rule takes (model, shape of one input) and runs inside the compiled update. Pruned weights keep their values, so a
rule sees both those that survive and those that may return.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx

from nttzoo.nn import masked_layers
from nttzoo.registry import Registry
from nttzoo.sparsity import scores
from nttzoo.sparsity.masks import Scores

MaskRule = Callable[[Any, tuple[int, ...]], Scores]
MASK_RULES: Registry[MaskRule] = Registry("mask rule")


@MASK_RULES.register("magnitude")
def magnitude(model: nnx.Module, shape: tuple[int, ...]) -> Scores:
    """|w|, the paper's rule."""
    return scores.magnitude_scores(model)


@MASK_RULES.register("connected")
def connected(model: nnx.Module, shape: tuple[int, ...]) -> Scores:
    """|w|, but weights that no path from inputs to outputs uses come last.

    At 1 % most units of a layer have no surviving weight on one side. Weights on their other side are dead: they
    neither compute nor learn. By magnitude they stay; by this rule they move to units that are in use.
    """
    used = scores.path_weights(model, shape)
    ranked = {}
    for path, layer in masked_layers(model).items():
        size = jnp.abs(layer.kernel[...])
        ranked[path] = size + jnp.where(used[path] > 0, jnp.max(size), 0)
    return ranked


@MASK_RULES.register("flow")
def flow(model: nnx.Module, shape: tuple[int, ...]) -> Scores:
    """|w| times how much reaches the weight from the inputs and the outputs from it, over all surviving paths."""
    used = scores.path_weights(model, shape)
    return {path: jnp.abs(layer.kernel[...]) * used[path] for path, layer in masked_layers(model).items()}
