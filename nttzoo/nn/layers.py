"""Sparse layers: NNX's own Linear, LinearGeneral and Conv with a mask that every forward pass applies.

A masked layer is a subclass of its NNX layer and runs that layer's own forward pass, so all options behave the same.
The kernel keeps the pruned weights in memory, but no forward pass sees them, whatever an optimizer does to them, and
their gradients are zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Bool, Float

from nttzoo._util.checks import check_model, check_texts
from nttzoo.errors import ModelError, OptionError
from nttzoo.ops.convolution import conv_general_dilated

LayerPath = tuple[Any, ...]


class Mask(nnx.Variable):
    """Which weights of a kernel survive: bool, of the kernel's shape. Not an `nnx.Param`: optimizers leave it alone."""


def _apply_mask(mask: Bool[Array, "..."], kernel: Float[Array, "..."]) -> Float[Array, "..."]:
    # `where` and not a product, which would propagate infinite or NaN pruned weights.
    return jnp.where(mask, kernel, jnp.zeros((), kernel.dtype))


# A primitive and not just `where`, so that tangent kernels find the masks in a traced program.
mask_p = Primitive("nttzoo_mask")
mask_p.def_impl(jax.jit(_apply_mask))
# Traced, not only shaped: inside shard_map a result also knows the mesh axes along which it varies.
mask_p.def_abstract_eval(lambda mask, kernel: jax.make_jaxpr(_apply_mask)(mask, kernel).out_avals[0])
mlir.register_lowering(mask_p, mlir.lower_fun(_apply_mask, multiple_results=False))
batching.defbroadcasting(mask_p)
ad.defjvp(mask_p, None, lambda tangent, mask, kernel: mask_p.bind(mask, tangent))
ad.primitive_transposes[mask_p] = lambda cotangent, mask, kernel: (
    None,
    cotangent if type(cotangent) is ad.Zero else mask_p.bind(mask, cotangent),
)


class _Masked(nnx.Module):
    """Common to the masked layers; `kernel` comes from the NNX layer, which is the next base class."""

    kernel: nnx.Param
    mask: Any

    def masked_kernel(self) -> Float[Array, "..."]:
        """The kernel with zeros in place of the pruned weights."""
        return mask_p.bind(self.mask[...], self.kernel[...])

    @property
    def fan_in(self) -> int:
        """The number of weights into one output unit."""
        return self.kernel.size // math.prod(self.output_units())

    def output_units(self) -> tuple[int, ...]:
        """The trailing axes of the kernel that number output units."""
        return self.kernel.shape[-1:]

    def __call__(self, inputs: Array, out_sharding: Any = None) -> Array:
        # The NNX layer's own forward pass, on a copy whose kernel is masked already.
        stand_in = SimpleNamespace(**{**vars(self), "kernel": self.masked_kernel(), "mask": None})
        dense_call = super().__call__.__func__  # type: ignore[attr-defined]
        return dense_call(stand_in, inputs, out_sharding=out_sharding)


class Linear(_Masked, nnx.Linear):
    """`nnx.Linear` with a mask. [..., in] -> [..., out]; kernel and mask [in, out]."""

    def __init__(self, *args: Any, **kwargs: Any):
        nnx.Linear.__init__(self, *args, **kwargs)
        add_mask(self)


class LinearGeneral(_Masked, nnx.LinearGeneral):
    """`nnx.LinearGeneral` with a mask of the kernel's shape [*batch, *in, *out]."""

    def __init__(self, *args: Any, **kwargs: Any):
        nnx.LinearGeneral.__init__(self, *args, **kwargs)
        add_mask(self)

    def output_units(self) -> tuple[int, ...]:
        """Batch axes number units of their own: each has its own slice of the kernel."""
        return (*self.batch_axis.values(), *self.out_features)


