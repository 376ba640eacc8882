"""Whether all entries are as published: their files, their arrays and what they compute."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from nttzoo import architectures
from nttzoo.errors import ZooError
from nttzoo.zoo import index
from nttzoo.zoo.checking import check
from nttzoo.zoo.entries import info
from nttzoo.zoo.loading import load, load_weights


@dataclass(frozen=True)
class LoadCheck:
    """That a published network loads and is what its card says; how long loading takes after imports."""

    name: str
    density: float
    milliseconds: float


def load_check(name: str) -> LoadCheck:
    """Loads a network with each of its weights and compares it with its metrics; raises if they disagree."""
    from nttzoo import checkpoint  # noqa: F401  Orbax's import is not part of loading
    from nttzoo.sparsity import masks

    metrics = info(name).metrics
    began = time.perf_counter()
    model: Any = load(name)
    elapsed = time.perf_counter() - began
    expected = [(layer["name"], layer["kept"]) for layer in metrics["layers"]]
    for network in (model, load(name, weights="trained")):
        report = masks.density_report(network)
        if [(layer.name, layer.kept) for layer in report.layers] != expected:
            raise ZooError(f"{name!r} does not have the numbers of weights per layer that its card lists.")
        outputs = network(jnp.ones((2, *network.input_spec.shape)))
        if outputs.shape != (2, len(network.input_spec.classes)) or not bool(jnp.isfinite(outputs).all()):
            raise ZooError(f"{name!r} gives outputs of shape {outputs.shape}, or not finite ones.")
    return LoadCheck(name, masks.density_report(model).total.density, 1000 * elapsed)


def verify(home: Path | None = None, *, leave_out: Collection[str] = ()) -> list[str]:
    """Checks all entries, or those of one folder; returns their names, or raises at one that is not as published.

    All files are compared with their manifests first; then every array is compared with what its network needs.
    """
    every = [place for one in ([home] if home else index.homes()) for place in index.all_places(one).values()]
    places = [place for place in every if place.name not in leave_out]
    checked = [check(place) for place in places]
    for place, metrics in zip(places, checked, strict=True):
        stored = ["init", "trained", *(["random"] if (place.folders[1] / "random").is_dir() else [])]
        for weights in stored if metrics["architecture"] in architectures.ARCHITECTURES else ():
            load_weights(place, metrics, weights)
    return sorted(place.name for place in places)
