"""ResNet-20 with group normalization."""

from __future__ import annotations

from itertools import pairwise

import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array

from nttzoo import nn
from nttzoo.architectures.layers import Shape, linear
from nttzoo.architectures.registry import ARCHITECTURES, Network

GROUPS = 8


class Block(nnx.Module):
    """Two 3x3 convolutions beside a shortcut without weights."""

    def __init__(self, inputs: int, outputs: int, rngs: nnx.Rngs):
        self.stride = outputs // inputs  # a block that doubles the channels halves height and width
        self.conv1 = _conv(inputs, outputs, self.stride, rngs)
        self.norm1 = nnx.GroupNorm(outputs, GROUPS, rngs=rngs)
        self.conv2 = _conv(outputs, outputs, 1, rngs)
        self.norm2 = nnx.GroupNorm(outputs, GROUPS, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        y = nnx.relu(self.norm1(self.conv1(x)))
        return nnx.relu(self.norm2(self.conv2(y)) + self.shortcut(x))

    def shortcut(self, x: Array) -> Array:
        """The input; where the block changes shapes, every other pixel, and zeros for the new channels."""
        if self.stride == 1:
            return x
        for axis in (1, 2):  # x[:, ::2, ::2] of a batch of unknown size is exported as a gather
            x = lax.slice_in_dim(x, 0, x.shape[axis], 2, axis)
        return jnp.concatenate([x, jnp.zeros_like(x)], axis=-1)


@ARCHITECTURES.register("resnet20")
class ResNet20(Network):
    """ResNet-20 (He et al., 2016) with group in place of batch normalization: examples do not depend on each other."""

    default_input_shape = (32, 32, 3)

    def __init__(self, *, num_classes: int, input_shape: Shape, rngs: nnx.Rngs):
        super().__init__(num_classes=num_classes, input_shape=input_shape)
        self.stem = _conv(input_shape[2], 16, 1, rngs)
        self.norm = nnx.GroupNorm(16, GROUPS, rngs=rngs)
        widths = (16, 16, 16, 16, 32, 32, 32, 64, 64, 64)
        self.blocks = nnx.List([Block(i, o, rngs) for i, o in pairwise(widths)])
        self.output = linear(64, num_classes, rngs)

    def logits(self, images: Array, rngs: nnx.Rngs | None) -> Array:
        """Convolution, nine blocks, mean over pixels, linear layer."""
        x = nnx.relu(self.norm(self.stem(images)))
        for block in self.blocks:
            x = block(x)
        return self.output(x.mean((1, 2)))


def _conv(inputs: int, outputs: int, stride: int, rngs: nnx.Rngs) -> nn.Conv:
    init = nnx.initializers.he_normal()
    return nn.Conv(inputs, outputs, (3, 3), strides=stride, use_bias=False, kernel_init=init, rngs=rngs)
