"""What is on disk between runs: states of a search, and sparse models. The only Orbax code."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from flax import nnx

from nttzoo.errors import RunError
from nttzoo.nn import masked_layers, path_name


class Checkpoints:
    """The latest states of a run, by step; half-written ones are never seen. Every process has to take part."""

    def __init__(self, folder: Path, *, keep: int = 2):
        self.folder = folder
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(epath.Path(folder.absolute()), options=options)

    def latest(self) -> int | None:
        """The step of the latest state, or None."""
        return self._manager.latest_step()

    def save(self, step: int, state: Any) -> None:
        """Saves a tree of arrays as the state after `step` steps."""
        if step in self._manager.all_steps():
            return
        try:
            self._manager.save(step, args=ocp.args.StandardSave(_by_name(state)))
        except (OSError, ValueError) as error:
            # The storage library reports a full disk as a ValueError.
            raise RunError(
                f"the state at step {step} could not be saved in {self.folder}: {error}. The latest whole one is that "
                f"of step {self.latest()}; make room and run the same command again."
            ) from error

    def restore(self, step: int, like: Any) -> Any:
        """The state after `step` steps, with the structure, types and devices of `like`."""
        shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, _by_name(like))
        found = self._manager.restore(step, args=ocp.args.StandardRestore(shapes))
        return jax.tree.unflatten(jax.tree.structure(like), [found[name] for name in _by_name(like)])

    def close(self) -> None:
        """Frees the threads behind it."""
        self._manager.close()


def _by_name(tree: Any) -> dict[str, Any]:
    """The leaves of any tree under names that tell where they were."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def check_room(folder: Path, size: int) -> None:
    """Raises unless the disk has room for `size` bytes."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise RunError(
            f"{folder} has room for {free / 2**20:,.0f} MiB; this run may need {size / 2**20:,.0f} MiB. Make room, or "
            "choose another folder with --out."
        )


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


def unpack(model: nnx.Module, packed: dict[str, Any]) -> None:
    """Sets a model's arrays, in place, from what `pack` made of a model of the same shapes."""
    layers = masked_layers(model)
    expected = {f"{path_name(path)}.mask" for path in layers} | {path_name(path) for path, _ in _others(model, layers)}
    if missing := sorted(expected - packed.keys()):
        raise RunError(f"the checkpoint holds another network: it has no {', '.join(missing)}.")
    for path, layer in layers.items():
        packed_mask = np.asarray(packed[f"{path_name(path)}.mask"])
        if packed_mask.size != -(-layer.mask.size // 8):
            raise RunError(f"the checkpoint holds another network: its mask of {path_name(path)} has another size.")
        bits = np.unpackbits(packed_mask, count=layer.mask.size)
        mask = bits.astype(bool).reshape(layer.mask.shape)
        kernel = np.zeros(layer.kernel.shape, layer.kernel.dtype)
        if mask.any():
            kernel[mask] = np.asarray(packed[f"{path_name(path)}.kernel"])
        layer.mask[...], layer.kernel[...] = jnp.asarray(mask), jnp.asarray(kernel)
    for path, value in _others(model, layers):
        value[...] = jnp.asarray(packed[path_name(path)])


def _others(model: nnx.Module, layers: Collection[tuple[Any, ...]]) -> list[tuple[tuple[Any, ...], Any]]:
    """The variables of a model that are not pruned: biases, norms and their statistics ..."""
    pruned = {(*path, name) for path in layers for name in ("kernel", "mask")}
    kept = nnx.state(model, nnx.Not(nnx.RngState))
    return [(path, value) for path, value in nnx.to_flat_state(kept) if path not in pruned]


def _alone(folder: Path) -> Any:
    """For Orbax: this process writes by itself, and does not wait for the other hosts of a run."""
    me = jax.process_index()
    options = ocp.options.MultiprocessingOptions
    return options(primary_host=me, active_processes={me}, barrier_sync_key_prefix=folder.name)


def save_arrays(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes arrays as one Orbax checkpoint, whole or not at all; an older one there is replaced."""
    with ocp.StandardCheckpointer(multiprocessing_options=_alone(folder)) as checkpointer:
        checkpointer.save(epath.Path(folder.absolute()), arrays, force=True)


def load_arrays(folder: Path) -> dict[str, np.ndarray]:
    """The arrays of `save_arrays`, on the host."""
    if not folder.is_dir():
        raise RunError(f"there is no checkpoint at {folder}.")
    with ocp.PyTreeCheckpointer() as checkpointer:
        try:
            description = checkpointer.metadata(epath.Path(folder.absolute())).item_metadata.tree
            numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), description)
            return checkpointer.restore(epath.Path(folder.absolute()), restore_args=numpy)
        except Exception as error:  # whatever Orbax meets in a folder that is cut short
            raise RunError(f"the checkpoint at {folder} is damaged or not whole: {error}") from error
