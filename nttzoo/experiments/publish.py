"""From a finished comparison to entries of the zoo: `publish` writes checkpoints, models, cards and the index.

A comparison is the evidence behind its entries: for each density and scheme the search with the best validation
accuracy is published, and the card shows all methods that were compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from nttzoo import architectures, checkpoint, codegen, export, nn, search, zoo
from nttzoo._util import files, schema
from nttzoo.architectures import own
from nttzoo.data import Dataset
from nttzoo.errors import ExportError, FileError, RunError, ZooError
from nttzoo.experiments import comparison, pictures
from nttzoo.search import recipes
from nttzoo.sparsity import cost, masks
from nttzoo.sparsity.density import Density, dense_name, density_text
from nttzoo.zoo import card, changes
from nttzoo.zoo import metrics as metrics_file
from nttzoo.zoo import pictures as pictures_file

TRAINING = ("epochs", "batch_size", "learning_rate", "optimizer", "loss", "dropout")  # settings that a card lists


def publish(file: Path, dataset: Dataset, *, runs: Path, home: Path) -> list[str]:
    """Writes one entry per density and scheme of a comparison; `runs` holds its searches. Returns the names."""
    content = comparison.read(file)
    compared = comparison.Comparison.from_dict(content["comparison"])
    if missing := comparison.missing_cases(compared, content):
        raise RunError(
            f"{file} is not finished: {len(missing)} networks are still to be trained, the first is {missing[0]}. Run "
            "the command that made it again; it resumes."
        )
    # All are looked at before the first is written.
    entries = [
        _metrics(file, compared, content, density, scheme, dataset, runs)
        for scheme in compared.schemes
        for density in compared.densities
    ]
    return write_entries(entries, dataset, home)


def write_entries(entries: Sequence[tuple[dict[str, Any], Path]], dataset: Dataset, home: Path) -> list[str]:
    """Writes entries, each from its metrics and the folder of its student with the trained weights; their names."""
    names = [metrics["name"] for metrics, _ in entries]
    with changes.changing(home) as stage:
        # New manifests are made for all entries: one that was tampered with must not be certified by that.
        others = zoo.verify(home, leave_out=names)
        for metrics, folder in entries:
            _write_entry(stage, metrics, folder, dataset)
        stage_index(home, stage, new=names, names={*others, *names})
    for _, folder in entries:
        for written in (folder, folder / "trained"):
            if not (written / files.MANIFEST).exists():
                files.seal(written)  # by an earlier version; what was published can be checked from now on
    return names


def _metrics(
    file: Path,
    compared: comparison.Comparison,
    content: dict[str, Any],
    density: Density,
    scheme: str,
    dataset: Dataset,
    runs: Path,
) -> tuple[dict[str, Any], Path]:
    """What is known of an entry, and the folder of the student that it is."""
    plain = [case for case in content["cases"] if "control" not in case]
    here = [case for case in plain if case.get("density", density) == density]
    found = [case for case in here if case["method"] in recipes.NAMES and case["scheme"] == scheme]
    if not found:
        raise RunError(f"the comparison has no search at density {density_text(density)}, {scheme}.")
    for case in found:
        for key in ("validation_accuracy", "kernel_before", "kernel_after", "search_steps"):
            if case.get(key) is None:
                raise FileError(file, f"does not tell {key!r} of {case['method']}, seed {case['seed']}")
    best = max(found, key=lambda case: case["validation_accuracy"])
    config = compared.config(best["method"], best["seed"])
    target = search.Target(density, scheme)
    folder = runs / compared.folder(config) / "students" / target.name
    model, _ = search.load_student(folder)
    speedup = cost.speedup(model).to_dict()
    if speedup["without_dead"] is None:
        raise RunError(f"{folder} is not worth publishing: no path leads from its inputs to its outputs.")
    _check_trained(folder / "trained", {"test_accuracy": best["test_accuracy"], "train_epochs": compared.train_epochs})
    metrics = {
        "format": zoo.FORMAT,
        "name": f"{compared.model}-{compared.data}-{target.name}{dense_name(compared.exclude)}",
        "architecture": compared.model,
        "dataset": compared.data,
        **own.about(compared.model),
        **_kept(model, density, compared.exclude),
        "scheme": scheme,
        "recipe": asdict(config.recipe),
        "seed": best["seed"],
        "search_steps": best["search_steps"],
        "train": {key: getattr(compared.training(best["seed"]), key) for key in TRAINING},
        "kernel_before": best["kernel_before"],
        "kernel_after": best["kernel_after"],
        "chosen": {key: best[key] for key in ("test_accuracy", "validation_accuracy")},
        "candidates": len(found),
        "compared": _compared(here, scheme),
        "layers": [asdict(layer) for layer in masks.density_report(model).layers],
        "speedup": speedup,
        **dataset.input_spec.to_dict(),
        "licence": dataset.license,
        **{key: comparison.origin_of(content, best).get(key) for key in ("command", "date", "versions", "machine")},
    }
    return metrics, folder


def _kept(model: Any, density: Density, exclude: Sequence[str]) -> dict[str, Any]:
    """The density of an entry; of one with densities by layer, what they come to, and which they are."""
    if isinstance(density, float) and not exclude:
        return {"density": density}
    asked = {"*": density} if isinstance(density, float) else dict(density)
    return {"density": masks.density_report(model).total.density, "densities": asked, "exclude": list(exclude)}


def _check_trained(folder: Path, expected: dict[str, Any]) -> None:
    """Raises unless the trained weights of a student are those of the comparison."""
    about = schema.read(folder / "model.json", schema.NetworkFile)
    seen = {key: about.get(key) for key in expected}
    if seen != expected:
        raise RunError(
            f"the weights in {folder} are those of another training: {seen} there, {expected} in the comparison. "
            "Repeat the comparison with another file and another folder of searches."
        )


def _compared(cases: list[dict[str, Any]], scheme: str) -> list[dict[str, Any]]:
    """Test accuracies by method, in the comparison's order; random masks are alike in both schemes."""
    rows: dict[str, dict[str, Any]] = {}
    for case in cases:
        method = case["method"]
        uniform = method in comparison.UNIFORM and scheme in comparison.ALIKE and case["scheme"] in comparison.ALIKE
        if method == "dense" or uniform or case["scheme"] == scheme:
            own = "-" if method == "dense" else "either" if uniform else scheme
            row = rows.setdefault(method, {"method": method, "scheme": own, "test_accuracy": []})
            row["test_accuracy"].append(case["test_accuracy"])
    return list(rows.values())


