"""The paper's networks and their registry."""

from nttzoo.architectures.conv4 import Conv4
from nttzoo.architectures.lenet import LeNet5, LeNet300
from nttzoo.architectures.registry import ARCHITECTURES, Network, blank, check_images, create
from nttzoo.ops.pooling import max_pool

__all__ = ["ARCHITECTURES", "Conv4", "LeNet5", "LeNet300", "Network", "blank", "check_images", "create", "max_pool"]
