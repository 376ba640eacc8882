"""Whether ONNX Runtime computes what the model computes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from nttzoo import data
from nttzoo.errors import ExportError
from nttzoo.export.conversion import Layout
from nttzoo.export.packages import onnx_packages

TOLERANCE = 1e-5
MOST = 1e-3  # allowed to a network that amplifies rounding
TRIES = 3  # of moved weights
SLACK = 10.0  # other programs round more often than once per weight


class Oracle(Protocol):
    """What knows a network's outputs; with `noise`, those of the network whose weights are moved by it."""

    def __call__(self, inputs: np.ndarray, noise: np.random.Generator | None = None) -> np.ndarray:
        """The outputs for inputs of shape [n, ...]."""


def parity_batches(shape: tuple[int, ...], batch: str | int, images: Any) -> list[np.ndarray]:
    """Batches to compare on: random ones, the given ones, and where they fit the embedded digits."""
    size = batch if isinstance(batch, int) else 8
    inputs = [np.random.default_rng(0).normal(size=(size, *shape)).astype(np.float32)]
    if images is None and shape == (28, 28, 1):
        digits = data.load("mnist5k")
        images = digits.standardize(digits.test.images[:64])
    if images is not None:
        images = np.asarray(images, np.float32)
        inputs.append(np.resize(images, (batch, *shape)) if isinstance(batch, int) else images)
    return inputs


def parity(model: Any, path: Path, inputs: list[np.ndarray], layout: Layout) -> float:
    """The largest difference between ONNX Runtime's outputs and the model's, relative to the largest output."""
    with onnx_packages():
        import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    worst = 0.0
    for images in inputs:
        expected = outputs_of(model, images)
        fed = images.transpose(0, 3, 1, 2) if layout == "NCHW" else images
        (got,) = session.run(None, {session.get_inputs()[0].name: np.ascontiguousarray(fed)})
        if got.shape != expected.shape:
            raise ExportError(f"ONNX Runtime gives outputs of shape {got.shape}, the model {expected.shape}.")
        worst = float(np.maximum(worst, difference(got, expected)))  # keeps a NaN, which `max` would lose
    if not is_rounding(worst, partial(outputs_of, model), inputs):
        raise ExportError(
            f"ONNX Runtime's outputs differ from the model's by {worst:.2e} of the largest output, more than rounding "
            "explains: nothing was written."
        )
    return worst


def is_rounding(difference: float, oracle: Oracle, batches: list[np.ndarray]) -> bool:
    """Whether rounding explains such a difference from an oracle's outputs.

    `TOLERANCE` does for most networks. Some amplify rounding: the norm of a nearly constant group divides by almost
    nothing. Moving all weights and inputs by one bit shows by how much.
    """
    if difference <= TOLERANCE:
        return True
    moved = max(_difference_when_moved(oracle, images) for images in batches)
    return difference <= min(SLACK * moved, MOST)


def _difference_when_moved(oracle: Oracle, inputs: np.ndarray) -> float:
    """How far the outputs go when all weights and inputs move by one bit."""
    expected = oracle(inputs)
    worst = 0.0
    for seed in range(TRIES):
        noise = np.random.default_rng(seed)
        worst = float(np.fmax(worst, difference(oracle(by_one_bit(inputs, noise), noise), expected)))
    return worst


def by_one_bit(values: np.ndarray, noise: np.random.Generator) -> np.ndarray:
    """Floats multiplied by 1 plus or minus their precision; other types as they are."""
    if not np.issubdtype(values.dtype, np.floating):
        return values
    signs = noise.choice([-1.0, 1.0], values.shape)
    return (values * (1 + signs * np.finfo(values.dtype).eps)).astype(values.dtype)


def outputs_of(
    model: Any, inputs: Float[np.ndarray, "n ..."], noise: np.random.Generator | None = None
) -> Float[np.ndarray, "n outputs"]:
    """What a model answers in evaluation mode; with `noise`, after its weights have moved by one bit."""
    model = nnx.clone(model)
    model.eval()
    if noise is not None:
        moved = jax.tree.map(lambda value: by_one_bit(np.asarray(value), noise), nnx.state(model, nnx.Param))
        nnx.update(model, moved)
    return np.asarray(nnx.jit(lambda m, x: m(x))(model, jnp.asarray(inputs)))


def difference(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest expected output."""
    return float(np.abs(got - expected).max() / max(np.abs(expected).max(), 1e-30))