class Conv(_Masked, nnx.Conv):
    """`nnx.Conv` with a mask. [n, *space, in] -> [n, *space', out]; kernel and mask [*window, in / groups, out].

    The option `mask` of `nnx.Conv` gives the initial mask.
    """

    def __init__(self, *args: Any, conv_general_dilated: Any = conv_general_dilated, **kwargs: Any):
        nnx.Conv.__init__(self, *args, conv_general_dilated=conv_general_dilated, **kwargs)
        add_mask(self)


def add_mask(layer: Any) -> None:
    """Gives a layer a full mask, or makes one of the mask that it was created with."""
    given = getattr(layer, "mask", None)
    if given is not None:
        # nnx.Conv multiplies by its mask, which may hold any number: fold it in, so that outputs stay the same.
        given = jnp.asarray(given)
        if given.shape != layer.kernel.shape:
            raise ModelError(f"the mask has shape {given.shape}, the kernel {layer.kernel.shape}: they must be equal.")
        layer.kernel[...] = layer.kernel[...] * given
    mask = jnp.ones(layer.kernel.shape, bool) if given is None else given != 0
    layer.mask = nnx.data(Mask(mask))


def path_name(path: LayerPath) -> str:
    """A layer's path in dotted notation: ("layers", 0) -> "layers.0"."""
    return ".".join(map(str, path)) or "(the model itself)"


def matching(paths: Sequence[LayerPath], patterns: Sequence[str]) -> set[LayerPath]:
    """The paths that match any of the globs, such as "blocks.*"; raises if a glob matches none."""
    if isinstance(patterns, str):
        raise OptionError(f"exclude is {patterns!r}; globs over layer paths are a list: write [{patterns!r}].")
    check_texts("exclude", patterns)
    found: set[LayerPath] = set()
    for pattern in patterns:
        these = {path for path in paths if fnmatchcase(path_name(path), pattern)}
        if not these:
            names = ", ".join(map(path_name, paths))
            raise OptionError(f"no layer's path matches {pattern!r}. The prunable layers are: {names}.")
        found |= these
    return found


def is_masked(layer: Any) -> bool:
    """Whether a module is one of the layers above, with a mask."""
    return isinstance(layer, _Masked)


def masked_layers(model: nnx.Module) -> dict[LayerPath, Any]:
    """The prunable layers in NNX path order: {path: layer}, a shared layer once."""
    check_model("model", model)
    layers = {path: layer for path, layer in nnx.iter_modules(model) if is_masked(layer)}
    order = [path[:-1] for path in nnx.to_flat_state(nnx.state(model, Mask)).paths]
    if not layers:
        raise ModelError(
            f"{type(model).__name__} has no prunable layers (Linear, LinearGeneral or Conv of nttzoo.nn). "
            "model = nttzoo.sparsify(model) makes a copy whose layers have masks."
        )
    return {path: layers[path] for path in order}


def split_params(model: nnx.Module) -> tuple[Any, Any, Any]:
    """(graph, parameters, everything else), as jitted code passes it; `merge_params` is the inverse."""
    graph, params, *rest = nnx.split(model, nnx.Param, ...)
    return graph, params, rest[0]


def split_masked(model: nnx.Module) -> tuple[Any, Any, Any, Any]:
    """(graph, parameters, masks, everything else); `nnx.merge` is the inverse."""
    parts: Any = nnx.split(model, nnx.Param, Mask, ...)
    graph, params, masks, rest = parts
    return graph, params, masks, rest


def merge_params(graph: Any, params: Any, rest: Any) -> Any:
    """The model as a copy: what its forward pass changes (random streams, statistics) changes only the copy."""
    return nnx.merge(graph, params, rest, copy=True)


def set_masks(model: nnx.Module, masks: dict[LayerPath, Bool[Array, "..."]]) -> None:
    """Replaces the masks of the layers named by `masks`, in place."""
    layers = masked_layers(model)
    for path, mask in masks.items():
        layers[path].mask[...] = mask
