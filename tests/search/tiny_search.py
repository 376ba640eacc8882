"""A search that takes a second, for the tests."""

import dataclasses

import numpy as np

from nttzoo import architectures, nn, search
from nttzoo.search.recipes import Recipe

SHAPE = (4, 4, 1)


RECIPE = Recipe(
    name="tiny",
    epochs=2,
    batch_size=8,
    learning_rate=2e-3,
    kernel_weight=1.0,
    weight_decay=1e-4,
    mask_every=3,
    held_out=0.2,
)


def teacher(seed=0):
    return architectures.create("lenet300", input_shape=SHAPE, num_classes=3, rngs=seed)


def images(count=120):
    return np.random.default_rng(0).normal(size=(count, *SHAPE)).astype(np.float32)


def config(**change):
    names = {field.name for field in dataclasses.fields(search.SearchConfig)}
    ours = {name: value for name, value in change.items() if name in names}
    recipe = RECIPE.change(**{name: value for name, value in change.items() if name not in names})
    return search.SearchConfig(**{"densities": (0.2,), "recipe": recipe, **ours})


FOUND = {}


def transfer(**change):
    """A search; one that several tests look at runs once."""
    if (key := repr(change)) not in FOUND:
        FOUND[key] = search.transfer(teacher(), images(), config(**change), progress=False)
    return FOUND[key]


def weights(student):
    return {p: (np.asarray(x.kernel[...]), np.asarray(x.mask[...])) for p, x in nn.masked_layers(student.model).items()}
