"""Data sets: embedded, from local .npz files, or through tensorflow-datasets; batches with and without labels.

Images stay uint8 [n, h, w, c] until they are on the device; `standardise` then makes them float32 there.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import platformdirs
from jaxtyping import Array, Float, Integer, Num

from nttzoo.errors import DataError, OptionError, ShapeError
from nttzoo.registry import Registry

DIGITS = tuple("0123456789")
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class Source:
    """Where a data set comes from and what it must look like."""

    tfds_name: str
    input_shape: tuple[int, int, int]
    classes: tuple[str, ...]
    licence: str
    embedded: bool = False


SOURCES: Registry[Source] = Registry("data set")
_MNIST_LICENCE = "CC BY-SA 3.0"
SOURCES.register("mnist5k")(Source("mnist", (28, 28, 1), DIGITS, _MNIST_LICENCE, embedded=True))
SOURCES.register("mnist")(Source("mnist", (28, 28, 1), DIGITS, _MNIST_LICENCE))
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


@dataclass(frozen=True)
class Unlabelled:
    """Images alone, for the search: there are no labels in it that could leak."""

    images: Num[np.ndarray, "n h w c"]

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, size: int, *, seed: int) -> Iterator[np.ndarray]:
        """One epoch of batches [size, h, w, c] in a seeded order; a last, smaller rest is left out."""
        for chosen in epoch_order(np.random.default_rng(seed), len(self), size):
            yield self.images[chosen]


@dataclass(frozen=True)
class Labelled:
    """Images with their labels."""

    images: Num[np.ndarray, "n h w c"]
    labels: Integer[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, size: int, *, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """One epoch of (images, labels) in a seeded order; a last, smaller rest is left out."""
        for chosen in epoch_order(np.random.default_rng(seed), len(self), size):
            yield self.images[chosen], self.labels[chosen]

    def split(self, fraction: float, *, seed: int) -> tuple[Labelled, Labelled]:
        """(rest, held out): a seeded random `fraction` of the examples is held out."""
        if not 0 <= fraction < 1:
            raise OptionError(f"the held-out fraction must be in [0, 1), got {fraction}.")
        order = np.random.default_rng(seed).permutation(len(self))
        held, rest = np.split(order, [round(fraction * len(self))])
        return Labelled(self.images[rest], self.labels[rest]), Labelled(self.images[held], self.labels[held])

    def without_labels(self) -> Unlabelled:
        """The images alone."""
        return Unlabelled(self.images)


@dataclass(frozen=True)
class InputSpec:
    """What a network's inputs need: images of `shape`, standardised with `mean` and `std`; what its outputs mean."""

    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]

    def standardise(self, images: Num[Array, "n h w c"] | Num[np.ndarray, "n h w c"]) -> Float[Array, "n h w c"]:
        """Raw images (uint8, or floats from 0 to 1) as the network takes them."""
        return standardise(jnp.asarray(images), *(jnp.asarray(x, jnp.float32) for x in (self.mean, self.std)))

    def to_dict(self) -> dict[str, list[Any]]:
        """For JSON, among other things that are known of a network."""
        shown = {"input_shape": self.shape, "mean": self.mean, "std": self.std, "classes": self.classes}
        return {key: list(values) for key, values in shown.items()}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> InputSpec:
        """From what `to_dict` gave, among other things."""
        return cls(*(tuple(content[key]) for key in ("input_shape", "mean", "std", "classes")))


