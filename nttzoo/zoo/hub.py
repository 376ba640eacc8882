"""Folders as the Hugging Face Hub holds them: config.json and the weights as safetensors, with masks and zeros."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from nttzoo._util import files, schema
from nttzoo._util.extras import extra
from nttzoo.checkpoint import networks
from nttzoo.data import InputSpec
from nttzoo.errors import FileError, OptionError
from nttzoo.nn import masked_layers, path_name
from nttzoo.zoo import saving

CONFIG = "config.json"
WEIGHTS = {"init": "init.safetensors", "trained": "model.safetensors"}
LIBRARY = "nttzoo"


def is_hub(folder: Path) -> bool:
    """Whether `write_weights` wrote this folder."""
    return any((folder / name).exists() for name in WEIGHTS.values())


def write_config(folder: Path, about: Mapping[str, Any]) -> None:
    """Writes config.json, with architecture, seed and input specification among what is known of a network."""
    files.write_text(folder / CONFIG, files.to_json({"library_name": LIBRARY, "weights": WEIGHTS, **about}))


def write_weights(folder: Path, model: nnx.Module, weights: str) -> None:
    """Writes the variables of a network, random keys left out; pruned weights are zeros."""
    with extra("hub"):
        from safetensors.numpy import save
    pruned = {(*path, "kernel"): np.asarray(layer.mask[...]) for path, layer in masked_layers(model).items()}
    arrays = {}
    for path, value in nnx.to_flat_state(nnx.state(model, nnx.Not(nnx.RngState))):
        array = np.asarray(value[...])
        arrays[path_name(path)] = np.where(pruned[path], array, 0).astype(array.dtype) if path in pruned else array
    files.write_bytes(folder / WEIGHTS[weights], save(arrays, {"format": "flax"}))


def load_hub(folder: Path, weights: str, factory: Callable[[], nnx.Module] | None = None) -> Any:
    """The network of a folder, in evaluation mode; every array is checked against what its architecture needs.

    `factory()` makes the network, if it is not a registered architecture.
    """
    with extra("hub"):
        from safetensors import SafetensorError
        from safetensors.numpy import load
    about = schema.read(folder / CONFIG, schema.NetworkFile, what="the config.json of a network of nttzoo")
    if factory is None:
        abstract, spec = networks.abstract_network(folder / CONFIG, about)
    elif about.get("factory"):
        abstract, spec = saving.call_factory(factory), InputSpec.from_dict(about)
    else:
        raise OptionError(f"{folder} holds a registered architecture and needs no factory: leave it out.")
    path = folder / WEIGHTS[weights]
    content = files.read_bytes(path, limit=networks.file_limit(abstract))
    try:
        arrays = load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise FileError(path, f"cannot be read: {error}") from error
    packed = _without_zeros(arrays, abstract, path)
    return networks.fill(abstract, spec, packed, path) if factory else networks.build(about, spec, packed, path)


def _without_zeros(arrays: dict[str, np.ndarray], abstract: nnx.Module, path: Path) -> dict[str, np.ndarray]:
    """Masks as bits and kernels as their surviving values, as `checkpoint` packs them."""
    packed = dict(arrays)
    for layer_path, layer in masked_layers(abstract).items():
        name, shape = path_name(layer_path), tuple(layer.kernel.shape)
        mask, kernel = (arrays.get(f"{name}.{part}") for part in ("mask", "kernel"))
        if mask is None or kernel is None:
            raise FileError(path, f"holds another network: it has no kernel or no mask of {name}")
        if mask.dtype != bool or mask.shape != shape or kernel.shape != shape:
            raise FileError(path, f"holds another network: kernel and mask of {name} should have shape {list(shape)}")
        if kernel[~mask].any():
            raise FileError(path, f"holds weights of {name} that its mask prunes")
        packed[f"{name}.mask"] = np.packbits(mask.reshape(-1))
        packed[f"{name}.kernel"] = kernel[mask]
        if not mask.any():
            del packed[f"{name}.kernel"]
    return packed
