"""What the gallery shows of an entry: its metrics, pictures of its masks, and what is missing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from nttzoo import architectures, zoo
from nttzoo.errors import NttzooError
from nttzoo.gallery import compact
from nttzoo.nn import is_masked, masked_layers, path_name, taps
from nttzoo.zoo import card, methods, pictures

SHOWN = (
    *("name", "architecture", "dataset", "density", "scheme", "seed", "search_steps", "kernel_before", "kernel_after"),
    *("chosen", "compared", "layers", "train", "classes", "input_shape", "mean", "std", "licence", "command", "date"),
    "c",
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
    facts |= {"recipe": {key: metrics["recipe"].get(key) for key in ("epochs", "outputs")}}
    facts["recipe"]["name"] = methods.method(metrics["recipe"])
    facts["compared"] = methods.compared(metrics)
    facts |= {key: metrics["speedup"][key] for key in ("theoretical", "without_dead")}
    facts |= {"costs": metrics["speedup"]["layers"], "bytes": entry.size, "times": _times(metrics), "notes": notes}
    shown = Exhibit(name, facts)
    _stored(metrics, shown)
    if entry.architecture not in architectures.ARCHITECTURES:
        notes.append(f"The architecture {entry.architecture} is not registered here, so its masks cannot be drawn.")
        return shown
    weights, model = _model(name, notes)
    if model is not None:
        _draw(model, weights, shown)
    return shown


def _stored(metrics: dict[str, Any], shown: Exhibit) -> None:
    """Learning curves and tangent kernels, where they were stored with the entry."""
    stored = pictures.read(shown.name)
    curves = stored.get("curves") or {"student": metrics.get("history")}
    shown.facts["curves"] = {
        key: [round(value, 4) for value in curves[key]["test_accuracy"]]
        for key in ("student", "random")
        if (curves.get(key) or {}).get("test_accuracy")
    }
    if kernels := stored.get("kernels"):
        size = len(kernels["labels"])
        matrices = np.array([kernels[key] for key in ("teacher", "student")]).reshape(2, size, size)
        shown.arrays["kernels"] = compact.triangles(matrices)
        shown.facts["kernel_images"] = size


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
    layers = _in_order(model)
    kernels = {name: np.asarray(layer.masked_kernel()) for name, layer in layers.items()}
    for key in ("layers", "costs"):
        shown.facts[key].sort(key=lambda row: list(layers).index(row["name"]) if row["name"] in layers else len(layers))
    shape = model.input_spec.shape
    shown.facts["drawn"] = weights
    first = next((kernel for kernel in kernels.values() if _takes(kernel, shape)), None)
    if first is None:
        return
    if first.ndim == 4:
        _fields(first, shown)
    elif len(first) < np.prod(shape):
        shown.arrays["mask"] = (first != 0).astype(np.uint8)
    else:
        kept = (first != 0).reshape(*shape, -1)
        shown.arrays["pixels"] = kept.sum((2, 3)).astype(np.uint16)
        _fields(first.reshape(kept.shape), shown)
        total = sum(int((kernel != 0).sum()) for kernel in kernels.values())
        if total <= GRAPH_WEIGHTS and all(kernel.ndim == 2 for kernel in kernels.values()) and shape[2] == 1:
            _graph(kernels, layers, shown)


def _fields(weights: Float[np.ndarray, "h w c units"], shown: Exhibit) -> None:
    """Pictures of the units with the most weights, summed over channels; none of units without any."""
    kept = (weights != 0).sum((0, 1, 2))
    most = np.argsort(-kept, kind="stable")[: min(FIELDS, np.count_nonzero(kept))]
    shown.facts["units"] = {"all": len(kept), "connected": int(np.count_nonzero(kept))}
    shown.arrays["fields"] = compact.signed(np.moveaxis(weights.sum(2), -1, 0)[most])


def _in_order(model: Any) -> dict[str, Any]:
    """The masked layers as they are called; those within loops, whose calls are not seen, come first."""
    layers = masked_layers(model)
    one = jax.ShapeDtypeStruct((1, *model.input_spec.shape), np.float32)
    called = list(dict.fromkeys(call.path for call in taps.call_shapes(model, is_masked, one)))
    unseen = [path for path in layers if path not in called]
    return {path_name(path): layers[path] for path in [*unseen, *called]}


def _takes(kernel: np.ndarray, shape: tuple[int, ...]) -> bool:
    """Whether a kernel could act on images: as a convolution, on all pixels, or on one row at a time."""
    if kernel.ndim == 4:
        return kernel.shape[2] == shape[2]
    return kernel.ndim == 2 and len(kernel) in (np.prod(shape), np.prod(shape[1:]))


def _graph(kernels: dict[str, np.ndarray], layers: dict[str, Any], shown: Exhibit) -> None:
    """Every surviving weight and its place, layer by layer, and all biases: enough to draw and to light up."""
    sizes = [next(iter(kernels.values())).shape[0], *(kernel.shape[1] for kernel in kernels.values())]
    edges = [np.flatnonzero(kernel) for kernel in kernels.values()]
    shown.facts["graph"] = {"sizes": sizes, "edges": [len(part) for part in edges]}
    shown.arrays["edges"] = np.concatenate([compact.gaps(part) for part in edges])
    values = [kernel[kernel != 0] for kernel in kernels.values()]
    biases = [np.asarray(layer.bias[...]) for layer in layers.values()]
    shown.arrays["weights"] = compact.brain_floats(np.concatenate([*values, *biases]))
