"""A sparse model as arrays without its zeros, and back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from nttzoo.checkpoint.arrays import Stored, check_fit
from nttzoo.errors import FileError
from nttzoo.nn import masked_layers, path_name


def pack(model: nnx.Module) -> dict[str, np.ndarray]:
    """A sparse model's arrays without its zeros: packed mask bits, surviving values, and all else but random keys."""
    packed: dict[str, np.ndarray] = {}
    layers = masked_layers(model)
    for path, layer in layers.items():
        mask = np.asarray(layer.mask[...])
        packed[f"{path_name(path)}.mask"] = np.packbits(mask.reshape(-1))
        if mask.any():  # Orbax does not store empty arrays
            packed[f"{path_name(path)}.kernel"] = np.asarray(layer.kernel[...])[mask]
    for path, value in _others(model, layers):
        packed[path_name(path)] = np.asarray(value[...])
    return packed


def layout(model: nnx.Module) -> dict[str, Stored]:
    """What `pack` makes of any model of this structure, which may be abstract (`nnx.eval_shape`)."""
    layers = masked_layers(model)
    found = {}
    for path, layer in layers.items():
        size = int(np.prod(layer.mask.shape, dtype=np.int64))
        found[f"{path_name(path)}.mask"] = Stored((-(-size // 8),), np.dtype(np.uint8))
        found[f"{path_name(path)}.kernel"] = Stored((size,), np.dtype(layer.kernel.dtype), at_most=True)
    for path, value in _others(model, layers):
        found[path_name(path)] = Stored(tuple(value.shape), np.dtype(value.dtype))
    return found


def unpack(model: nnx.Module, packed: Mapping[str, Any], *, source: str | Path = "the checkpoint") -> None:
    """Sets a model's arrays, in place, from what `pack` made of a model of the same structure.

    Raises:
      FileError: if shapes, types or numbers of weights are not exactly those of the model, or values are not finite.
    """
    arrays = {name: np.asarray(array) for name, array in packed.items()}
    check_fit(source, {name: (array.shape, array.dtype) for name, array in arrays.items()}, layout(model))
    for name, array in arrays.items():
        if jnp.issubdtype(array.dtype, jnp.inexact) and not np.isfinite(array.astype(np.float64)).all():
            raise FileError(source, f"holds values of {name} that are not finite")
    layers = masked_layers(model)
    for path, layer in layers.items():
        name, size = path_name(path), layer.mask.size
        bits = np.unpackbits(arrays[f"{name}.mask"])
        mask = bits[:size].astype(bool).reshape(layer.mask.shape)
        values = arrays.get(f"{name}.kernel", np.zeros(0, layer.kernel.dtype))
        if len(values) != mask.sum() or bits[size:].any():
            raise FileError(source, f"holds {len(values)} weights of {name}, whose mask keeps {bits.sum()}")
        kernel = np.zeros(layer.kernel.shape, layer.kernel.dtype)
        kernel[mask] = values
        layer.mask[...], layer.kernel[...] = jnp.asarray(mask), jnp.asarray(kernel)
    for path, value in _others(model, layers):
        value[...] = jnp.asarray(arrays[path_name(path)])


def _others(model: nnx.Module, layers: Collection[tuple[Any, ...]]) -> list[tuple[tuple[Any, ...], Any]]:
    """The variables of a model that are not pruned: biases, norms and their statistics ..."""
    pruned = {(*path, name) for path in layers for name in ("kernel", "mask")}
    kept = nnx.state(model, nnx.Not(nnx.RngState))
    return [(path, value) for path, value in nnx.to_flat_state(kept) if path not in pruned]
