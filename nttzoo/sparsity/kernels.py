"""The kernels of a model's masked layers by layer path: reading, replacing, redrawing and differentiating by them.

The compiled functions take the model's structure, what it computes included, as a static argument, so that the rounds
of an iterative method share one compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from nttzoo.dataflow import Structure, structure
from nttzoo.nn import LayerPath, masked_layers, merge_params, split_params

Kernels = dict[LayerPath, Array]
# (model, inputs ...) -> a number
Quantity = Callable[..., Array]


def parts(model: nnx.Module, inputs: Any) -> tuple[Structure, Any, Any]:
    """(structure, parameters, everything else) of a model in evaluation mode, for a batch of inputs."""
    masked_layers(model)  # says what is wrong with a model that has none
    frozen = nnx.clone(model)
    frozen.eval()
    graph, params, rest = split_params(frozen)
    return structure(graph, lambda p, r, x: merge_params(graph, p, r)(x), params, rest, inputs), params, rest


def kernels_of(graph: Any, params: Any, rest: Any) -> Kernels:
    """The kernels, or whatever is in their place, of parameters."""
    return {path: layer.kernel[...] for path, layer in masked_layers(merge_params(graph, params, rest)).items()}


def kernel_gradient(model: nnx.Module, quantity: Quantity, *inputs: Any) -> Kernels:
    """The derivative of a quantity with respect to every kernel."""
    return _compiled_gradient(quantity, *parts(model, inputs[0]), *inputs)


@partial(jax.jit, static_argnums=(0, 1))
def _compiled_gradient(quantity: Quantity, made: Structure, params: Any, rest: Any, *inputs: Any) -> Kernels:
    grads = jax.grad(lambda p: quantity(merge_params(made.graph, p, rest), *inputs))(params)
    return kernels_of(made.graph, grads, rest)


def he_kernels(model: nnx.Module, densities: Mapping[LayerPath, float], key: Array) -> Kernels:
    """Kernels redrawn from N(0, 2 / (fan_in * density)): the variance that survives pruning is Kaiming's."""
    layers = masked_layers(model)
    keys = jax.random.split(key, len(layers))

    def drawn(layer: Any, density: float, key: Array) -> Array:
        spread = (2 / (layer.fan_in * density)) ** 0.5
        return jax.random.normal(key, layer.kernel.shape, layer.kernel.dtype) * spread

    return {path: drawn(layer, densities[path], k) for k, (path, layer) in zip(keys, layers.items(), strict=True)}


def with_kernels(model: Any, kernels: Kernels) -> Any:
    """The model itself, with other kernels."""
    for path, layer in masked_layers(model).items():
        layer.kernel[...] = kernels[path]
    return model


def with_biases(model: Any, value: float) -> Any:
    """A copy whose biases are all the same."""
    work = nnx.clone(model)
    for _, module in nnx.iter_modules(work):
        if isinstance(getattr(module, "bias", None), nnx.Param):
            module.bias[...] = jnp.full_like(module.bias[...], value)  # type: ignore[attr-defined]
    return work


def with_full_masks(model: Any) -> Any:
    """A copy in which pruned weights are zero, but no longer masked: they get gradients."""
    work = nnx.clone(model)
    for layer in masked_layers(work).values():
        layer.kernel[...] = layer.masked_kernel()
        layer.mask[...] = jnp.ones_like(layer.mask[...])
    return work
