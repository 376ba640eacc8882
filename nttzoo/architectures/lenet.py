"""LeNet-300-100 and LeNet-5."""

from __future__ import annotations

import math

from flax import nnx
from jaxtyping import Array

from nttzoo.architectures.layers import Shape, conv, flat_size, linear
from nttzoo.architectures.registry import ARCHITECTURES, Network
from nttzoo.ops.pooling import max_pool


@ARCHITECTURES.register("lenet300")
class LeNet300(Network):
    """LeNet-300-100: a perceptron with hidden layers of 300 and 100 units."""

    default_input_shape = (28, 28, 1)

    def __init__(self, *, num_classes: int, input_shape: Shape, rngs: nnx.Rngs):
        super().__init__(num_classes=num_classes, input_shape=input_shape)
        self.linear1 = linear(math.prod(input_shape), 300, rngs)
        self.linear2 = linear(300, 100, rngs)
        self.linear3 = linear(100, num_classes, rngs)

    def logits(self, images: Array, rngs: nnx.Rngs | None) -> Array:
        """784 - 300 - 100 - classes."""
        x = images.reshape(images.shape[0], -1)
        x = nnx.relu(self.linear1(x))
        x = nnx.relu(self.linear2(x))
        return self.linear3(x)


@ARCHITECTURES.register("lenet5")
class LeNet5(Network):
    """LeNet-5 as Caffe has it: two 5x5 convolutions with pooling, then 500 units."""

    default_input_shape = (28, 28, 1)

    def __init__(self, *, num_classes: int, input_shape: Shape, rngs: nnx.Rngs):
        super().__init__(num_classes=num_classes, input_shape=input_shape)
        flat = flat_size(input_shape, [5, "pool", 5, "pool"], 50, "lenet5")
        self.conv1 = conv(input_shape[2], 20, 5, rngs)
        self.conv2 = conv(20, 50, 5, rngs)
        self.linear1 = linear(flat, 500, rngs)
        self.linear2 = linear(500, num_classes, rngs)

    def logits(self, images: Array, rngs: nnx.Rngs | None) -> Array:
        """Pooling before ReLU, which is the same and costs less."""
        x = nnx.relu(max_pool(self.conv1(images)))
        x = nnx.relu(max_pool(self.conv2(x)))
        x = x.reshape(x.shape[0], -1)
        x = nnx.relu(self.linear1(x))
        return self.linear2(x)
