"""Titles of architectures and data sets, for cards."""

from __future__ import annotations

TITLES = {
    "lenet300": "LeNet-300-100",
    "lenet5": "LeNet-5",
    "conv4": "Conv-4",
    "gru": "GRU",
    "ds_cnn": "DS-CNN",
    "resnet20": "ResNet-20",
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "svhn": "SVHN",
}


def title(name: str) -> str:
    """The title of an architecture or a data set; custom ones keep their name."""
    return TITLES.get(name, name)
