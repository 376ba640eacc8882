"""How pruning methods rank weights: a score for each weight of each prunable layer, the higher the better.

A score function takes (model, what it may see, key). It looks at the model through its masks, so that an iterative
method scores what is left of the network. No dropout: models are scored in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float

from nttzoo.dataflow import Structure
from nttzoo.errors import ShapeError
from nttzoo.nn import LayerPath, is_masked, masked_layers, merge_params
from nttzoo.nn.taps import Call, record
from nttzoo.sparsity.kernels import (
    Kernels,
    Quantity,
    he_kernels,
    kernel_gradient,
    kernels_of,
    parts,
    with_biases,
    with_full_masks,
    with_kernels,
)
from nttzoo.sparsity.masks import Scores

PERTURBATION = 0.01
PERTURBED_INPUTS = 64
PERTURBED_BATCHES = 5


def magnitude_scores(model: nnx.Module, seen: None = None, key: Array | None = None) -> Scores:
    """|w|."""
    return {path: jnp.abs(layer.kernel[...]) for path, layer in masked_layers(model).items()}


def random_scores(model: nnx.Module, seen: None, key: Array) -> Scores:
    """Independent uniform numbers."""
    layers = masked_layers(model)
    keys = jax.random.split(key, len(layers))
    # 32 random bits, not a float's 23: ties, which would favor the lower index, become rare.
    return {
        path: jax.random.bits(k, layer.kernel.shape, jnp.uint32)
        for k, (path, layer) in zip(keys, layers.items(), strict=True)
    }


def snip_scores(model: nnx.Module, seen: tuple[Array, Array], key: Array | None = None) -> Scores:
    """|w * dLoss/dw|, Loss being the cross-entropy summed over a labeled batch.

    Reference: Lee et al., SNIP, 2019 (https://arxiv.org/abs/1810.02340).
    """
    _check_labels(model, *seen)
    return _sensitivity(model, cross_entropy, *seen)


def logit_snip_scores(model: nnx.Module, seen: Float[Array, "n ..."], key: Array | None = None) -> Scores:
    """|w * dZ/dw|, Z being the sum of squared logits: no labels."""
    return _sensitivity(model, squared_logits, seen)


def force_scores(model: nnx.Module, seen: tuple[Array, Array], key: Array | None = None) -> Scores:
    """|w * dLoss/dw| for all weights, with the gradient taken where pruned ones are zero: so they can return.

    Reference: de Jorge et al., Progressive Skeletonization, 2021 (https://arxiv.org/abs/2006.09081).
    """
    _check_labels(model, *seen)
    gradient = kernel_gradient(with_full_masks(model), cross_entropy, *seen)
    return {path: jnp.abs(layer.kernel[...] * gradient[path]) for path, layer in masked_layers(model).items()}


def grasp_scores(model: nnx.Module, seen: tuple[Array, Array], key: Array | None = None) -> Scores:
    """w * (H g), with the cross-entropy's gradient g and Hessian H: what is lost of the gradient's norm without w.

    The paper scores by -w * (H g) and removes the highest; the order is the same.
    Reference: Wang et al., Picking Winning Tickets Before Training by Preserving Gradient Flow, 2020
    (https://arxiv.org/abs/2002.07376).
    """
    _check_labels(model, *seen)
    product = _hessian_gradient(*parts(model, seen[0]), *seen)
    return {path: layer.kernel[...] * product[path] for path, layer in masked_layers(model).items()}


def synflow_scores(model: nnx.Module, seen: tuple[int, ...], key: Array | None = None) -> Scores:
    """|w * dR/dw|, R being the sum of outputs for an input of ones with absolute weights and no biases: no data.

    `seen` is the shape of one input. Reference: Tanaka et al., Pruning neural networks without any data by iteratively
    conserving synaptic flow, 2020 (https://arxiv.org/abs/2006.05467).
    """
    return _flow(model, jnp.abs, seen, jnp.ones(()))


def px_scores(model: nnx.Module, seen: Float[Array, "n ..."], key: Array | None = None) -> Scores:
    """w^2 * d(z1 . z2)/d(w^2): how much of a bound of the tangent kernel's trace goes through a weight. No labels.

    z1 adds up, for each output, the products of squared weights along all paths from the inputs; z2 the squared inputs
    at the start of those paths that are active (whose units are all on) for the images, summed over them.
    Reference: Iurada et al., Finding Lottery Tickets in Vision Models via Data-driven Spectral Foresight Pruning, 2024
    (https://arxiv.org/abs/2406.01820).
    """
    active = _active_inputs(*parts(model, seen), seen)
    return _flow(model, jnp.square, seen.shape[1:], active)


def ntk_sap_scores(model: nnx.Module, seen: tuple[int, ...], key: Array) -> Scores:
    """|dQ/dm|, Q being how far the outputs move, squared, if the weights are perturbed; m the masks. No data.

    Inputs are Gaussian and weights are redrawn for each batch, so that only the structure counts.
    Reference: Wang et al., NTK-SAP, 2023 (https://arxiv.org/abs/2304.02840).
    """
    made, params, rest = parts(model, jnp.ones((1, *seen)))
    total: Mapping[LayerPath, Array] | None = None
    for k in jax.random.split(key, PERTURBED_BATCHES):
        found = _mask_gradient(made, params, rest, tuple(seen), k)
        total = found if total is None else {path: total[path] + found[path] for path in found}
    assert total is not None
    return {path: jnp.abs(value) for path, value in total.items()}


# What is differentiated.


def cross_entropy(model: Any, images: Array, labels: Array) -> Array:
    """Summed over a labeled batch."""
    return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).sum()


def squared_logits(model: Any, images: Array) -> Array:
    """Summed over a batch."""
    return jnp.square(model(images)).sum()


def weighted_outputs(model: Any, inputs: Array, weights: Array) -> Array:
    """The outputs for one input, each times its weight."""
    return (model(inputs) * weights).sum()


def _sensitivity(model: nnx.Module, quantity: Quantity, *inputs: Any) -> Scores:
    """|w * dQuantity/dw|."""
    gradient = kernel_gradient(model, quantity, *inputs)
    return {path: jnp.abs(layer.kernel[...] * gradient[path]) for path, layer in masked_layers(model).items()}


@partial(jax.jit, static_argnums=0)
def _hessian_gradient(made: Structure, params: Any, rest: Any, images: Array, labels: Array) -> Kernels:
    """H g of the cross-entropy, with respect to the kernels alone."""
    kernels = kernels_of(made.graph, params, rest)

    def gradient(kernels: Kernels) -> Kernels:
        def loss(kernels: Kernels) -> Array:
            return cross_entropy(with_kernels(merge_params(made.graph, params, rest), kernels), images, labels)

        return jax.grad(loss)(kernels)

    _, product = jax.jvp(gradient, (kernels,), (gradient(kernels),))
    return product


def _flow(model: nnx.Module, positive: Callable[[Array], Array], shape: tuple[int, ...], weights: Array) -> Scores:
    """k * dR/dk, with positive kernels k and no biases: R is the weighted sum of outputs for an input of ones."""
    work = with_biases(model, 0.0)
    kernels = {path: positive(layer.kernel[...]) for path, layer in masked_layers(work).items()}
    with_kernels(work, kernels)
    gradient = kernel_gradient(work, weighted_outputs, jnp.ones((1, *shape)), weights)
    return {path: kernel * gradient[path] for path, kernel in kernels.items()}


@partial(jax.jit, static_argnums=0)
def _active_inputs(made: Structure, params: Any, rest: Any, images: Array) -> Float[Array, "1 o"]:
    """For each output, the squared inputs of all active paths, summed over images.

    Gates (of units that are off, of pooling) act on derivatives as they act on values. So every layer gets, in place of
    its own derivative, that of a layer in which surviving weights are alike; then the derivative of the outputs in the
    direction of the squared images adds up the paths. A layer's factor, 1 / fan_in, keeps numbers in range.
    """
    model = merge_params(made.graph, params, rest)

    def counts_paths(index: int, call: Call) -> Array:
        layer = nnx.clone(call.layer)
        layer.kernel[...] = jnp.full_like(layer.kernel[...], 1 / layer.fan_in)
        counted = layer(call.inputs)
        return jax.lax.stop_gradient(call.outputs - counted) + counted

    def outputs(x: Array) -> Array:
        return record(model, is_masked, lambda m: m(x), counts_paths)[0]

    _, paths = jax.jvp(outputs, (images,), (jnp.square(images),))
    return paths.sum(0, keepdims=True)


@partial(jax.jit, static_argnums=(0, 3))
def _mask_gradient(made: Structure, params: Any, rest: Any, shape: tuple[int, ...], key: Array) -> Kernels:
    """The derivative, by masks, of the squared change of outputs when weights are perturbed."""
    model = merge_params(made.graph, params, rest)
    layers = masked_layers(model)
    inputs_key, weights_key, noise_key = jax.random.split(key, 3)
    inputs = jax.random.normal(inputs_key, (PERTURBED_INPUTS, *shape))
    weights = he_kernels(model, dict.fromkeys(layers, 1.0), weights_key)
    noise = {
        path: jax.random.normal(k, kernel.shape, kernel.dtype)
        for k, (path, kernel) in zip(jax.random.split(noise_key, len(weights)), weights.items(), strict=True)
    }

    def outputs(masks: Kernels, scale: float) -> Array:
        kernels = {path: masks[path] * (weights[path] + scale * noise[path]) for path in weights}
        return with_kernels(with_full_masks(model), kernels)(inputs)

    def moved(masks: Kernels) -> Array:
        return jnp.square(outputs(masks, 0.0) - outputs(masks, PERTURBATION)).sum()

    return jax.grad(moved)({path: layer.mask[...].astype(layer.kernel.dtype) for path, layer in layers.items()})


def _check_labels(model: nnx.Module, images: Array, labels: Array) -> None:
    low, high = int(labels.min()), int(labels.max())
    outputs = jax.eval_shape(lambda x: nnx.clone(model)(x), images).shape[-1]
    if low < 0 or high >= outputs:
        raise ShapeError(f"labels run from {low} to {high}, but the model has {outputs} outputs.")
