import jax
import numpy as np
from flax import nnx

from nttzoo import nn
from nttzoo.data import from_arrays
from nttzoo.training import TrainConfig

SHAPE = (4, 4, 1)


def blobs(train=40, test=10, shape=SHAPE, seed=0):
    """Three classes of images, each bright in a place of its own."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(3, *shape))

    def part(n):
        labels = np.arange(n) % 3
        return centers[labels] + 0.3 * rng.normal(size=(n, *shape)), labels

    return from_arrays(*part(train), *part(test), name="blobs")


class Small(nnx.Module):
    def __init__(self, rngs):
        self.first = nn.Linear(16, 8, rngs=rngs)
        self.second = nn.Linear(8, 3, rngs=rngs)

    def __call__(self, images):
        return self.second(jax.nn.relu(self.first(images.reshape(len(images), -1))))


def small(seed=0):
    return Small(nnx.Rngs(seed))


def config(**options):
    return TrainConfig(**{"epochs": 3, "batch_size": 8, "learning_rate": 0.01, "progress": False} | options)


def arrays(model):
    return jax.tree.map(np.array, nnx.to_pure_dict(nnx.state(model, (nnx.Param, nn.Mask))))


def same(a, b):
    return all(
        np.array_equal(x, y) for x, y in zip(jax.tree.leaves(arrays(a)), jax.tree.leaves(arrays(b)), strict=True)
    )
