"""`run`: a search by names, from data set to report, in a folder of its own."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax

from nttzoo import architectures, checkpoint, data
from nttzoo._util import console, provenance
from nttzoo._util.checks import check_count, check_flag, check_instance, check_number, check_path
from nttzoo._util.hosts import is_first, together
from nttzoo.architectures import own
from nttzoo.errors import RunError
from nttzoo.search.config import SearchConfig
from nttzoo.search.devices import agreed, make_mesh
from nttzoo.search.loop import SAVE_SECONDS, Found, prepare, transfer
from nttzoo.search.peers import failing_together
from nttzoo.search.run_folder import Journal, read_summary, write_summary
from nttzoo.search.students import Preprocess
from nttzoo.sparsity import cost, masks
from nttzoo.sparsity.schemes import scheme_name

DRY_STEPS = 3
DISTANCES = ("kernel_before", "kernel_after", "target_before", "target_after")


@dataclass(frozen=True)
class Summary:
    """What a finished run found, as in its summary.json; `print` shows tables and the next command to type."""

    folder: Path
    content: dict[str, Any]

    def __str__(self) -> str:
        entries = self.content["students"]
        rows = [
            (
                name,
                f"{entry['kernel_before']:.4g}",
                f"{entry['kernel_after']:.4g}",
                f"{entry['kernel_before'] / max(entry['kernel_after'], 1e-30):.1f}x",
                f"{entry['target_after']:.3g}",
                f"{entry['speedup']['theoretical']:.1f}x",
            )
            for name, entry in entries.items()
        ]
        columns = ("student", "kernel distance before", "after", "nearer", "target distance", "speedup")
        parts = [console.table("", columns, rows)]
        layers = [layer["name"] for layer in next(iter(entries.values()))["density"]]
        per_layer = [
            (name, *(f"{layer['kept'] / layer['size']:.2%}" for layer in entry["density"]))
            for name, entry in entries.items()
        ]
        parts.append(console.table("", ("density per layer", *layers), per_layer))
        config = self.content["config"]
        first = self.folder / "students" / next(iter(entries))
        parts.append(f"Picture: {self.folder / 'report.png'}")
        parts.append(f"Next, train it: nttzoo train --start {first} {_named(config['model'], config['data'])}")
        return "\n\n".join(parts)


def _named(model: str, dataset: str) -> str:
    """The options that name a data set, and a custom network, on the command line."""
    factory = own.about(model).get("factory")
    source = data.SOURCES.get(dataset)
    shown = (source.reference if source else "") or dataset
    return f"--data {shown}" + (f" --model {factory['reference']}" if factory else "")


@failing_together()
def run(
    config: SearchConfig,
    *,
    out: str | Path | None = None,
    fresh: bool = False,
    devices: int | None = None,
    data_dir: str | None = None,
    download: bool = False,
    save_every: float = SAVE_SECONDS,
    progress: bool = True,
) -> Summary:
    """Runs a search for a registered architecture on a named data set, or resumes an earlier one.

    A finished run is not repeated.

    Args:
      config: model, data set, densities, schemes, seed and recipe.
      out: the run's folder (default: runs/<name of the config>).
      fresh: whether to discard what an earlier run left in the folder.
      devices: number of devices that share each batch (default: all).
      data_dir: the folder of data sets, as in `nttzoo.data.load`.
      download: whether the data set may be downloaded.
      save_every: seconds between saved states, from which a killed run resumes.
      progress: whether to show a progress bar.

    Returns:
      The folder and a summary; `print` shows it as a table.

    Raises:
      RunError: if the folder belongs to another run, or another process is using it.
      Interrupted: on SIGINT and SIGTERM, after saving.

    Example:
      >>> print(nttzoo.search.run(nttzoo.search.SearchConfig(densities=(0.01, 0.03))))
    """
    _check(config, devices, data_dir, download)
    if out is not None:
        check_path("out", out)
    check_flag("fresh", fresh)
    check_number("save_every", save_every, "the seconds between saved states, 0 or more", 0)
    check_flag("progress", progress)
    folder = Path("runs") / config.name if out is None else Path(out)
    journal = Journal(folder, fresh=fresh)
    journal.check(config.to_dict(), config.defaults() | config.own)
    try:
        if fresh or not agreed((folder / "summary.json").exists(), 0, False)[0]:
            teacher, images, preprocess = together(lambda: ingredients(config, data_dir, download))
            began = time.perf_counter()
            found = transfer(
                teacher,
                images,
                config,
                preprocess=preprocess,
                devices=devices,
                journal=journal,
                save_every=save_every,
                progress=progress,
            )
            if is_first():
                _write(found, config, folder, time.perf_counter() - began)
        return Summary(folder, together(lambda: read_summary(folder) if is_first() else {}))
    finally:
        journal.close()


def _check(config: Any, devices: Any, data_dir: Any, download: Any) -> None:
    check_instance("config", config, SearchConfig)
    if devices is not None:
        check_count("devices", devices)
    if data_dir is not None:
        check_path("data_dir", data_dir)
    check_flag("download", download)


def ingredients(config: SearchConfig, data_dir: str | None, download: bool) -> tuple[Any, Any, Preprocess]:
    """(teacher, unlabeled images, how to standardize them): the labels stay behind here."""
    dataset = data.load(config.data, data_dir=data_dir, download=download)
    shapes: dict[str, Any] = {"num_classes": dataset.num_classes, "input_shape": dataset.input_shape}
    teacher = architectures.create(config.model, rngs=config.seed, **shapes)
    teacher.input_spec = dataset.input_spec  # its students inherit it
    return teacher, dataset.train.without_labels().images, dataset.input_spec.standardize


def dry_run(
    config: SearchConfig, *, devices: int | None = None, data_dir: str | None = None, download: bool = False
) -> str:
    """Tells the plan of a search and what it costs, measured on a few steps; writes nothing.

    Args:
      config: as for `run`.
      devices: number of devices that share each batch (default: all).
      data_dir: the folder of data sets.
      download: whether the data set may be downloaded.

    Returns:
      A table as text.

    Example:
      >>> print(nttzoo.search.dry_run(nttzoo.search.SearchConfig(model="lenet5", data="mnist")))
    """
    _check(config, devices, data_dir, download)
    teacher, images, preprocess = ingredients(config, data_dir, download)
    mesh = make_mesh(devices, config.recipe.batch_size)
    students, plan = prepare(teacher, images, config, preprocess, mesh)
    state = students.start()
    memory = students.lowered(state).compile().memory_analysis()
    jax.block_until_ready(students.advance(state, 0, 1))
    began = time.perf_counter()
    jax.block_until_ready(students.advance(state, 0, DRY_STEPS))
    seconds = (time.perf_counter() - began) / DRY_STEPS
    size = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
    rows = [
        ("students", ", ".join(target.name for target in config.targets)),
        ("images", f"{plan.images:,} to search on, {plan.held_out} held out"),
        ("devices", mesh.size if mesh else 1),
        ("steps", f"{plan.steps:,} ({config.recipe.epochs} epochs, batch {config.recipe.batch_size})"),
        ("memory", f"{size / 2**20:,.0f} MiB per device"),
        ("time", f"{_duration(seconds * plan.steps)} ({1000 * seconds:.1f} ms per step)"),
        *((name, value) for name, value in asdict(config.recipe).items() if name not in ("epochs", "batch_size")),
    ]
    return console.table(f"{config.model} on {config.data}, seed {config.seed}", ("", ""), rows)


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def _write(found: Found, config: SearchConfig, folder: Path, seconds: float) -> None:
    from nttzoo.search import report  # matplotlib is slow to import

    students = {}
    for student in found.students:
        name = student.target.name
        model: Any = student.model
        about = {
            "architecture": config.model,
            "data": config.data,
            "density": student.target.density,
            "scheme": scheme_name(student.target.scheme),
            "recipe": config.recipe.name,
            "seed": config.seed,
        }
        save_student(folder / "students" / name, model, about)
        students[name] = {
            "density": [asdict(layer) for layer in masks.density_report(model).layers],
            "speedup": cost.speedup(model).to_dict(),
            **{key: getattr(student, key) for key in DISTANCES},
        }
    report.plot(found, folder / "report.png")
    content = {
        "config": config.to_dict(),
        "steps": found.plan.steps,
        "seconds_of_last_session": round(seconds, 1),
        "students": students,
        **provenance.origin(),
    }
    write_summary(folder, content)


def save_student(folder: Path, model: Any, about: dict[str, Any]) -> None:
    """Writes a sparse model of the registry: its arrays, and what is needed to build it again."""
    checkpoint.save_network(folder, model, about)


def student_folder(folder: Path) -> Path:
    """The folder of a student, given that or the folder of a search that found only this one."""
    checkpoint.recover_networks(folder)
    if not folder.is_dir():
        raise RunError(f"there is no folder {folder}.")
    inside = (
        path for path in sorted((folder / "students").glob("*")) if path.is_dir() and not path.name.startswith(".")
    )
    students = [folder] if (folder / "model.json").exists() else list(inside)
    if len(students) != 1:
        names = ", ".join(student.name for student in students)
        raise RunError(
            f"{folder} holds {len(students)} students{': ' + names if names else ''}. Give the folder of one of them."
        )
    return students[0]


def load_student(folder: Path) -> tuple[Any, dict[str, Any]]:
    """(model in evaluation mode, what its model.json says): what `save_student` wrote."""
    return checkpoint.load_network(folder)
