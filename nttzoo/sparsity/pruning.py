"""Pruning before training: the methods, and `prune`, which turns their scores into masks, in one round or in many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from nttzoo._util.checks import check_array, check_instance, check_shape, check_texts
from nttzoo._util.deprecation import renamed_argument
from nttzoo._util.rngs import RngsLike, as_key
from nttzoo.errors import ModelError, OptionError, ShapeError
from nttzoo.nn import LayerPath, masked_layers, path_name, set_masks
from nttzoo.registry import Registry
from nttzoo.sparsity import allocation, schemes, scores
from nttzoo.sparsity.density import Density, on_the_way
from nttzoo.sparsity.kernels import he_kernels
from nttzoo.sparsity.masks import Scores, make_masks, warn_of_empty_layers
from nttzoo.sparsity.schemes import Scheme

M = TypeVar("M", bound=nnx.Module)
Batch = Array | tuple[Array, Array] | None


@dataclass(frozen=True)
class Method:
    """How a pruning method ranks weights.

    `score(model, seen, key)` gives an array of scores for each prunable kernel; `seen` is just what the method
    `needs`: None, the shape of one input, images [n, ...], or (images, labels [n]). With several `rounds`, the density
    falls by the same factor in each, and the network that is left is scored again; what is pruned stays pruned, unless
    it is `returning`. A method with `uniform` keeps the same fraction of all layers that compete with each other: under
    `global` of all. `redraw(model, densities per layer, key)`, if given, gives new kernels. A method may have
    a `scheme` of its own.
    """

    score: Callable[[nnx.Module, Any, Array], Scores]
    needs: Literal["nothing", "shape", "images", "labels"]
    uniform: bool = False
    rounds: int = 1
    returning: bool = False
    scheme: str | None = None
    redraw: Callable[[nnx.Module, Mapping[LayerPath, float], Array], dict[LayerPath, Array]] | None = None


METHODS: Registry[Method] = Registry("pruning method")


@renamed_argument("key", "rngs")
def prune(
    model: M,
    method: str | Method,
    *,
    density: Density,
    scheme: str | Scheme = "layerwise",
    exclude: Sequence[str] = (),
    batch: Batch = None,
    rngs: RngsLike | None = None,
    input_shape: tuple[int, ...] | None = None,
) -> M:
    """Sets the masks of `model`, in place, to the best weights of a method, and returns the model.

    Args:
      model: any NNX module with masked layers (see `nttzoo.sparsify`).
      method: a name in `METHODS`, or a `Method`.
      density: fraction of weights to keep, in (0, 1]; or one for each glob over layer paths, such as
        {"blocks.*": 0.02, "*": 0.1}, of which the first that matches a layer counts.
      scheme: "layerwise", "global", "erk", "budget", or a function (see `nttzoo.sparsity.schemes`).
      exclude: globs over the paths of layers that stay dense, such as ["head", "stem.*"].
      batch: images [n, ...], or (images, labels [n]) for methods that need labels.
      rngs: seeds the random methods: an `nnx.Rngs`, a JAX key or a number.
      input_shape: of one example, for schemes that count multiply-adds; by default the model's own, or the batch's.

    Returns:
      The same model.

    Raises:
      ModelError: if the model has no masked layers.
      DensityError: if a layer would be left without weights.
      OptionError: if a glob matches no layer. If anything is wrong, the model stays as it was.

    Example:
      >>> nttzoo.prune(model, "magnitude", density={"head": 0.3, "*": 0.01}, exclude=["stem"])
    """
    masked_layers(model)  # an error, if it has none
    chosen = METHODS[method] if isinstance(method, str) else method
    check_instance("method", chosen, Method)
    check_texts("exclude", exclude)
    if input_shape is not None:
        check_shape("input_shape", input_shape)
    name = method if isinstance(method, str) else "of your own"
    if isinstance(batch, tuple) and len(batch) != 2:
        raise OptionError(f"batch has {len(batch)} parts; it must be images, or (images, labels).")
    images = batch[0] if isinstance(batch, tuple) and batch else batch
    if images is not None:  # the labels are looked at only by methods that need them
        check_array("batch", images)
    example: Any = input_shape
    if input_shape is None and images is not None and not hasattr(model, "input_shape"):
        example = jax.ShapeDtypeStruct((1, *jnp.shape(images)[1:]), jnp.result_type(images))
    layers = allocation.describe(model, example)

    def allocate(progress: float) -> schemes.Groups:
        where = chosen.scheme or scheme
        return allocation.allocate(layers, on_the_way(density, progress), where, exclude, uniform=chosen.uniform)

    groups = allocate(1.0)
    shape = _input_shape(model, input_shape, images)
    seen = _what_it_may_see(batch, chosen.needs, name, shape)
    if rngs is None and chosen.uniform:
        raise OptionError(f"pruning method {name!r} is random: give `rngs`, for example rngs=0.")
    score_key, redraw_key = jax.random.split(as_key(0 if rngs is None else rngs))

    work = nnx.clone(model)
    for done in range(1, chosen.rounds + 1):
        round_key = jax.random.fold_in(score_key, done) if chosen.rounds > 1 else score_key
        found = _checked(chosen.score(work, seen, round_key), work, name)
        if chosen.rounds > 1 and not chosen.returning:
            # Scores are not negative: what is pruned comes last.
            found = {path: jnp.where(x.mask[...], found[path], -1) for path, x in masked_layers(work).items()}
        masks = make_masks(found, allocate(done / chosen.rounds) if done < chosen.rounds else groups)
        set_masks(work, masks)
    kernels = chosen.redraw(model, allocation.densities(groups), redraw_key) if chosen.redraw else {}

    warn_of_empty_layers(masks)
    for path, kernel in kernels.items():
        masked_layers(model)[path].kernel[...] = kernel
    set_masks(model, masks)
    return model


def _checked(found: Scores, model: nnx.Module, name: str) -> Scores:
    """The scores, if there is a finite one for each weight."""
    layers = masked_layers(model)
    if {path: s.shape for path, s in found.items()} != {path: x.kernel.shape for path, x in layers.items()}:
        raise ModelError(f"pruning method {name!r} must give one score for each weight of each prunable layer.")
    for path, layer in found.items():
        if not bool(jnp.isfinite(layer).all()):
            raise ModelError(
                f"the scores of layer '{path_name(path)}' are not finite: look for NaN in weights and batch."
            )
    return found


def _input_shape(model: nnx.Module, given: tuple[int, ...] | None, images: Any) -> tuple[int, ...] | None:
    """The shape of one input, as far as it is known."""
    known = given or getattr(model, "input_shape", None)
    return tuple(known) if known else None if images is None else jnp.shape(images)[1:]


def _what_it_may_see(batch: Batch, needs: str, name: str, shape: tuple[int, ...] | None) -> Any:
    """The part of the batch that a method needs: a label-free method never gets the labels."""
    if needs == "nothing":
        return None
    if needs == "shape":
        if shape is None:
            raise ShapeError(
                f"pruning method {name!r} needs the shape of one input: give input_shape=(28, 28, 1), say."
            )
        return shape
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


_RANDOM: dict[str, Any] = {"score": scores.random_scores, "needs": "nothing", "uniform": True}
METHODS.register("random")(Method(**_RANDOM))
METHODS.register("scaled_random")(Method(**_RANDOM, redraw=he_kernels))
METHODS.register("erk")(Method(**_RANDOM, redraw=he_kernels, scheme="erk"))
METHODS.register("magnitude")(Method(scores.magnitude_scores, needs="nothing"))
METHODS.register("snip")(Method(scores.snip_scores, needs="labels"))
METHODS.register("logit_snip")(Method(scores.logit_snip_scores, needs="images"))
METHODS.register("iterative_snip")(Method(scores.snip_scores, needs="labels", rounds=60))
METHODS.register("force")(Method(scores.force_scores, needs="labels", rounds=60, returning=True))
METHODS.register("grasp")(Method(scores.grasp_scores, needs="labels"))
METHODS.register("synflow")(Method(scores.synflow_scores, needs="shape", rounds=100))
METHODS.register("ntk_sap")(Method(scores.ntk_sap_scores, needs="shape", rounds=20))
METHODS.register("px")(Method(scores.px_scores, needs="images", rounds=100))
