"""The published networks: find them by name, check them, load them.

An entry is two folders, `models/<name>/` for people and `checkpoints/<name>/` for machines, and a manifest with the
size and SHA-256 of every file of both; the index, `models/index.json`, holds the manifests' hashes. Nothing of an
entry is opened before all of it has been checked. Entries come with the package; NTTZOO_HOME names a folder with more.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp

from nttzoo import architectures
from nttzoo._util import provenance
from nttzoo._util.deprecation import renamed_attribute
from nttzoo.data import InputSpec
from nttzoo.errors import OptionError, RunError, UnknownName, ZooError

FORMAT = 1
Weights = Literal["init", "trained"]


@dataclass(frozen=True)
class Entry:
    """A published network. `metrics` is all that is known of it, as in its metrics.json."""

    name: str
    architecture: str
    dataset: str
    density: float
    scheme: str
    recipe: dict[str, Any]
    seed: int
    layers: tuple[dict[str, Any], ...]  # name, size and kept weights of each
    speedup: dict[str, Any]
    license: str  # of the training data
    command: str
    size: int  # bytes of all its files
    metrics: dict[str, Any]

    licence = renamed_attribute("licence", "license")

    def summary(self) -> dict[str, Any]:
        """What one would choose it by."""
        about = {key: getattr(self, key) for key in ("name", "architecture", "dataset", "density", "scheme")}
        about |= {"method": self.recipe["name"], "test_accuracy": self.metrics["chosen"]["test_accuracy"]}
        return {**about, "theoretical_speedup": self.speedup["theoretical"], "bytes": self.size}


@dataclass(frozen=True)
class _Place:
    """Where an entry lies, and what its files must be."""

    home: Path
    name: str
    listed: dict[str, Any]  # what the index says of it

    @property
    def folders(self) -> tuple[Path, Path]:
        return self.home / "models" / self.name, self.home / "checkpoints" / self.name

    @property
    def manifest(self) -> Path:
        return self.home / "checkpoints" / self.name / "manifest.json"

    @property
    def cure(self) -> str:
        """What to do about files that are not what they should be."""
        return "Install nttzoo again." if self.home == homes()[0] else "Copy or publish the entry again."


def homes() -> list[Path]:
    """The folders that hold entries: the package's own, and NTTZOO_HOME."""
    package = Path(__file__).parents[1]
    own = package / "_zoo" if (package / "_zoo").is_dir() else package.parent
    extra = Path(os.environ.get("NTTZOO_HOME", "")).expanduser()
    if extra == Path():
        return [own]
    if not (extra / "models" / "index.json").is_file():
        raise ZooError(
            f"NTTZOO_HOME is {extra}, which has no models/index.json: `nttzoo publish --home {extra}` makes entries "
            "there; or unset it."
        )
    return [own, extra]


def _places(only: Path | None = None) -> dict[str, _Place]:
    """The entries of all homes, or of one, by name; one's own go before the package's of the same name."""
    found = {}
    for home in [only] if only else homes():
        index = home / "models" / "index.json"
        if index.exists():
            for name, entry in read_index(home).items():
                found[name] = _Place(home, name, entry)
    return found


def read_index(home: Path) -> dict[str, dict[str, Any]]:
    """{name: what the index says of it} of one folder."""
    content = provenance.read_json(home / "models" / "index.json")
    if not isinstance(content, dict) or not isinstance(content.get("entries"), dict):
        raise ZooError(f"{home / 'models' / 'index.json'} is not the index of a zoo.")
    if content.get("format") != FORMAT:
        raise ZooError(
            f"{home / 'models' / 'index.json'} has format {content.get('format')}; this version of nttzoo reads "
            f"{FORMAT}. Update nttzoo."
        )
    return content["entries"]


def list_models(
    pattern: str = "*", *, dataset: str | None = None, density: float | None = None, scheme: str | None = None
) -> list[str]:
    """The names of published networks, sorted: `list_models("conv4-*", density=0.01)`."""
    wanted = {"dataset": dataset, "density": density, "scheme": scheme}
    return sorted(
        name
        for name, place in _places().items()
        if fnmatch.fnmatchcase(name, pattern)
        and all(value is None or place.listed[key] == value for key, value in wanted.items())
    )


def _find(name: str) -> _Place:
    places = _places()
    # Looked up, never joined to a path: a name such as "../x" is simply unknown.
    if not isinstance(name, str) or name not in places:
        raise UnknownName("published network", name, places)
    return places[name]


