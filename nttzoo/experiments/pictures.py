"""Pictures for the gallery, made when an entry is published: tangent kernels, and learning beside a random mask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from nttzoo import architectures, checkpoint, training
from nttzoo._util import files
from nttzoo.data import Dataset
from nttzoo.ntk import empirical_ntk
from nttzoo.sparsity import pruning
from nttzoo.zoo import pictures

PER_CLASS = 3
CURVES = ("train_loss", "test_accuracy")


def kernels(metrics: dict[str, Any], student: nnx.Module, dataset: Dataset) -> dict[str, Any]:
    """Tangent kernels of the dense network and of the student, traces over outputs, on test images by class."""
    labels = dataset.test.labels
    chosen = [place for label in np.unique(labels) for place in np.flatnonzero(labels == label)[:PER_CLASS]]
    images = dataset.standardize(dataset.test.images[chosen])
    shapes: dict[str, Any] = {"num_classes": dataset.num_classes, "input_shape": dataset.input_shape}
    teacher = architectures.create(metrics["architecture"], rngs=metrics["seed"], **shapes)
    teacher.eval()
    how: dict[str, Any] = {"outputs": "trace", "tangents": metrics["recipe"].get("tangents", "all")}
    found = {
        name: [float(f"{value:.4g}") for value in np.asarray(empirical_ntk(model, images, **how)).ravel()]
        for name, model in (("teacher", teacher), ("student", student))
    }
    return {"labels": labels[chosen].tolist(), **found}


def curves(metrics: dict[str, Any], student: Any, dataset: Dataset) -> tuple[dict[str, Any], Any]:
    """(learning curves of the student and of a random mask of its density, the trained random network).

    Both are trained as the entry was; the student is the entry's sparse initialization.
    """
    how = {key: value for key, value in metrics["train"].items() if key != "optimizer"}
    config = training.TrainConfig(**how, optimizer=metrics["train"]["optimizer"], seed=metrics["seed"])
    shapes: dict[str, Any] = {"num_classes": dataset.num_classes, "input_shape": dataset.input_shape}
    random: Any = architectures.create(metrics["architecture"], rngs=metrics["seed"], **shapes)
    density, exclude = metrics.get("densities", metrics["density"]), metrics.get("exclude", ())
    pruning.prune(random, "random", density=density, exclude=exclude, rngs=metrics["seed"])
    found = {}
    for name, model in (("student", student), ("random", random)):
        model.input_spec = dataset.input_spec
        history = training.fit(model, dataset, config).to_dict()
        found[name] = {key: [round(value, 5) for value in history[key]] for key in CURVES}
    random.eval()
    return {**found, "seed": metrics["seed"], "train": metrics["train"]}, random


def write(stage: Path, name: str, content: dict[str, Any], random: Any = None) -> None:
    """Writes an entry's pictures, and the trained weights of the random mask if there are any."""
    people, machines = stage / "models" / name, stage / "checkpoints" / name
    people.mkdir(parents=True, exist_ok=True)
    files.write_text(people / pictures.FILE, json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n")
    if random is not None:
        machines.mkdir(parents=True, exist_ok=True)
        checkpoint.save_arrays(machines / pictures.RANDOM, checkpoint.pack(random))
