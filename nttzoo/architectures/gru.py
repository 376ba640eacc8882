"""A gated recurrent network that reads an image row by row."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from nttzoo import nn
from nttzoo.architectures.layers import Shape, linear
from nttzoo.architectures.registry import ARCHITECTURES, Network

UNITS = 128


@ARCHITECTURES.register("gru")
class GRU(Network):
    """128 gated recurrent units: each row of the image is one time step, and the last state is classified."""

    default_input_shape = (28, 28, 1)

    def __init__(self, *, num_classes: int, input_shape: Shape, rngs: nnx.Rngs):
        super().__init__(num_classes=num_classes, input_shape=input_shape)
        _, width, channels = input_shape
        init = nnx.initializers.glorot_normal()
        # No stream of random numbers: the first state is zero.
        self.recurrent = nnx.RNN(nnx.GRUCell(width * channels, UNITS, kernel_init=init, rngs=rngs), rngs=False)
        self.output = linear(UNITS, num_classes, rngs)
        nn.sparsify(self, copy=False)

    def logits(self, images: Array, rngs: nnx.Rngs | None) -> Array:
        """Rows [n, h, w * c] -> states [n, h, 128] -> logits of the last one."""
        n, height = images.shape[:2]
        rows = images.reshape(n, height, -1)
        states = self.recurrent(rows, initial_carry=jnp.zeros((n, UNITS), images.dtype))
        return self.output(states[:, -1])