@dataclass(frozen=True)
class Dataset:
    """A training and a test set, their class names, and the statistics of the training images."""

    name: str
    train: Labelled
    test: Labelled
    classes: tuple[str, ...]
    licence: str = "not stated"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape (h, w, c) of one image."""
        return self.train.images.shape[1:]

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @cached_property
    def mean(self) -> Float[np.ndarray, " c"]:
        """Mean of the training images per channel, on the scale on which uint8 images run from 0 to 1."""
        return self._moments[0]

    @cached_property
    def std(self) -> Float[np.ndarray, " c"]:
        """Standard deviation of the training images per channel, on the same scale."""
        return self._moments[1]

    @property
    def input_spec(self) -> InputSpec:
        """What a network for this data set has to know of its inputs and outputs."""
        mean, std = (tuple(map(float, moments)) for moments in (self.mean, self.std))
        return InputSpec(tuple(self.input_shape), mean, std, tuple(self.classes))

    def standardise(self, images: Num[np.ndarray, "n h w c"]) -> Float[Array, "n h w c"]:
        """Images on the scale of this data set's training images: mean 0 and standard deviation 1 per channel."""
        return self.input_spec.standardise(images)

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        images = self.train.images
        if images.dtype == np.uint8:
            # Exact, and without a float copy of the data set: count how often each of the 256 values occurs.
            counts = np.stack([np.bincount(images[..., c].reshape(-1), minlength=256) for c in range(images.shape[-1])])
            values, pixels = np.arange(256), counts.sum(1)
            mean = counts @ values / pixels
            variance = (counts * (values - mean[:, None]) ** 2).sum(1) / pixels / 255**2
            mean = mean / 255
        else:
            mean = images.mean((0, 1, 2), dtype=np.float64)
            # Rounding would give a constant channel a tiny variance, which is not one to divide by.
            variance = np.where(np.ptp(images, (0, 1, 2)) > 0, images.var((0, 1, 2), dtype=np.float64), 0)
        return mean.astype(np.float32), np.sqrt(variance).astype(np.float32)


def standardise(
    images: Num[Array, "n h w c"], mean: Float[Array, " c"], std: Float[Array, " c"]
) -> Float[Array, "n h w c"]:
    """(images - mean) / std per channel in float32; uint8 images are first scaled to 0 ... 1."""
    scale = 255.0 if images.dtype == jnp.uint8 else 1.0
    # A constant channel stays constant instead of becoming NaN.
    slope = 1.0 / jnp.where(std > 0, std, 1.0)
    per_channel = (1, 1, 1, -1)
    return images.astype(jnp.float32) * (slope / scale).reshape(per_channel) - (mean * slope).reshape(per_channel)


def epoch_order(rng: np.random.Generator, examples: int, size: int) -> Integer[np.ndarray, "steps size"]:
    """The examples' indices in random order, cut into batches; a last, smaller rest is left out."""
    if not 0 < size <= examples:
        raise OptionError(f"batch size {size} does not fit {examples} examples: choose 1 to {examples}.")
    steps = examples // size
    return rng.permutation(examples)[: steps * size].astype(np.int32).reshape(steps, size)


def load(name: str, *, data_dir: str | os.PathLike[str] | None = None, download: bool = False) -> Dataset:
    """A data set by name: `mnist5k` (embedded), `mnist`, `fashion_mnist`, `cifar10`, `svhn`.

    Looks for `<name>.npz` (arrays x_train, y_train, x_test, y_test) in `data_dir`, else in the folder that the
    environment variable NTTZOO_DATA names, else in the user's cache folder; then for a copy that tensorflow-datasets
    has prepared. Only with `download=True` does it use the network, through tensorflow-datasets.
    """
    source = SOURCES[name]
    if source.embedded:
        with resources.as_file(resources.files("nttzoo") / "_data" / f"{name}.npz") as path:
            return _checked(name, source, _read_npz(path))
    folder = data_folder(data_dir)
    for stem in dict.fromkeys((name, source.tfds_name)):
        if (path := folder / f"{stem}.npz").exists():
            return _checked(name, source, _read_npz(path))
    ways = (
        f"Two ways to get it: (1) put {name}.npz with arrays {', '.join(ARRAYS)} (uint8) into {folder} (or name "
        "another folder with --data-dir or NTTZOO_DATA); (2) with a network, `pip install nttzoo[tfds]` and load with "
        "download=True (--download). 'mnist5k' is always there."
    )
    try:
        arrays = _from_tfds(source.tfds_name, download=download)
    except ConnectionError as error:
        raise DataError(f"cannot download {name!r}: {error}. {ways}") from error
    if arrays is None:
        raise DataError(f"data set {name!r} is not on this machine. {ways}")
    return _checked(name, source, arrays)


