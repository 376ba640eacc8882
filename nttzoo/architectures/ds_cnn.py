"""DS-CNN: depthwise separable convolutions for microcontrollers."""

from __future__ import annotations

from flax import nnx
from jaxtyping import Array

from nttzoo import nn
from nttzoo.architectures.layers import Shape, linear
from nttzoo.architectures.registry import ARCHITECTURES, Network

CHANNELS = 64
BLOCKS = 4


class SeparableBlock(nnx.Module):
    """A 3x3 convolution of each channel by itself, then a 1x1 convolution across channels; both normalized."""

    def __init__(self, rngs: nnx.Rngs):
        self.depthwise = _conv(CHANNELS, (3, 3), rngs, feature_group_count=CHANNELS)
        self.norm1 = _norm(rngs)
        self.pointwise = _conv(CHANNELS, (1, 1), rngs)
        self.norm2 = _norm(rngs)

    def __call__(self, x: Array) -> Array:
        x = nnx.relu(self.norm1(self.depthwise(x)))
        return nnx.relu(self.norm2(self.pointwise(x)))


@ARCHITECTURES.register("ds_cnn")
class DSCNN(Network):
    """The keyword-spotting network of MLPerf Tiny (Zhang et al., 2017), with group normalization and for images."""

    default_input_shape = (28, 28, 1)

    def __init__(self, *, num_classes: int, input_shape: Shape, rngs: nnx.Rngs):
        super().__init__(num_classes=num_classes, input_shape=input_shape)
        self.stem = _conv(input_shape[2], (10, 4), rngs, strides=2)
        self.norm = _norm(rngs)
        self.blocks = nnx.List([SeparableBlock(rngs) for _ in range(BLOCKS)])
        self.output = linear(CHANNELS, num_classes, rngs)

    def logits(self, images: Array, rngs: nnx.Rngs | None) -> Array:
        """Strided convolution, four separable blocks, mean over pixels, linear layer."""
        x = nnx.relu(self.norm(self.stem(images)))
        for block in self.blocks:
            x = block(x)
        return self.output(x.mean((1, 2)))


def _conv(inputs: int, window: tuple[int, int], rngs: nnx.Rngs, **options: int) -> nn.Conv:
    init = nnx.initializers.he_normal()
    return nn.Conv(inputs, CHANNELS, window, use_bias=False, kernel_init=init, rngs=rngs, **options)


def _norm(rngs: nnx.Rngs) -> nnx.GroupNorm:
    return nnx.GroupNorm(CHANNELS, 8, rngs=rngs)
