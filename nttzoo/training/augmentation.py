"""Augmentation: training images changed at random in every epoch, in ways that keep their label."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Num

from nttzoo.errors import ShapeError
from nttzoo.registry import Registry

Images = Num[np.ndarray, "n h w c"]
# (images, generator) -> images of the same shape and type
Augmentation = Callable[[np.ndarray, np.random.Generator], np.ndarray]
AUGMENTATIONS: Registry[Augmentation] = Registry("augmentation")

SHIFT = 4  # pixels


@AUGMENTATIONS.register("flip")
def flip(images: Images, rng: np.random.Generator) -> Images:
    """Mirrors half of the images, left to right."""
    _check(images)
    mirrored = rng.random(len(images)) < 0.5
    return np.where(mirrored[:, None, None, None], images[:, :, ::-1], images)


@AUGMENTATIONS.register("crop")
def crop(images: Images, rng: np.random.Generator) -> Images:
    """Shifts each image by up to four pixels in either direction; what is uncovered is its own reflection."""
    _check(images)
    height, width = images.shape[1:3]
    shift = min(SHIFT, height - 1, width - 1)
    padded = np.pad(images, ((0, 0), (shift, shift), (shift, shift), (0, 0)), mode="reflect")
    moves = rng.integers(0, 2 * shift + 1, (len(images), 2))
    moved = np.empty_like(images)
    for down, right in np.unique(moves, axis=0):
        alike = (moves == (down, right)).all(1)
        moved[alike] = padded[alike, down : down + height, right : right + width]
    return moved


@AUGMENTATIONS.register("crop_flip")
def crop_flip(images: Images, rng: np.random.Generator) -> Images:
    """Both: the usual augmentation for CIFAR-10."""
    return flip(crop(images, rng), rng)


def _check(images: np.ndarray) -> None:
    if images.ndim != 4:
        raise ShapeError(
            f"these augmentations are for images [n, h, w, c], not for data of shape {list(images.shape)}: choose "
            "'none', or a function of your own."
        )
