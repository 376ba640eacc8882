"""A network and data that the commands are given as files."""

import numpy as np

from nttzoo import cli

NET = """
from flax import nnx

class Tiny(nnx.Module):
    def __init__(self, num_classes, rngs):
        self.conv = nnx.Conv(1, 4, (3, 3), strides=2, rngs=rngs)
        self.head = nnx.Linear(36, num_classes, rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.relu(self.conv(x)).reshape(x.shape[0], -1))

def tiny(rngs, num_classes=3):
    return Tiny(num_classes, rngs)

def no_rngs(): ...
def more(rngs, depth): ...
def a_class(rngs): return Tiny
class OnlyRngs(Tiny):
    def __init__(self, rngs): super().__init__(3, rngs)
class Deep(Tiny):
    def __init__(self, depth, rngs): super().__init__(3, rngs)
def raises(rngs): return {}["depth"]
class Fails(Tiny):
    def __call__(self, x):
        assert x.shape[1] == 7, "seven rows"
def fails(rngs): return Fails(3, rngs)
def a_list(rngs): return [1, 2]
def lenet300(rngs): ...
def wide(rngs): return nnx.Linear(7, 3, rngs=rngs)
def no_layers(rngs): return nnx.LayerNorm(6, rngs=rngs)
number = 5

def arrays():
    import numpy as np
    rng = np.random.default_rng(0)
    return rng.random((9, 6, 6)), rng.integers(0, 3, 9), rng.random((6, 6, 6)), rng.integers(0, 3, 6)

def a_set(): return {1, 2}
def lost(): return open("lost.csv")
def none(): return arrays(1)
def wants_more(path): ...
"""


def stripes(n, shape=(6, 6, 1), seed=0):
    """Images [n, *shape] of uint8 noise, brighter in the rows of their class: 0, 1 or 2."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    images = rng.integers(0, 100, (n, *shape))
    for image, label in zip(images, labels, strict=True):
        image[2 * label : 2 * label + 2] += 120
    return images.astype(np.uint8), labels


def save_npz(path, shape=(6, 6, 1), **change):
    x, y = stripes(240, shape)
    x_test, y_test = stripes(60, shape, seed=1)
    content = {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test} | change
    np.savez(path, **{key: value for key, value in content.items() if value is not None})


def run(*arguments):
    cli.main([str(argument) for argument in arguments])


SEARCH = ["--density", 0.3, "--scheme", "erk", "--epochs", 1, "--batch-size", 8, "--mask-every", 8]
