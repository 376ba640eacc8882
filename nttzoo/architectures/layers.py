"""The layers of the paper's networks.

Glorot-normal weights, biases normal with standard deviation 0.01, VALID padding, stride 1.
"""

from __future__ import annotations

from flax import nnx

from nttzoo import nn
from nttzoo.errors import ShapeError

Shape = tuple[int, ...]
_INIT = {"kernel_init": nnx.initializers.glorot_normal(), "bias_init": nnx.initializers.normal(0.01)}


def linear(inputs: int, outputs: int, rngs: nnx.Rngs) -> nn.Linear:
    """A masked linear layer, initialized as the paper's."""
    return nn.Linear(inputs, outputs, rngs=rngs, **_INIT)


def conv(inputs: int, outputs: int, window: int, rngs: nnx.Rngs) -> nn.Conv:
    """A masked convolution without padding, initialized as the paper's."""
    return nn.Conv(inputs, outputs, (window, window), padding="VALID", rngs=rngs, **_INIT)


def flat_size(input_shape: Shape, windows: list[int | str], channels: int, who: str) -> int:
    """Size of the flattened features after convolutions of these windows and 2x2 "pool"s."""
    height, width = input_shape[:2]
    for step in windows:
        if isinstance(step, int):
            height, width = height - step + 1, width - step + 1
        else:
            height, width = height // 2, width // 2
        if min(height, width) < 1:
            raise ShapeError(f"images of shape {input_shape} are too small for {who}.")
    return height * width * channels
