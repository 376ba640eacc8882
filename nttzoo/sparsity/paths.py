"""How much passes from the inputs to the outputs through each place of a weight."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from nttzoo.nn import masked_layers
from nttzoo.sparsity.kernels import kernel_gradient, with_biases, with_full_masks, with_kernels
from nttzoo.sparsity.masks import Scores


def path_weights(model: nnx.Module, shape: tuple[int, ...]) -> Scores:
    """For each place of a weight, pruned ones too, how much would pass through it from inputs to outputs.

    A place counts if surviving weights lead from the inputs to its one end and from its other end to the outputs; else
    it has 0. Taken at positive weights that average over what a unit is connected to, so that numbers stay of ordinary
    size, and at positive biases, so that no unit is off.
    """
    return kernel_gradient(_averaging(model), _passed_on, jnp.ones((1, *shape)), jnp.ones(()))


def _averaging(model: nnx.Module) -> nnx.Module:
    """The model with weights that average over what a unit is connected to, and biases of one."""
    averages = {}
    for path, layer in masked_layers(model).items():
        alive = layer.mask[...].astype(layer.kernel.dtype)
        averages[path] = alive * (layer.kernel.shape[-1] / jnp.maximum(alive.sum(), 1))
    return with_kernels(with_full_masks(with_biases(model, 1.0)), averages)


def _passed_on(model: Any, inputs: Array, weights: Array) -> Array:
    """What of the inputs themselves reaches the outputs, each times its weight: biases have no part in it."""
    graph, state = nnx.split(model)

    def run(inputs: Array) -> Array:
        return nnx.merge(graph, state, copy=True)(inputs)  # NNX wants its variables to be made where they are used

    return (jax.jvp(run, (inputs,), (inputs,))[1] * weights).sum()
