"""Images with and without labels, their batches, and data sets made of them.

Images stay uint8 [n, h, w, c] until they are on the device; `standardize` then makes them float32 there. Data of one's
own may have other axes: sequences [n, t, c] and features [n, c] are called images here too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral

import numpy as np
from jaxtyping import Array, Float, Integer, Num

from nttzoo._util.checks import check_count, check_number, check_text, check_texts
from nttzoo._util.deprecation import renamed_argument, renamed_attribute, renamed_method
from nttzoo._util.rngs import RngsLike, as_generator
from nttzoo.data.input_spec import InputSpec
from nttzoo.errors import DataError, OptionError, ShapeError

ARRAYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class Unlabeled:
    """Images alone, for the search: there are no labels in it that could leak."""

    images: Num[np.ndarray, "n *axes c"]

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {len(self):,} images {list(self.images.shape[1:])}, {self.images.dtype}"

    @renamed_argument("seed", "rngs")
    def batches(self, size: int, *, rngs: RngsLike) -> Iterator[np.ndarray]:
        """One epoch of batches [size, h, w, c] in random order; a smaller last batch is dropped.

        Args:
          size: images per batch.
          rngs: an `nnx.Rngs`, a JAX key or a number.
        """
        for chosen in epoch_order(as_generator(rngs), len(self), size):
            yield self.images[chosen]


@dataclass(frozen=True)
class Labeled:
    """Images with their labels."""

    images: Num[np.ndarray, "n *axes c"]
    labels: Integer[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {len(self):,} images {list(self.images.shape[1:])}, {self.images.dtype}"

    @renamed_argument("seed", "rngs")
    def batches(self, size: int, *, rngs: RngsLike) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """One epoch of (images, labels) in random order; a smaller last batch is dropped.

        Args:
          size: images per batch.
          rngs: an `nnx.Rngs`, a JAX key or a number.
        """
        for chosen in epoch_order(as_generator(rngs), len(self), size):
            yield self.images[chosen], self.labels[chosen]

    @renamed_argument("seed", "rngs")
    def split(self, fraction: float, *, rngs: RngsLike) -> tuple[Labeled, Labeled]:
        """(rest, held out): a random `fraction` of the examples is held out.

        Args:
          fraction: in [0, 1).
          rngs: an `nnx.Rngs`, a JAX key or a number.
        """
        check_number("fraction", fraction, "the fraction held out, in [0, 1)", 0, 1)
        order = as_generator(rngs).permutation(len(self))
        held, rest = np.split(order, [round(fraction * len(self))])
        return Labeled(self.images[rest], self.labels[rest]), Labeled(self.images[held], self.labels[held])

    def without_labels(self) -> Unlabeled:
        """The images alone."""
        return Unlabeled(self.images)


@dataclass(frozen=True)
class Dataset:
    """A training and a test set, their class names, and the statistics of the training images.

    Example:
      >>> mnist = nttzoo.data.load("mnist5k")
      >>> for images, labels in mnist.train.batches(64, rngs=0):
      ...     x = mnist.standardize(images)
    """

    name: str
    train: Labeled
    test: Labeled
    classes: tuple[str, ...]
    license: str = "not stated"

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.input_shape))
        return (
            f"Dataset {self.name!r}: {len(self.train):,} training and {len(self.test):,} test images "
            f"({shape}, {self.train.images.dtype}), {self.num_classes} classes ({', '.join(self.classes)}), "
            f"license: {self.license}"
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one image: (h, w, c); of sequences (t, c), of features (c,)."""
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
        """The inputs and outputs that a network for this data set needs."""
        mean, std = (tuple(map(float, moments)) for moments in (self.mean, self.std))
        return InputSpec(tuple(self.input_shape), mean, std, tuple(self.classes))

    def standardize(self, images: Num[np.ndarray, "n *axes c"]) -> Float[Array, "n *axes c"]:
        """Images standardized with the statistics of this data set's training images."""
        return self.input_spec.standardize(images)

    standardise = renamed_method("standardise", "standardize")
    licence = renamed_attribute("licence", "license")

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
            but_channels = tuple(range(images.ndim - 1))
            mean = images.mean(but_channels, dtype=np.float64)
            # Rounding would give a constant channel a tiny variance, which is not one to divide by.
            variance = np.where(np.ptp(images, but_channels) > 0, images.var(but_channels, dtype=np.float64), 0)
        return mean.astype(np.float32), np.sqrt(variance).astype(np.float32)