def from_arrays(
    x_train: np.ndarray,
    y_train: np.ndarray,
    x_test: np.ndarray,
    y_test: np.ndarray,
    *,
    name: str = "custom",
    classes: tuple[str, ...] | None = None,
) -> Dataset:
    """A data set of one's own: images [n, h, w, c], uint8 or floating point, and integer labels [n]."""
    arrays = dict(zip(ARRAYS, map(np.asarray, (x_train, y_train, x_test, y_test)), strict=True))
    labels = np.concatenate([arrays["y_train"].reshape(-1), arrays["y_test"].reshape(-1)])
    if classes is None and labels.size and np.issubdtype(labels.dtype, np.integer):
        classes = tuple(map(str, range(int(labels.max()) + 1)))
    return _validated(name, arrays, classes or ("0",))


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder of local .npz files: the argument, else NTTZOO_DATA, else the user's cache folder."""
    given = data_dir or os.environ.get("NTTZOO_DATA")
    return Path(given) if given else Path(platformdirs.user_cache_dir("nttzoo")) / "data"


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            missing = [name for name in ARRAYS if name not in archive.files]
            if missing:
                raise DataError(f"{path} lacks {', '.join(missing)}; it must hold {', '.join(ARRAYS)}.")
            return {name: archive[name] for name in ARRAYS}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, AttributeError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read ({error}). It may be truncated: delete it and get it again.") from error


def _checked(name: str, source: Source, arrays: dict[str, np.ndarray]) -> Dataset:
    for part in ("x_train", "x_test"):
        if arrays[part].ndim == 3:
            arrays[part] = arrays[part][..., None]
    if name == "svhn":
        # Some copies of SVHN call the digit zero 10.
        for part in ("y_train", "y_test"):
            arrays[part] = np.where(arrays[part] == 10, 0, arrays[part])
    dataset = _validated(name, arrays, source.classes, licence=source.licence)
    for images in (dataset.train.images, dataset.test.images):
        if images.shape[1:] != source.input_shape or images.dtype != np.uint8:
            raise DataError(
                f"the images of {name!r} must be uint8 [n, {', '.join(map(str, source.input_shape))}]; "
                f"got {images.dtype} {list(images.shape)}."
            )
    return dataset


def _validated(
    name: str, arrays: dict[str, np.ndarray], classes: tuple[str, ...], licence: str = "not stated"
) -> Dataset:
    for part in ("train", "test"):
        images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if images.ndim != 4 or not len(images):
            raise ShapeError(f"x_{part} of {name!r} must be images [n, h, w, c], n > 0; got {list(images.shape)}.")
        if images.dtype != np.uint8 and not np.issubdtype(images.dtype, np.floating):
            raise ShapeError(f"x_{part} of {name!r} must be uint8 or floating point; got {images.dtype}.")
        if images.dtype != np.uint8 and not np.isfinite(images).all():
            raise DataError(f"x_{part} of {name!r} holds NaN or infinite values.")
        if labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
            raise ShapeError(
                f"y_{part} of {name!r} must be {len(images)} integers, one per image; "
                f"got {labels.dtype} {list(labels.shape)}."
            )
        if labels.min() < 0 or labels.max() >= len(classes):
            raise DataError(f"y_{part} of {name!r} has labels outside 0 ... {len(classes) - 1}.")
    if arrays["x_train"].shape[1:] != arrays["x_test"].shape[1:]:
        raise ShapeError(f"training and test images of {name!r} differ in shape.")
    train = Labelled(arrays["x_train"], arrays["y_train"].astype(np.int32))
    test = Labelled(arrays["x_test"], arrays["y_test"].astype(np.int32))
    return Dataset(name, train, test, classes, licence)


def _from_tfds(name: str, *, download: bool) -> dict[str, np.ndarray] | None:
    """The arrays of a data set that tensorflow-datasets has prepared, or prepares now; None if it cannot."""
    if importlib.util.find_spec("tensorflow_datasets") is None:
        return None
    import tensorflow_datasets as tfds

    builder = tfds.builder(name, data_dir=os.environ.get("TFDS_DATA_DIR"))
    if not builder.data_path.exists():
        if not download:
            return None
        if not _online():
            raise ConnectionError("this machine has no network")
        builder.download_and_prepare()
    arrays = {}
    for part in ("train", "test"):
        whole = tfds.as_numpy(builder.as_dataset(split=part, batch_size=-1))
        arrays[f"x_{part}"], arrays[f"y_{part}"] = np.asarray(whole["image"]), np.asarray(whole["label"])
    return arrays


def _online() -> bool:
    """Whether the host that serves tensorflow-datasets answers; tfds itself would try for minutes."""
    try:
        socket.create_connection(("storage.googleapis.com", 443), timeout=5).close()
    except OSError:
        return False
    return True
