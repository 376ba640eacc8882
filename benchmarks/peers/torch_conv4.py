"""Peer: milliseconds of a Conv-4 training step (Adam, batch 64, channels_last) in PyTorch on the CPU, as JSON."""

import json
import sys
import time

import torch
from torch import nn


def main(threads: int = 2, batch: int = 64, repeats: int = 20) -> None:
    """Prints {"milliseconds": best of repeats, "version": ...}."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)

    def pair(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3), nn.ReLU(), nn.Conv2d(outputs, outputs, 3), nn.ReLU(), nn.MaxPool2d(2)]

    head = [nn.Flatten(), nn.Linear(3200, 512), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, 10)]
    model = nn.Sequential(*pair(3, 64), nn.Dropout(0.25), *pair(64, 128), nn.Dropout(0.25), *head)
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    images = torch.randn(batch, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (batch,))

    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    print(json.dumps({"milliseconds": 1000 * min(times[3:]), "version": torch.__version__}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