def _write_entry(stage: Path, metrics: dict[str, Any], student: Path, dataset: Dataset) -> None:
    """Writes both folders of an entry."""
    name = metrics["name"]
    images = np.asarray(dataset.standardize(dataset.test.images[:64]))
    people, machines = stage / "models" / name, stage / "checkpoints" / name
    people.mkdir(parents=True)
    machines.mkdir(parents=True)
    kept, networks = [], []
    for kind, folder in (("init", student), ("trained", student / "trained")):
        packed = checkpoint.pack(search.load_student(folder)[0])
        checkpoint.save_arrays(machines / kind, packed)
        model = architectures.blank(metrics["architecture"], dataset.input_spec, seed=metrics["seed"])
        checkpoint.unpack(model, checkpoint.load_arrays(machines / kind, checkpoint.layout(model)))
        model.eval()
        networks.append(model)
        kept.append({key: mask for key, mask in packed.items() if key.endswith(".mask")})
    if any(not np.array_equal(mask, kept[1][key]) for key, mask in kept[0].items()):
        raise RunError(f"the weights in {student / 'trained'} are not those of {student}: their masks differ.")
    export.export_onnx(model, people / "model.onnx", name=name, images=images)  # the trained one
    metrics["c"] = as_c(people / "model.onnx", model, images)
    files.write_text(people / "metrics.json", files.to_json(metrics))
    files.write_text(people / "recipe.toml", _toml(metrics))
    pictures.write(stage, name, {"format": zoo.FORMAT, "kernels": pictures.kernels(metrics, networks[0], dataset)})


def as_c(file: Path, model: Any, images: np.ndarray) -> dict[str, float]:
    """What a network takes as C, and what it would with all its weights; its answers are compared with the model's."""
    compiled = codegen.compile(file, threads=1)
    oracle = partial(export.outputs_of, model)
    difference = export.difference(compiled(images), oracle(images))
    if not export.is_rounding(difference, oracle, [images]):
        raise ExportError(f"as C the network differs from the model by {difference:.1e} of the largest output.")
    source = compiled.source
    dense, _ = codegen.to_source(nn.unpruned(model))
    sizes = {"table_bytes": source.table_bytes, "arena_bytes": 4 * source.arena}
    sizes |= {"dense_table_bytes": dense.table_bytes, "dense_arena_bytes": 4 * dense.arena}
    return {**sizes, "images": len(images), "difference": difference}


