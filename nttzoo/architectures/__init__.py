"""Networks by name: the paper's, a recurrent, a residual and a depthwise separable one."""

from nttzoo.architectures import own
from nttzoo.architectures.conv4 import Conv4
from nttzoo.architectures.ds_cnn import DSCNN
from nttzoo.architectures.gru import GRU
from nttzoo.architectures.lenet import LeNet5, LeNet300
from nttzoo.architectures.registry import ARCHITECTURES, Network, blank, check_images, create
from nttzoo.architectures.resnet import ResNet20
from nttzoo.ops.pooling import max_pool

__all__ = [
    "ARCHITECTURES",
    "DSCNN",
    "GRU",
    "Conv4",
    "LeNet5",
    "LeNet300",
    "Network",
    "ResNet20",
    "blank",
    "check_images",
    "create",
    "max_pool",
    "own",
]
