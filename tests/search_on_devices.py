"""A small search on as many devices as the environment has: run as a program by test_search_devices.py.

search_on_devices.py OUT MODEL TANGENTS OUTPUTS DEVICES: students go to OUT as .npz (first process only).
search_on_devices.py OUT MODEL TANGENTS OUTPUTS distributed [FOLDER STOP_AFTER]: the same on all processes; then
  again in FOLDER, stopped after so many chunks; if that folder is there already, only the rest of it.
search_on_devices.py OUT run: a short search by name in the folder OUT, distributed.
"""

import sys
from contextlib import suppress
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from nttzoo import architectures, checkpoint, search
from nttzoo.search import loop, recipes
from nttzoo.search.recipes import Recipe

SHAPES = {"lenet300": (4, 4, 1), "lenet5": (16, 16, 1)}


def main():
    if sys.argv[2:] == ["run"]:
        search.start_distributed()
        recipe = recipes.find("ntt", "lenet300", "mnist5k").change(epochs=1, batch_size=400)
        search.run(search.SearchConfig(recipe=recipe), out=sys.argv[1], progress=False)
        return
    out, model, tangents, outputs, devices, *stop = sys.argv[1:]
    if devices != "distributed":
        write(out, find(model, tangents, int(outputs), devices=int(devices)))
        return
    search.start_distributed()
    folder = Path(stop[0]) if stop else None
    resumed = folder is not None and folder.exists()
    multihost_utils.sync_global_devices("all have looked at the folder")
    if resumed:
        write(out, find(model, tangents, int(outputs), journal=search.Journal(folder)))
        return
    write(out, find(model, tangents, int(outputs)))
    if folder:
        real, calls = loop.agreed, iter(range(99))
        loop.agreed = lambda asked, chunk, save: (next(calls) == int(stop[1]), *real(asked, 1, save)[1:])
        with suppress(search.Interrupted):
            find(model, tangents, int(outputs), journal=search.Journal(folder))


def find(model, tangents, outputs, **options):
    """A short search for two students."""
    recipe = Recipe(
        name="tiny",
        epochs=2,
        batch_size=48,
        learning_rate=1e-3,
        kernel_weight=0.1,
        weight_decay=1e-4,
        mask_every=2,
        tangents=tangents,
        outputs=outputs or None,
    )
    config = search.SearchConfig(densities=(0.2,), schemes=("layerwise", "global"), recipe=recipe)
    teacher = architectures.create(model, input_shape=SHAPES[model], num_classes=3, rngs=0)
    images = np.random.default_rng(0).normal(size=(200, *SHAPES[model])).astype(np.float32)
    return search.transfer(teacher, images, config, progress=False, **options)


def write(out, found):
    arrays = {}
    for student in found.students:
        arrays |= {f"{student.target.name}/{k}": v for k, v in checkpoint.pack(student.model).items()}
        arrays[f"{student.target.name}/after"] = np.array(student.kernel_after)
    if jax.process_index() == 0:
        np.savez(out, **arrays)


if __name__ == "__main__":
    main()
