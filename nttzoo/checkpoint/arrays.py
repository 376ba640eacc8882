"""Named arrays as one Orbax checkpoint.

Orbax writes them. They are read without it, because a checkpoint may come from a stranger: what each array says of
itself is compared with what is expected before its values are looked at, and nothing is unpacked beyond its expected
size.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

from nttzoo._util import files, schema
from nttzoo.errors import FileError


class Stored(NamedTuple):
    """What an array must be. `at_most`: it has one axis, of at most the given length, and may be left out."""

    shape: tuple[int, ...]
    dtype: np.dtype
    at_most: bool = False

    def fits(self, shape: tuple[int, ...], dtype: np.dtype) -> bool:
        """Whether an array of this shape and type will do."""
        if self.at_most:
            return dtype == self.dtype and len(shape) == 1 and 0 < shape[0] <= self.shape[0]
        return dtype == self.dtype and shape == self.shape


def save_arrays(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays as one Orbax checkpoint; an older one there is replaced."""
    import orbax.checkpoint as ocp  # takes a while to import, and reading does without it
    from etils import epath

    # This process writes by itself, and does not wait for the other hosts of a run.
    me = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=folder.name
    )
    with ocp.StandardCheckpointer(multiprocessing_options=alone) as checkpointer:
        checkpointer.save(epath.Path(folder.absolute()), dict(arrays), force=True)


def load_arrays(
    folder: Path, expected: Mapping[str, Stored] | None = None, *, source: Path | None = None
) -> dict[str, np.ndarray]:
    """The arrays of `save_arrays`, on the host.

    Args:
      folder: where they are.
      expected: what each array must be; None accepts anything; for trusted checkpoints only.
      source: where the folder was copied from, to be named if something is wrong.

    Raises:
      FileError: if the checkpoint is damaged, or an array is missing, superfluous, or of another shape or type.
    """
    if not folder.is_dir():
        raise FileError(source or folder, "is missing", f"There is no checkpoint at {source or folder}.")
    store = _open(folder)
    folder = source or folder
    described = {}
    for key in _result(folder, store.list()):
        name, _, part = key.decode(errors="replace").rpartition("/")
        if part == ".zarray":
            described[name] = _describe(folder, name, _result(folder, store.read(key)).value)
    if not described:
        raise FileError(folder, "is damaged or not whole: it holds no arrays")
    if expected is not None:
        check_fit(folder, described, expected)
    return {name: _read(folder, store, name, *what) for name, what in described.items()}


def check_fit(
    source: str | Path, found: Mapping[str, tuple[tuple[int, ...], np.dtype]], expected: Mapping[str, Stored]
) -> None:
    """Raises unless arrays of these shapes and types are those that a network needs."""
    if missing := sorted(name for name in expected.keys() - found.keys() if not expected[name].at_most):
        raise FileError(source, f"holds another network: it has no {', '.join(missing)}")
    if extra := sorted(found.keys() - expected.keys()):
        raise FileError(source, f"holds another network: it has {', '.join(extra[:5])}")
    for name, (shape, dtype) in found.items():
        if not expected[name].fits(shape, dtype):
            layer, _, part = name.rpartition(".")
            limit = "at most " if expected[name].at_most else ""
            raise FileError(
                source,
                f"holds another network: its {part} of {layer} has another size or type: {dtype} {list(shape)}, not "
                f"{expected[name].dtype} {limit}{list(expected[name].shape)}",
            )


def _open(folder: Path) -> Any:
    import tensorstore as ts

    if not (folder / "manifest.ocdbt").is_file():
        raise FileError(folder, "is damaged or not whole: manifest.ocdbt is missing")
    base = {"driver": "file", "path": f"{folder.absolute()}/"}
    return _result(folder, ts.KvStore.open({"driver": "ocdbt", "base": base}))


def _result(folder: Path, future: Any) -> Any:
    try:
        return future.result()
    except Exception as error:  # whatever the storage library meets in a folder that is cut short
        raise FileError(folder, f"is damaged or not whole: {str(error).splitlines()[0][:300]}") from error


def _describe(folder: Path, name: str, content: bytes) -> tuple[tuple[int, ...], np.dtype]:
    """(shape, type) of an array from its metadata; raises for one that Orbax would not have written."""
    where = folder / name / ".zarray"
    about = schema.validate(where, files.parse_json(where, content), schema.StoredArray)
    if about["chunks"] != [max(size, 1) for size in about["shape"]]:
        raise FileError(where, f"has chunks {about['chunks']} for shape {about['shape']}; one whole was expected")
    names = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
    try:
        dtype = names.get(about["dtype"]) or np.dtype(about["dtype"])
    except TypeError as error:
        raise FileError(where, f"has an unknown type {about['dtype']!r}") from error
    if dtype.hasobject:
        raise FileError(where, f"has a type {about['dtype']!r} that is not one of numbers")
    return tuple(about["shape"]), dtype


def _read(folder: Path, store: Any, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    import zstandard

    where = folder / name
    content = _result(where, store.read(f"{name}/{'.'.join('0' for _ in shape) or '0'}")).value
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    try:
        declared = zstandard.get_frame_parameters(content).content_size
        if declared != size:
            raise FileError(where, f"has {declared:,} bytes; {size:,} were expected")
        values = zstandard.ZstdDecompressor().decompress(content, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FileError(where, f"is damaged: {error}") from error
    if len(values) != size:
        raise FileError(where, f"has {len(values):,} bytes; {size:,} were expected")
    return np.frombuffer(values, dtype).reshape(shape).copy()