def epoch_order(rng: np.random.Generator, examples: int, size: int) -> Integer[np.ndarray, "steps size"]:
    """The examples' indices in random order, cut into batches; a smaller last batch is dropped."""
    if not isinstance(size, Integral) or isinstance(size, bool) or not 0 < int(size) <= examples:
        raise OptionError(f"batch size {size!r} does not fit {examples} examples: choose 1 to {examples}.")
    steps = examples // size
    return rng.permutation(examples)[: steps * size].astype(np.int32).reshape(steps, size)


def from_arrays(
    x_train: np.ndarray,
    y_train: np.ndarray,
    x_test: np.ndarray,
    y_test: np.ndarray,
    *,
    name: str = "custom",
    classes: tuple[str, ...] | None = None,
) -> Dataset:
    """Makes a data set from arrays.

    Args:
      x_train: images [n, h, w, c], uint8 or floating point; or sequences [n, t, c] or features [n, c] of floats. Gray
        uint8 images may leave out the channel axis.
      y_train: integer labels [n].
      x_test: images.
      y_test: labels.
      name: name of the data set in messages and files.
      classes: names of the classes (default: "0", "1" ...).

    Returns:
      The data set.

    Raises:
      ShapeError: if the arrays are not images and labels.
      DataError: if images are not finite, or labels are out of range.

    Example:
      >>> mine = nttzoo.data.from_arrays(x_train, y_train, x_test, y_test, classes=("cat", "dog"))
    """
    check_text("name", name)
    if classes is not None:
        classes = check_texts("classes", classes)
        check_count("the number of classes", len(classes))
    arrays = dict(zip(ARRAYS, map(np.asarray, (x_train, y_train, x_test, y_test)), strict=True))
    arrays |= {part: with_channels(arrays[part]) for part in ("x_train", "x_test")}
    labels = np.concatenate([arrays["y_train"].reshape(-1), arrays["y_test"].reshape(-1)])
    if classes is None and labels.size and np.issubdtype(labels.dtype, np.integer):
        classes = tuple(map(str, range(int(labels.max()) + 1)))
    return validated(name, arrays, classes or ("0",))


def with_channels(images: np.ndarray) -> np.ndarray:
    """Gray images [n, h, w] of bytes get their channel axis; other arrays stay as they are."""
    return images[..., None] if images.ndim == 3 and images.dtype == np.uint8 else images


def validated(
    name: str, arrays: dict[str, np.ndarray], classes: tuple[str, ...], license: str = "not stated"
) -> Dataset:
    """A data set of these arrays (x_train, y_train, x_test, y_test), if they are images and labels."""
    for part in ("train", "test"):
        images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if images.ndim < 2 or not images.size:
            raise ShapeError(
                f"x_{part} of {name!r} must be images [n, h, w, c], sequences [n, t, c] or features [n, c], n > 0; got "
                f"{list(images.shape)}."
            )
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
        shapes = " and ".join(str(list(arrays[f"x_{part}"].shape[1:])) for part in ("train", "test"))
        raise ShapeError(f"training and test images of {name!r} differ in shape: {shapes}.")
    train = Labeled(arrays["x_train"], arrays["y_train"].astype(np.int32))
    test = Labeled(arrays["x_test"], arrays["y_test"].astype(np.int32))
    return Dataset(name, train, test, classes, license)
