"""A sparse network of a registered architecture in a folder: arrays/, model.json and a manifest of both."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from nttzoo import architectures
from nttzoo._util import files, memory, schema
from nttzoo.architectures import own
from nttzoo.checkpoint.arrays import load_arrays, save_arrays
from nttzoo.checkpoint.packed import layout, pack, unpack
from nttzoo.data import InputSpec
from nttzoo.errors import FileError

SLACK = 2**20  # bytes that a file may have beyond what its arrays need


def save_network(folder: Path, model: Any, about: dict[str, Any]) -> None:
    """Writes a sparse network: its arrays, and what is needed to build it again. Replaces all of an older folder."""
    with files.new_folder(folder) as part:
        save_arrays(part / "arrays", pack(model))
        content = about | own.about(about["architecture"]) | model.input_spec.to_dict()
        files.write_text(part / "model.json", files.to_json(content))


def load_network(folder: Path) -> tuple[Any, dict[str, Any]]:
    """(network in evaluation mode, what its model.json says): what `save_network` wrote, if that is what is there."""
    files.recover(folder)
    about = schema.read(folder / "model.json", schema.NetworkFile)
    abstract, spec = abstract_network(folder / "model.json", about)
    with files.verified_copy(folder, limit=file_limit(abstract)) as copy:
        if files.read_json(copy / "model.json") != about:
            raise FileError(folder / "model.json", "changed while it was read", "Try again.")
        arrays = load_arrays(copy / "arrays", layout(abstract), source=folder / "arrays")
    return build(about, spec, arrays, folder / "arrays"), about


def build(about: Mapping[str, Any], spec: InputSpec, arrays: Mapping[str, np.ndarray], source: Path) -> Any:
    """A network in evaluation mode from its arrays."""
    return fill(architectures.blank(about["architecture"], spec, seed=about["seed"]), spec, arrays, source)


def fill(model: Any, spec: InputSpec, arrays: Mapping[str, np.ndarray], source: Path) -> Any:
    """A model with these arrays for its own, in evaluation mode."""
    unpack(model, arrays, source=source)
    model.eval()
    model.input_spec = spec
    return model


def abstract_network(path: Path, about: Mapping[str, Any]) -> tuple[Any, InputSpec]:
    """The shapes of the network that a file describes, and its inputs; raises if it does not fit into memory."""
    own.check_saved(about, str(path.parent))
    spec = InputSpec.from_dict(dict(about))
    if not len(spec.mean) == len(spec.std) == spec.shape[-1]:
        raise FileError(path, f"has {len(spec.mean)} means and {len(spec.std)} std for {spec.shape[-1]} channels")
    model = _abstract(about["architecture"], architectures.ARCHITECTURES[about["architecture"]], spec)
    if (size := dense_bytes(model)) > memory.device_memory() // 4:
        raise FileError(path, f"describes a network of {size / 2**30:,.1f} GiB, which is too large for this machine")
    return model, spec


@lru_cache(maxsize=16)  # tracing takes a tenth of a second, and an entry is checked several times
def _abstract(name: str, factory: Any, spec: InputSpec) -> Any:
    """A registered network without arrays, for reading; a name that is registered anew has another factory."""
    shapes: Any = {"num_classes": len(spec.classes), "input_shape": spec.shape}
    return nnx.eval_shape(lambda: architectures.create(name, rngs=0, **shapes))


def dense_bytes(model: nnx.Module) -> int:
    """What the arrays of a model take with all its zeros."""
    leaves = jax.tree.leaves(nnx.state(model, nnx.Not(nnx.RngState)))
    return sum(int(np.prod(leaf.shape, dtype=np.float64)) * leaf.dtype.itemsize for leaf in leaves)


def file_limit(model: nnx.Module) -> int:
    """How large a file of a network may be: dense weights of eight bytes each, twice over."""
    return 4 * dense_bytes(model) + SLACK


def recover_networks(folder: Path) -> None:
    """Brings back the networks in a folder, or this one, whose replacement was cut off."""
    for parent in (folder.parent, folder, folder / "students"):
        for old in parent.glob(f".*{files.OLD}") if parent.is_dir() else ():
            files.recover(parent / os.fsdecode(old.name)[1 : -len(files.OLD)])
