"""From a finished comparison to entries of the zoo: `publish` writes checkpoints, models, cards and the index.

A comparison is the evidence behind its entries: for each density and scheme the search with the best validation
accuracy is published, and the card shows all methods that were compared.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from nttzoo import card, checkpoint, codegen, comparison, cost, export, masks, provenance, recipes, search, zoo
from nttzoo.data import Dataset
from nttzoo.errors import ExportError, RunError
from nttzoo.nn import masked_layers, set_masks


def publish(file: Path, dataset: Dataset, *, runs: Path, home: Path) -> list[str]:
    """Writes one entry per density and scheme of a comparison; `runs` holds its searches. Returns the names."""
    content = provenance.read_json(file)
    asked = comparison.Comparison.from_dict(content["comparison"])
    # All are looked at before the first is written.
    entries = [
        _metrics(asked, content, density, scheme, dataset, runs)
        for scheme in asked.schemes
        for density in asked.densities
    ]
    images = np.asarray(dataset.standardise(dataset.test.images[:64]))
    for metrics, folder in entries:
        _write_entry(home, metrics, folder, images)
    regenerate(home)
    return [metrics["name"] for metrics, _ in entries]


def _metrics(
    asked: comparison.Comparison, content: dict[str, Any], density: float, scheme: str, dataset: Dataset, runs: Path
) -> tuple[dict[str, Any], Path]:
    """What is known of an entry, and the folder of the student that it is."""
    here = [case for case in content["cases"] if case.get("density", density) == density]
    found = [case for case in here if case["method"] in recipes.NAMES and case["scheme"] == scheme]
    if not found:
        raise RunError(f"the comparison has no search at density {density:g}, {scheme}.")
    best = max(found, key=lambda case: case["validation_accuracy"])
    config = asked.config(best["method"], best["seed"])
    target = search.Target(density, scheme)
    folder = runs / asked.folder(config) / "students" / target.name
    model, _ = search.load_student(folder)
    speedup = cost.speedup(model).to_dict()
    if speedup["without_dead"] is None:
        raise RunError(f"{folder} is not worth publishing: no path leads from its inputs to its outputs.")
    metrics = {
        "format": zoo.FORMAT,
        "name": f"{asked.model}-{asked.data}-{target.name}",
        "architecture": asked.model,
        "dataset": asked.data,
        "density": density,
        "scheme": scheme,
        "recipe": asdict(config.recipe),
        "seed": best["seed"],
        "search_steps": best["search_steps"],
        "train_epochs": asked.train_epochs,
        "dropout": asked.dropout,
        "kernel_before": best["kernel_before"],
        "kernel_after": best["kernel_after"],
        "chosen": {key: best[key] for key in ("test_accuracy", "validation_accuracy")},
        "candidates": len(found),
        "compared": _compared(here, scheme),
        "layers": [asdict(layer) for layer in masks.density_report(model).layers],
        "speedup": speedup,
        "input_shape": list(dataset.input_shape),
        "mean": [float(value) for value in dataset.mean],
        "std": [float(value) for value in dataset.std],
        "classes": list(dataset.classes),
        "licence": dataset.licence,
        **{key: comparison.origin_of(content, best)[key] for key in ("command", "date", "versions", "machine")},
    }
    return metrics, folder


def _compared(cases: list[dict[str, Any]], scheme: str) -> list[dict[str, Any]]:
    """Test accuracies by method, in the comparison's order; random masks are alike in both schemes."""
    rows: dict[str, dict[str, Any]] = {}
    for case in cases:
        method = case["method"]
        if method == "dense" or method in comparison.EVEN or case["scheme"] == scheme:
            own = "-" if method == "dense" else "either" if method in comparison.EVEN else scheme
            row = rows.setdefault(method, {"method": method, "scheme": own, "test_accuracy": []})
            row["test_accuracy"].append(case["test_accuracy"])
    return list(rows.values())


