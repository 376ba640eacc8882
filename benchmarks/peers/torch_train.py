"""Peer: milliseconds of a training step (Adam) in PyTorch on the CPU, dense, or sparse by SparseProp, as JSON."""

import json
import sys
import time

import torch
from torch import nn


def conv4() -> nn.Sequential:
    """The paper's Conv-4."""

    def pair(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3), nn.ReLU(), nn.Conv2d(outputs, outputs, 3), nn.ReLU(), nn.MaxPool2d(2)]

    head = [nn.Flatten(), nn.Linear(3200, 512), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, 10)]
    return nn.Sequential(*pair(3, 64), nn.Dropout(0.25), *pair(64, 128), nn.Dropout(0.25), *head)


def lenet5() -> nn.Sequential:
    """LeNet-5 as Caffe has it."""
    first = [nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.ReLU()]
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10))


def lenet300() -> nn.Sequential:
    """LeNet-300-100."""
    layers = [nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


NETWORKS = {"conv4": (conv4, (3, 32, 32)), "lenet5": (lenet5, (1, 28, 28)), "lenet300": (lenet300, (1, 28, 28))}


def prune(model: nn.Module, density: float) -> None:
    """Zeros all but a random fraction of each layer's weights."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            keep = torch.zeros(layer.weight.numel())
            keep[torch.randperm(len(keep))[: max(1, round(density * len(keep)))]] = 1
            with torch.no_grad():
                layer.weight *= keep.view_as(layer.weight)


def main(name: str, threads: int, batch: int, density: float = 1.0, repeats: int = 20) -> None:
    """Prints {"milliseconds": best of repeats, "version": ...}; below density 1 SparseProp computes."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    model, version = make(), f"torch {torch.__version__}"
    images, labels = torch.randn(batch, *shape), torch.randint(0, 10, (batch,))
    if density < 1:
        from importlib.metadata import version as version_of

        from sparseprop.utils import swap_modules_with_sparse

        prune(model, density)
        model = swap_modules_with_sparse(model, (batch, *shape), verbose=False)
        version = f"sparseprop {version_of('sparseprop')}"
    elif name != "lenet300":
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    print(json.dumps({"milliseconds": 1000 * min(times[3:]), "version": version}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]), *map(float, sys.argv[4:]))
