"""Pruning before training: one score function per baseline, and `prune`, which turns scores into masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float

from nttzoo.errors import ModelError, OptionError, ShapeError
from nttzoo.nn import Path, masked_layers, merge_params, path_name, set_masks, split_params
from nttzoo.registry import Registry
from nttzoo.sparsity import schemes
from nttzoo.sparsity.masks import Scores, make_masks, warn_of_empty_layers
from nttzoo.sparsity.schemes import Density, Scheme

M = TypeVar("M", bound=nnx.Module)
Batch = Array | tuple[Array, Array] | None


@dataclass(frozen=True)
class Method:
    """How a pruning method ranks weights.

    `score(model, batch, key)` gives an array of scores for each prunable kernel; `batch` is just what the method
    `needs`: None, images [n, ...], or (images, labels [n]). A method with `even` keeps the same fraction of all layers
    that compete with each other: under `global` of all. `redraw(model, densities per layer, key)`, if given, gives new
    kernels.
    """

    score: Callable[[nnx.Module, Any, Array], Scores]
    needs: Literal["nothing", "images", "labels"]
    even: bool = False
    redraw: Callable[[nnx.Module, Mapping[Path, float], Array], dict[Path, Array]] | None = None


METHODS: Registry[Method] = Registry("pruning method")


def prune(
    model: M,
    method: str | Method,
    *,
    density: Density,
    scheme: str | Scheme = "layerwise",
    exclude: Sequence[str] = (),
    batch: Batch = None,
    key: Array | int | None = None,
    input_shape: tuple[int, ...] | None = None,
) -> M:
    """Sets the masks of `model`, in place, to the best weights of a method, and returns the model.

    Args:
      model: any NNX module with masked layers (see `nttzoo.sparsify`).
      method: a name in `METHODS`, or a `Method`.
      density: fraction of weights to keep, in (0, 1]; or one for each glob over layer paths, such as
        {"blocks.*": 0.02, "*": 0.1}, of which the first that matches a layer counts.
      scheme: "layerwise", "global", "erk", "budget", or a function of one's own (see `nttzoo.schemes`).
      exclude: globs over the paths of layers that stay dense, such as ["head", "stem.*"].
      batch: images [n, ...], or (images, labels [n]) for methods that need labels.
      key: seeds the random methods: a JAX key or a number.
      input_shape: of one example, for schemes that count multiply-adds; by default the model's own, or the batch's.

    Raises:
      DensityError: if a layer would be left without weights.
      OptionError: if a glob matches no layer. If anything is wrong, the model stays as it was.

    Example:
      >>> prune(model, "magnitude", density={"head": 0.3, "*": 0.01}, exclude=["stem"])
    """
    chosen = METHODS[method] if isinstance(method, str) else method
    name = method if isinstance(method, str) else "of your own"
    images = batch[0] if isinstance(batch, tuple) else batch
    example: Any = input_shape
    if input_shape is None and images is not None and not hasattr(model, "input_shape"):
        example = jax.ShapeDtypeStruct((1, *jnp.shape(images)[1:]), jnp.result_type(images))
    groups = schemes.allocate(schemes.describe(model, example), density, scheme, exclude, even=chosen.even)
    seen = _what_it_may_see(batch, chosen.needs, name)
    if isinstance(key, int | np.integer):
        key = jax.random.key(int(key))
    if key is None:
        if chosen.even:
            raise OptionError(f"pruning method {name!r} is random: give a `key`, for example key=0.")
        key = jax.random.key(0)
    score_key, redraw_key = jax.random.split(key)

    scores = chosen.score(model, seen, score_key)
    layers = masked_layers(model)
    if {path: s.shape for path, s in scores.items()} != {path: x.kernel.shape for path, x in layers.items()}:
        raise ModelError(f"pruning method {name!r} must give one score for each weight of each prunable layer.")
    for path, layer in scores.items():
        if not bool(jnp.isfinite(layer).all()):
            raise ModelError(
                f"the scores of layer '{path_name(path)}' are not finite: look for NaN in weights and batch."
            )
    masks = make_masks(scores, groups)
    kernels = chosen.redraw(model, schemes.densities(groups), redraw_key) if chosen.redraw else {}

    warn_of_empty_layers(masks)
    for path, kernel in kernels.items():
        layers[path].kernel[...] = kernel
    set_masks(model, masks)
    return model


def _what_it_may_see(batch: Batch, needs: str, name: str) -> Any:
    """The part of the batch that a method needs: a label-free method never gets the labels."""
    if needs == "nothing":
        return None
    if batch is None:
        what = "(images, labels)" if needs == "labels" else "images"
        raise OptionError(f"pruning method {name!r} needs a batch of {what}: give batch=...")
    images, labels = batch if isinstance(batch, tuple) else (batch, None)
    images = jnp.asarray(images)
    if len(images) == 0:
        raise ShapeError("the batch is empty; pruning methods need at least one image.")
    if not bool(jnp.isfinite(images).all()):
        raise ShapeError("the batch holds NaN or infinite values.")
    if needs == "images":
        return images
    if labels is None:
        raise OptionError(
            f"pruning method {name!r} needs labels: give batch=(images, labels), or use 'logit_snip', which needs none."
        )
    labels = jnp.asarray(labels)
    if labels.shape != images.shape[:1] or not jnp.issubdtype(labels.dtype, jnp.integer):
        raise ShapeError(
            f"labels are integers of shape [{len(images)}], one per image; got {labels.dtype} {list(labels.shape)}."
        )
    return images, labels


def magnitude_scores(model: nnx.Module, batch: None = None, key: Array | None = None) -> Scores:
    """|w|."""
    return {path: jnp.abs(layer.kernel[...]) for path, layer in masked_layers(model).items()}


def random_scores(model: nnx.Module, batch: None, key: Array) -> Scores:
    """Independent uniform numbers."""
    layers = masked_layers(model)
    keys = jax.random.split(key, len(layers))
    # 32 random bits, not a float's 23: ties, which would favor the lower index, become rare.
    return {
        path: jax.random.bits(k, layer.kernel.shape, jnp.uint32)
        for k, (path, layer) in zip(keys, layers.items(), strict=True)
    }


def snip_scores(model: nnx.Module, batch: tuple[Array, Array], key: Array | None = None) -> Scores:
    """|w * dLoss/dw|, Loss being the cross-entropy summed over a labeled batch."""
    images, labels = batch
    low, high = int(labels.min()), int(labels.max())

    def loss(model: Any) -> Array:
        logits = model(images)
        if low < 0 or high >= logits.shape[-1]:
            raise ShapeError(f"labels run from {low} to {high}, but the model has {logits.shape[-1]} outputs.")
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).sum()

    return _sensitivity(model, loss)


def logit_snip_scores(model: nnx.Module, batch: Float[Array, "n ..."], key: Array | None = None) -> Scores:
    """|w * dZ/dw|, Z being the sum of squared logits: no labels."""
    return _sensitivity(model, lambda m: jnp.square(m(batch)).sum())


def _sensitivity(model: nnx.Module, quantity: Callable[[Any], Array]) -> Scores:
    """|w * dQuantity/dw| in evaluation mode (no dropout)."""
    frozen = nnx.clone(model)
    frozen.eval()
    graph, params, rest = split_params(frozen)
    masked_layers(frozen)  # says what is wrong with a model that has none
    grads = jax.jit(jax.grad(lambda p: quantity(merge_params(graph, p, rest))))(params)
    nnx.update(frozen, grads)
    return {
        path: jnp.abs(layer.kernel[...] * gradient.kernel[...])
        for (path, layer), gradient in zip(masked_layers(model).items(), masked_layers(frozen).values(), strict=True)
    }


def he_kernels(model: nnx.Module, densities: Mapping[Path, float], key: Array) -> dict[Path, Array]:
    """Kernels redrawn from N(0, 2 / (fan_in * density)): the variance that survives pruning is Kaiming's."""
    layers = masked_layers(model)
    keys = jax.random.split(key, len(layers))

    def drawn(layer: Any, density: float, key: Array) -> Array:
        spread = (2 / (layer.fan_in * density)) ** 0.5
        return jax.random.normal(key, layer.kernel.shape, layer.kernel.dtype) * spread

    return {path: drawn(layer, densities[path], k) for k, (path, layer) in zip(keys, layers.items(), strict=True)}


METHODS.register("random")(Method(random_scores, needs="nothing", even=True))
METHODS.register("scaled_random")(Method(random_scores, needs="nothing", even=True, redraw=he_kernels))
METHODS.register("magnitude")(Method(magnitude_scores, needs="nothing"))
METHODS.register("snip")(Method(snip_scores, needs="labels"))
METHODS.register("logit_snip")(Method(logit_snip_scores, needs="images"))