def _write_entry(home: Path, metrics: dict[str, Any], student: Path, images: np.ndarray) -> None:
    """Writes an entry's folders beside their places and moves them there when they are whole."""
    name = metrics["name"]
    part = home / f".publishing-{name}"
    shutil.rmtree(part, ignore_errors=True)
    people, machines = part / "models" / name, part / "checkpoints" / name
    people.mkdir(parents=True)
    machines.mkdir(parents=True)
    for kind, folder in (("init", student), ("trained", student / "trained")):
        if folder.is_dir():
            checkpoint.save_arrays(machines / kind, checkpoint.load_arrays(folder / "arrays"))
            model = zoo.build(metrics)
            checkpoint.unpack(model, checkpoint.load_arrays(machines / kind))
            model.eval()
    export.export_onnx(model, people / "model.onnx", name=name, images=images)  # trained, if it was
    metrics["c"] = as_c(people / "model.onnx", model, images)
    provenance.write_json(people / "metrics.json", metrics)
    (people / "recipe.toml").write_text(_toml(metrics))
    (people / "card.md").write_text(card.card(metrics))
    for kind in ("models", "checkpoints"):
        target = home / kind / name
        target.parent.mkdir(exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        (part / kind / name).rename(target)
    shutil.rmtree(part)


def as_c(file: Path, model: Any, images: np.ndarray) -> dict[str, float]:
    """What a network takes as C, and what it would with all its weights; its answers are compared with the model's."""
    compiled = codegen.compile(file, threads=1)
    difference = export.difference(compiled(images), np.asarray(model(jnp.asarray(images))))
    if not difference <= export.TOLERANCE:
        raise ExportError(f"as C the network differs from the model by {difference:.1e} of the largest output.")
    source = compiled.source
    full = nnx.clone(model)
    for layer in masked_layers(full).values():
        layer.kernel[...] = jnp.ones_like(layer.kernel[...])
    set_masks(full, {path: jnp.ones_like(layer.mask[...]) for path, layer in masked_layers(full).items()})
    dense, _ = codegen.to_source(full)
    sizes = {"table_bytes": source.table_bytes, "arena_bytes": 4 * source.arena}
    sizes |= {"dense_table_bytes": dense.table_bytes, "dense_arena_bytes": 4 * dense.arena}
    return {**sizes, "images": len(images), "difference": difference}


def add_runtimes(measured: Path, home: Path) -> list[str]:
    """Enters what `nttzoo bench runtime` measured into the entries that it names; returns their names."""
    content = provenance.read_json(measured)
    dense = {case["architecture"]: case["milliseconds"] for case in content["cases"] if case["density"] == 1}
    names = []
    for case in content["cases"]:
        path = home / "models" / case["name"] / "metrics.json"
        if path.exists():
            metrics = provenance.read_json(path)
            times = {"own": case["milliseconds"], "dense": dense[case["architecture"]]}
            metrics["runtimes"] = {**times, "machine": content["machine"]["processor"], "versions": content["runtimes"]}
            provenance.write_json(path, metrics)
            names.append(case["name"])
    regenerate(home)
    return names


def regenerate(home: Path) -> None:
    """Cards, manifests, index and MODEL_CARD.md from the entries' metrics and files: the same bytes each time."""
    entries = {}
    everything = []
    for path in sorted((home / "models").glob("*/metrics.json")):
        metrics = provenance.read_json(path)
        name = metrics["name"]
        everything.append(metrics)
        (path.parent / "card.md").write_text(card.card(metrics))
        files = {
            place: {"size": file.stat().st_size, "sha256": zoo.sha256(file)}
            for place, file in zoo.files_of(home, name).items()
        }
        manifest = home / "checkpoints" / name / "manifest.json"
        provenance.write_json(manifest, {"format": zoo.FORMAT, "name": name, "files": files})
        shown = {key: metrics[key] for key in ("architecture", "dataset", "density", "scheme")}
        entries[name] = {"manifest_sha256": zoo.sha256(manifest), **shown}
    provenance.write_json(home / "models" / "index.json", {"format": zoo.FORMAT, "entries": entries})
    (home / "MODEL_CARD.md").write_text(card.zoo_card(everything))


def _toml(metrics: dict[str, Any]) -> str:
    """The search that made an entry, as a file for people."""
    lines = [f"# nttzoo search: {metrics['name']}", ""]
    lines += [f'{key} = "{metrics[key]}"' for key in ("architecture", "dataset", "scheme")]
    lines += [f"density = {metrics['density']!r}", f"seed = {metrics['seed']}", "", "[recipe]"]
    for key, value in metrics["recipe"].items():
        if value is not None:
            lines.append(f"{key} = " + (f'"{value}"' if isinstance(value, str) else repr(value)))
    return "\n".join([*lines, "", "[train]", f"epochs = {metrics['train_epochs']}", ""])
