"""What the gallery shows of an entry: its metrics, pictures of its masks, and what is not known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from nttzoo import architectures, zoo
from nttzoo.errors import NttzooError
from nttzoo.nn import masked_layers, path_name
from nttzoo.zoo import card, pictures

SHOWN = (
    *("name", "architecture", "dataset", "density", "scheme", "seed", "search_steps", "kernel_before", "kernel_after"),
    *(
        "chosen",
        "compared",
        "layers",
        "train",
        "classes",
        "input_shape",
        "mean",
        "std",
        "licence",
        "command",
        "date",
        "c",
        "history",
    ),
)
FIELDS = 48  # units or filters whose weights are shown
GRAPH_WEIGHTS = 4000  # a network with more connections is no longer a drawing


@dataclass
class Exhibit:
    """An entry: facts for JSON, and arrays that are too large for it."""

    name: str
    facts: dict[str, Any]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


def exhibit(name: str) -> Exhibit:
    """What can be shown of a published network; `facts["notes"]` says what cannot, and why."""
    entry = zoo.info(name)
    metrics = entry.metrics
    notes: list[str] = []
    facts: dict[str, Any] = {key: metrics[key] for key in SHOWN if key in metrics}
    facts |= {"recipe": {key: metrics["recipe"].get(key) for key in ("name", "epochs", "outputs")}}
    facts |= {key: metrics["speedup"][key] for key in ("theoretical", "without_dead")}
    facts |= {"costs": metrics["speedup"]["layers"], "bytes": entry.size, "times": _times(metrics), "notes": notes}
    stored = pictures.read(name)
    facts |= {key: stored[key] for key in ("kernels", "curves") if stored.get(key)}
    shown = Exhibit(name, facts)
    if entry.architecture not in architectures.ARCHITECTURES:
        notes.append(f"The architecture {entry.architecture} is not registered here, so its masks cannot be drawn.")
        return shown
    weights, model = _model(name, notes)
    if model is not None:
        _draw(model, weights, shown)
    return shown


def _model(name: str, notes: list[str]) -> tuple[str, Any]:
    """(which weights, the network), trained if it can be; (..., None) and a note if there is none."""
    for weights in ("trained", "init"):
        try:
            return weights, zoo.load(name, weights=weights)
        except NttzooError as error:
            notes.append(f"The weights “{weights}” cannot be loaded: {error}")
    return "", None


def _times(metrics: dict[str, Any]) -> dict[str, Any] | None:
    """Microseconds for one image on one thread by runtime, here and dense; None if nothing was measured."""
    if not metrics.get("runtimes"):
        return None
    own, dense = (metrics["runtimes"][key]["1"]["1"] for key in ("own", "dense"))
    rows = [
        {"runtime": title, "own": 1000 * own[key], "dense": 1000 * dense[key]}
        for key, title in card.RUNTIMES.items()
        if key in own and key in dense
    ]
    return {"rows": rows, "machine": metrics["runtimes"]["machine"], "dense_onnxruntime": 1000 * dense["onnxruntime"]}


def _draw(model: Any, weights: str, shown: Exhibit) -> None:
    """Arrays of the network's masks and weights, and what they are."""
    layers = {path_name(path): layer for path, layer in masked_layers(model).items()}
    kernels = {name: np.asarray(layer.masked_kernel()) for name, layer in layers.items()}
    first = next(iter(kernels.values()))
    shape = model.input_spec.shape
    shown.facts["drawn"] = weights
    if first.ndim == 4:
        most = np.argsort(-(first != 0).sum((0, 1, 2)), kind="stable")[:FIELDS]
        shown.arrays["fields"] = _scaled(np.moveaxis(first.sum(2), -1, 0)[most])
        return
    if first.ndim != 2 or len(first) != np.prod(shape) or len(shape) != 3:
        return
    kept = (first != 0).reshape(*shape, -1)
    shown.arrays["pixels"] = kept.sum((2, 3)).astype(np.uint16)
    most = np.argsort(-kept.sum((0, 1, 2)), kind="stable")[:FIELDS]
    shown.arrays["fields"] = _scaled(np.moveaxis(first.reshape(*shape, -1).sum(2), -1, 0)[most])
    total = sum(int((kernel != 0).sum()) for kernel in kernels.values())
    if total <= GRAPH_WEIGHTS and all(kernel.ndim == 2 for kernel in kernels.values()) and shape[2] == 1:
        _graph(kernels, layers, shown)


def _graph(kernels: dict[str, np.ndarray], layers: dict[str, Any], shown: Exhibit) -> None:
    """Every surviving weight as (from, to, value), layer by layer, and all biases: enough to draw and to light up."""
    sizes = [next(iter(kernels.values())).shape[0], *(kernel.shape[1] for kernel in kernels.values())]
    edges = [np.argwhere(kernel) for kernel in kernels.values()]
    shown.facts["graph"] = {"sizes": sizes, "edges": [len(part) for part in edges]}
    shown.arrays["edges"] = np.concatenate(edges).astype(np.uint16)
    values = [kernel[kernel != 0] for kernel in kernels.values()]
    biases = [np.asarray(layer.bias[...]) for layer in layers.values()]
    shown.arrays["weights"] = np.concatenate([*values, *biases]).astype(np.float32)


def _scaled(pictures: Float[np.ndarray, "n h w"]) -> np.ndarray:
    """Weights as int8, each picture by its own largest: a picture shows a pattern, not a size."""
    largest = np.abs(pictures).max((1, 2), keepdims=True)
    return np.round(127 * pictures / np.where(largest > 0, largest, 1)).astype(np.int8)
