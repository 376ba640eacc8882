"""Whether ONNX Runtime computes what the model computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from nttzoo import data
from nttzoo.errors import ExportError
from nttzoo.export.conversion import Layout
from nttzoo.export.packages import onnx_packages

TOLERANCE = 1e-5


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
    if not worst <= TOLERANCE:
        raise ExportError(
            f"ONNX Runtime's outputs differ from the model's by {worst:.2e} of the largest output, more than "
            f"{TOLERANCE:.0e}: nothing was written."
        )
    return worst


def outputs_of(model: Any, inputs: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, "n outputs"]:
    """What a model answers in evaluation mode."""
    model = nnx.clone(model)
    model.eval()
    return np.asarray(nnx.jit(lambda m, x: m(x))(model, jnp.asarray(inputs)))


def difference(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest expected output."""
    return float(np.abs(got - expected).max() / max(np.abs(expected).max(), 1e-30))
