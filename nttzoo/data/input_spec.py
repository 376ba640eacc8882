"""The inputs that a network expects, and standardization of raw images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from nttzoo._util.checks import check_array, check_finite
from nttzoo._util.deprecation import renamed_method
from nttzoo.errors import ShapeError


@dataclass(frozen=True)
class InputSpec:
    """The inputs of a network (`shape`, standardized per channel with `mean` and `std`) and its class names."""

    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]

    def standardize(self, images: Num[Array, "n *axes c"] | Num[np.ndarray, "n *axes c"]) -> Float[Array, "n *axes c"]:
        """Standardizes raw images (uint8, or floats on the scale of the training set) for the network."""
        return standardize(jnp.asarray(images), *(jnp.asarray(x, jnp.float32) for x in (self.mean, self.std)))

    standardise = renamed_method("standardise", "standardize")

    def to_dict(self) -> dict[str, list[Any]]:
        """As JSON-compatible values."""
        shown = {"input_shape": self.shape, "mean": self.mean, "std": self.std, "classes": self.classes}
        return {key: list(values) for key, values in shown.items()}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> InputSpec:
        """From the result of `to_dict`; other keys are ignored."""
        return cls(*(tuple(content[key]) for key in ("input_shape", "mean", "std", "classes")))


def standardize(
    images: Num[Array, "n *axes c"], mean: Float[Array, " c"], std: Float[Array, " c"]
) -> Float[Array, "n *axes c"]:
    """(images - mean) / std per channel in float32; uint8 images are first scaled to 0 ... 1.

    Args:
      images: [n, h, w, c], or other examples whose last axis are channels: sequences [n, t, c], features [n, c].
      mean: per channel, for uint8 on the scale from 0 to 1.
      std: per channel, on the same scale; a channel whose std is 0 stays constant.

    Returns:
      Images as networks take them.

    Example:
      >>> x = nttzoo.data.standardize(images, mnist.mean, mnist.std)
    """
    for name, value in (("images", images), ("mean", mean), ("std", std)):
        check_array(name, value)
    images, mean, std = (jnp.asarray(value) for value in (images, mean, std))
    if images.ndim < 2 or not mean.shape == std.shape == images.shape[-1:]:
        raise ShapeError(
            f"images [n, ..., c] need mean and std [c]; got {list(images.shape)}, {list(mean.shape)} and "
            f"{list(std.shape)}."
        )
    check_finite("mean", mean)
    check_finite("std", std, least=0)
    scale = 255.0 if images.dtype == jnp.uint8 else 1.0
    # A constant channel stays constant instead of becoming NaN.
    slope = 1.0 / jnp.where(std > 0, std, 1.0)
    per_channel = (*[1] * (images.ndim - 1), -1)
    return images.astype(jnp.float32) * (slope / scale).reshape(per_channel) - (mean * slope).reshape(per_channel)
