"""Conv-4."""

from __future__ import annotations

from flax import nnx
from jaxtyping import Array

from nttzoo.architectures.layers import Shape, conv, flat_size, linear
from nttzoo.architectures.registry import ARCHITECTURES, Network
from nttzoo.ops.pooling import max_pool


@ARCHITECTURES.register("conv4")
class Conv4(Network):
    """Conv-4: four 3x3 convolutions in two pooled pairs, then 512 units; dropout in training."""

    default_input_shape = (32, 32, 3)

    def __init__(self, *, num_classes: int, input_shape: Shape, rngs: nnx.Rngs):
        super().__init__(num_classes=num_classes, input_shape=input_shape)
        flat = flat_size(input_shape, [3, 3, "pool", 3, 3, "pool"], 128, "conv4")
        self.conv1 = conv(input_shape[2], 64, 3, rngs)
        self.conv2 = conv(64, 64, 3, rngs)
        self.conv3 = conv(64, 128, 3, rngs)
        self.conv4 = conv(128, 128, 3, rngs)
        self.linear1 = linear(flat, 512, rngs)
        self.linear2 = linear(512, num_classes, rngs)
        self.dropout1 = nnx.Dropout(0.25, rngs=rngs)
        self.dropout2 = nnx.Dropout(0.25, rngs=rngs)
        self.dropout3 = nnx.Dropout(0.5, rngs=rngs)

    def logits(self, images: Array, rngs: nnx.Rngs | None) -> Array:
        """Pooling before ReLU, which is the same and costs less."""
        x = nnx.relu(self.conv1(images))
        x = nnx.relu(max_pool(self.conv2(x)))
        x = self.dropout1(x, rngs=rngs)
        x = nnx.relu(self.conv3(x))
        x = nnx.relu(max_pool(self.conv4(x)))
        x = self.dropout2(x, rngs=rngs)
        x = x.reshape(x.shape[0], -1)
        x = nnx.relu(self.linear1(x))
        x = self.dropout3(x, rngs=rngs)
        return self.linear2(x)
