"""The named data sets: embedded, from local .npz files, or through tensorflow-datasets."""

from __future__ import annotations

import os
import zipfile
import zlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import platformdirs

from nttzoo._util import files
from nttzoo._util.checks import check_flag, check_path
from nttzoo.data import tfds
from nttzoo.data.dataset import ARRAYS, Dataset, validated, with_channels
from nttzoo.errors import DataError
from nttzoo.registry import Registry

DIGITS = tuple("0123456789")
FILE_LIMIT = 2**40  # bytes of a data set
# What NumPy raises about a file that is not what it should be: cut short, encrypted, of another kind or a huge shape.
DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, AttributeError, TypeError),
    *(MemoryError, RuntimeError, SyntaxError),
)


@dataclass(frozen=True)
class Source:
    """Where a data set comes from and what it must look like."""

    tfds_name: str
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    license: str
    embedded: bool = False
    dataset: Dataset | None = None  # custom, see `nttzoo.data.own`
    reference: str = ""  # the name that the user gave


SOURCES: Registry[Source] = Registry("data set")
_MNIST_LICENSE = "CC BY-SA 3.0"
SOURCES.register("mnist5k")(Source("mnist", (28, 28, 1), DIGITS, _MNIST_LICENSE, embedded=True))
SOURCES.register("mnist")(Source("mnist", (28, 28, 1), DIGITS, _MNIST_LICENSE))
SOURCES.register("fashion_mnist")(
    Source(
        "fashion_mnist",
        (28, 28, 1),
        ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
        "MIT",
    )
)
SOURCES.register("cifar10")(
    Source(
        "cifar10",
        (32, 32, 3),
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        "not stated by its authors",
    )
)
SOURCES.register("svhn")(Source("svhn_cropped", (32, 32, 3), DIGITS, "non-commercial use only"))


def load(name: str, *, data_dir: str | os.PathLike[str] | None = None, download: bool = False) -> Dataset:
    """Loads a data set by name: `mnist5k` (embedded), `mnist`, `fashion_mnist`, `cifar10` or `svhn`.

    Looks for `<name>.npz` (arrays x_train, y_train, x_test, y_test), then for a copy that tensorflow-datasets has
    prepared. Only `download=True` uses the network, through tensorflow-datasets.

    Args:
      name: of the data set.
      data_dir: the folder of .npz files (default: the environment variable NTTZOO_DATA, else the user's cache folder).
      download: whether tensorflow-datasets may download the data set.

    Returns:
      The data set; `print` shows its size, classes and license.

    Raises:
      UnknownName: if there is no such data set.
      DataError: if it is not found locally, or its file is damaged.

    Example:
      >>> mnist = nttzoo.data.load("mnist5k")
    """
    source = SOURCES[name]
    check_flag("download", download)
    if data_dir is not None:
        check_path("data_dir", data_dir)
    if source.dataset is not None:
        return source.dataset
    if source.embedded:
        with resources.as_file(resources.files("nttzoo") / "_data" / f"{name}.npz") as path:
            return _checked(name, source, read_npz(path))
    folder = data_folder(data_dir)
    for stem in dict.fromkeys((name, source.tfds_name)):
        if (path := folder / f"{stem}.npz").exists():
            return _checked(name, source, read_npz(path))
    ways = (
        f"Two ways to get it: (1) put {name}.npz with arrays {', '.join(ARRAYS)} (uint8) into {folder} (or name "
        "another folder with --data-dir or NTTZOO_DATA); (2) with a network, `pip install nttzoo[tfds]` and load with "
        "download=True (--download). 'mnist5k' is always there."
    )
    try:
        arrays = tfds.read(source.tfds_name, download=download)
    except ConnectionError as error:
        raise DataError(f"cannot download {name!r}: {error}. {ways}") from error
    if arrays is None:
        raise DataError(f"data set {name!r} is not on this machine. {ways}")
    return _checked(name, source, arrays)


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder of local .npz files: the argument, else NTTZOO_DATA, else the user's cache folder."""
    given = data_dir or os.environ.get("NTTZOO_DATA")
    return Path(given) if given else Path(platformdirs.user_cache_dir("nttzoo")) / "data"


def read_npz(path: Path, optional: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """The arrays of a data set's file, and of the optional ones those that it has."""
    try:
        files.check_regular(path, limit=FILE_LIMIT)
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            missing = [name for name in ARRAYS if name not in archive.files]
            if missing:
                has = ", ".join(archive.files) or "nothing"
                raise DataError(f"{path} lacks {', '.join(missing)}; it must hold {', '.join(ARRAYS)} and has {has}.")
            return {name: archive[name] for name in (*ARRAYS, *optional) if name in archive.files}
    except DAMAGE as error:
        if isinstance(error, DataError):
            raise
        if "Object arrays" in str(error):
            raise DataError(
                f"{path} cannot be read: it holds pickled Python objects, which could run code. Save arrays "
                "of numbers or strings, without dtype=object."
            ) from error
        raise DataError(f"{path} cannot be read ({error}). It may be truncated: delete it and get it again.") from error


def _checked(name: str, source: Source, arrays: dict[str, np.ndarray]) -> Dataset:
    arrays = arrays | {part: with_channels(arrays[part]) for part in ("x_train", "x_test")}
    if name == "svhn":
        # Some copies of SVHN call the digit zero 10.
        for part in ("y_train", "y_test"):
            arrays[part] = np.where(arrays[part] == 10, 0, arrays[part])
    dataset = validated(name, arrays, source.classes, license=source.license)
    for images in (dataset.train.images, dataset.test.images):
        if images.shape[1:] != source.input_shape or images.dtype != np.uint8:
            raise DataError(
                f"the images of {name!r} must be uint8 [n, {', '.join(map(str, source.input_shape))}]; "
                f"got {images.dtype} {list(images.shape)}."
            )
    return dataset