def add_runtimes(measured: Path, home: Path) -> list[str]:
    """Enters what `scripts/bench.py runtime` measured into the entries that it names; returns their names."""
    what = "a file of measured times: `scripts/bench.py runtime NAME ... --out FILE` writes them"
    content = schema.read(measured, schema.RuntimesFile, what=what)
    dense = {case["architecture"]: case["milliseconds"] for case in content["cases"] if case["density"] == 1}
    with changes.changing(home) as stage:
        entries = zoo.verify(home)
        names = [case["name"] for case in content["cases"] if case["name"] in entries]
        if not names:
            raise ZooError(f"{measured} holds no times of an entry in {home}.")
        for case in content["cases"]:
            if case["name"] not in entries:
                continue
            if case["architecture"] not in dense:
                raise FileError(measured, f"has no times of a dense {case['architecture']}")
            times = {"own": case["milliseconds"], "dense": dense[case["architecture"]]}
            for which, batches in times.items():
                for batch, threads in card.MEASURED:
                    if threads not in batches.get(batch, {}):
                        raise FileError(measured, f"has no {which} times of {case['name']} for {batch} image(s)")
            metrics = metrics_file.read(home / "models" / case["name"] / "metrics.json")
            metrics["runtimes"] = {**times, "machine": content["machine"]["processor"], "versions": content["runtimes"]}
            _write(stage / "models" / case["name"] / "metrics.json", files.to_json(metrics).encode())
        stage_index(home, stage, new=(), names=entries)
    return names


def add_pictures(names: Sequence[str], load: Callable[[str], Dataset], *, home: Path, train: bool) -> list[str]:
    """Stores what the gallery draws with entries that are published already; returns their names.

    `train`: also train each student and a random mask, which takes about as long as the entry's training did. `load`
    gives a data set by its name.
    """
    made = []
    for name in names:
        metrics = zoo.info(name, home).metrics
        dataset, student = load(metrics["dataset"]), zoo.load_from(home, name, "init")
        known = pictures_file.read(name, home)
        content = {**known, "format": zoo.FORMAT, "kernels": pictures.kernels(metrics, student, dataset)}
        random = None
        if train:
            content["curves"], random = pictures.curves(metrics, student, dataset)
        made.append((name, content, random))
    with changes.changing(home) as stage:
        entries = zoo.verify(home)
        for name, content, random in made:
            pictures.write(stage, name, content, random)
        stage_index(home, stage, new=(), names=entries)
    return list(names)


def regenerate(home: Path) -> None:
    """Cards, manifests, index and MODEL_CARD.md from the entries' metrics and files: the same bytes each time."""
    with changes.changing(home) as stage:
        stage_index(home, stage, new=(), names=[path.parent.name for path in (home / "models").glob("*/metrics.json")])


def stage_index(home: Path, stage: Path, *, new: Collection[str], names: Collection[str]) -> None:
    """Writes to `stage` what changes: `new` entries are there as a whole, of others only the files that change."""
    entries, everything = {}, []
    for name in sorted(names):
        people, manifest = f"models/{name}", f"checkpoints/{name}/manifest.json"
        staged = (stage / people / "metrics.json").exists()
        metrics = metrics_file.read((stage if staged else home) / people / "metrics.json")
        everything.append(metrics)
        _change(home, stage, f"{people}/README.md", card.card(metrics), new=name in new)
        replaced = tuple(f"checkpoints/{name}/{kind.name}/" for kind in (stage / "checkpoints" / name).glob("*/"))
        kept = {} if name in new else zoo.files_of(home, name)
        kept = {place: file for place, file in kept.items() if not place.startswith(replaced)}
        present = {**kept, **zoo.files_of(stage, name)}
        described = {place: files.describe(file) for place, file in sorted(present.items(), key=_people_first)}
        text = files.to_json({"format": zoo.FORMAT, "name": name, "files": described})
        _change(home, stage, manifest, text, new=name in new)
        shown = {key: metrics[key] for key in ("architecture", "dataset", "density", "scheme")}
        entries[name] = {"manifest_sha256": hashlib.sha256(text.encode()).hexdigest(), **shown}
    _change(home, stage, "models/index.json", files.to_json({"format": zoo.FORMAT, "entries": entries}))
    _change(home, stage, "MODEL_CARD.md", card.zoo_card(everything))


def _people_first(entry: tuple[str, Path]) -> tuple[bool, str]:
    """The order of files in a manifest: models/ before checkpoints/."""
    return entry[0].startswith("checkpoints/"), entry[0]


def _change(home: Path, stage: Path, path: str, text: str, *, new: bool = False) -> None:
    """Writes a file to `stage` unless the zoo has it already."""
    content = text.encode()
    if new or not (home / path).is_file() or files.read_bytes(home / path) != content:
        _write(stage / path, content)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_bytes(path, content)


def _toml(metrics: dict[str, Any]) -> str:
    """The search that made an entry, as a file for people."""
    content = {key: metrics[key] for key in ("architecture", "dataset", "scheme", "density", "seed")}
    content |= {key: metrics[key] for key in ("densities", "exclude") if key in metrics}
    for part in ("recipe", "train"):  # TOML has no null
        content[part] = {key: value for key, value in metrics[part].items() if value is not None}
    return f"# nttzoo search: {metrics['name']}\n\n{tomli_w.dumps(content)}"