def info(name: str) -> Entry:
    """All that is known of a published network."""
    place = _find(name)
    check(place)
    metrics = provenance.read_json(place.folders[0] / "metrics.json")
    keys = ("name", "architecture", "dataset", "density", "scheme", "recipe", "seed", "speedup", "command")
    size = sum(path.stat().st_size for folder in place.folders for path in folder.rglob("*") if path.is_file())
    return Entry(
        **{key: metrics[key] for key in keys},
        license=metrics["licence"],
        layers=tuple(metrics["layers"]),
        size=size,
        metrics=metrics,
    )


def load(name: str | Path, *, weights: Weights = "init") -> architectures.Network:
    """A sparse network, masks and weights set, in evaluation mode, ready for any optax loop.

    A str is the name of a published network; a Path is the folder of a search of one's own, or of one of its students.
    `weights`: "init", the sparse initialization, or "trained". What the inputs need is in `model.input_spec`.
    """
    from nttzoo import checkpoint  # Orbax takes a while to import

    if weights not in ("init", "trained"):
        raise OptionError(f"weights={weights!r} is not one of 'init', 'trained'.")
    if isinstance(name, Path):
        return _load_own(name, weights)
    place = _find(name)
    check(place)
    metrics = provenance.read_json(place.folders[0] / "metrics.json")
    model = architectures.blank(metrics["architecture"], InputSpec.from_dict(metrics), seed=metrics["seed"])
    checkpoint.unpack(model, checkpoint.load_arrays(place.folders[1] / weights))
    model.eval()
    return model


def _load_own(folder: Path, weights: Weights) -> Any:
    from nttzoo import search

    student = search.student_folder(folder)
    if weights == "init":
        return search.load_student(student)[0]
    if not (student / "trained").is_dir():
        raise RunError(
            f"{student} is not trained yet: `nttzoo train --start {student} --data NAME` does that. Its sparse "
            'initialization are the weights "init".'
        )
    return search.load_student(student / "trained")[0]


def onnx_file(name: str) -> Path:
    """The ONNX file of a published network's trained weights, checked."""
    place = _find(name)
    check(place)
    return place.folders[0] / "model.onnx"


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
            raise ZooError(f"{name!r} does not have the weights per layer that its card tells.")
        outputs = network(jnp.ones((2, *network.input_spec.shape)))
        if outputs.shape != (2, len(network.input_spec.classes)) or not bool(jnp.isfinite(outputs).all()):
            raise ZooError(f"{name!r} gives outputs of shape {outputs.shape}, or not finite ones.")
    return LoadCheck(name, masks.density_report(model).total.density, 1000 * elapsed)


# Checking.


def check(place: _Place) -> None:
    """Raises, with the file's name, unless an entry's files are exactly those of its manifest."""
    if not place.manifest.is_file() or place.manifest.is_symlink():
        raise ZooError(f"{place.manifest} is missing. {place.cure}")
    if sha256(place.manifest) != place.listed["manifest_sha256"]:
        raise ZooError(f"{place.manifest} is not the one in the index: it was changed. {place.cure}")
    manifest = provenance.read_json(place.manifest)
    if manifest["name"] != place.name:
        raise ZooError(f"{place.manifest} is that of {manifest['name']!r}, not of {place.name!r}. {place.cure}")
    listed = manifest["files"]
    present = files_of(place.home, place.name)
    for extra in sorted(present.keys() - listed.keys()):
        raise ZooError(f"{place.home / extra} does not belong to {place.name!r}. Remove it.")
    for name, expected in listed.items():
        path = place.home / name
        if name not in present:
            raise ZooError(f"{path} of {place.name!r} is missing. {place.cure}")
        if path.stat().st_size != expected["size"] or sha256(path) != expected["sha256"]:
            raise ZooError(f"{path} of {place.name!r} was changed or cut short. {place.cure}")


def files_of(home: Path, name: str) -> dict[str, Path]:
    """{path below home: path} of all files of an entry but its manifest; a symbolic link is refused."""
    found = {}
    for folder in (home / "models" / name, home / "checkpoints" / name):
        for path in sorted([folder, *folder.rglob("*")]):
            if path.is_symlink():
                raise ZooError(f"{path} is a symbolic link; entries hold files only.")
            if path.is_file() and path != home / "checkpoints" / name / "manifest.json":
                found[path.relative_to(home).as_posix()] = path
    return found


def sha256(path: Path) -> str:
    """The SHA-256 of a file, as hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(home: Path | None = None, *, leave_out: Collection[str] = ()) -> list[str]:
    """Checks all entries, or those of one folder; returns their names, or raises at one that is not as published."""
    every = [place for one in ([home] if home else homes()) for place in _places(one).values()]
    places = [place for place in every if place.name not in leave_out]
    for place in places:
        check(place)
    return sorted(place.name for place in places)
