"""The paper's networks and their registry."""

from nttzoo.architectures.networks import (
    ARCHITECTURES,
    Conv4,
    LeNet5,
    LeNet300,
    Network,
    blank,
    check_images,
    check_seed,
    create,
    max_pool,
)

__all__ = [
    "ARCHITECTURES",
    "Conv4",
    "LeNet300",
    "LeNet5",
    "Network",
    "blank",
    "check_images",
    "check_seed",
    "create",
    "max_pool",
]
