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
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import jax.numpy as jnp
from flax import nnx

from nttzoo import architectures
from nttzoo._util import console, files, schema
from nttzoo._util.deprecation import renamed_attribute
from nttzoo.architectures import ARCHITECTURES
from nttzoo.data import SOURCES
from nttzoo.errors import FileError, OptionError, RunError, UnknownName, ZooError
from nttzoo.sparsity.density import check_density
from nttzoo.sparsity.schemes import SCHEMES
from nttzoo.zoo import changes

FORMAT = 1
Weights = Literal["init", "trained"]
UNKNOWN_LIMIT = 2**32  # bytes of a file of an architecture that is not registered
T = TypeVar("T")


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

    def __repr__(self) -> str:
        rows = {
            "architecture": self.architecture,
            "data": self.dataset,
            "density": f"{self.density:.2%}, {self.scheme}",
            "method": f"{self.recipe['name']}, seed {self.seed}",
            "test accuracy": f"{self.metrics['chosen']['test_accuracy']:.2%} after {self.train_epochs} epochs",
            "theoretical speedup": f"{self.speedup['theoretical']:.1f}x",
            "size": f"{self.size / 1000:.0f} kB",
            "license of the data": self.license,
        }
        layers = [(layer["name"], layer["size"], layer["kept"]) for layer in self.layers]
        shown = console.table("", ("layer", "weights", "kept"), layers)
        return f"{console.table(self.name, ('', ''), rows.items())}\n{shown}"

    @property
    def train_epochs(self) -> int:
        """Epochs of supervised training behind the "trained" weights."""
        return self.metrics["train"]["epochs"]

    def summary(self) -> dict[str, Any]:
        """What one would choose it by."""
        about = {key: getattr(self, key) for key in ("name", "architecture", "dataset", "density", "scheme")}
        about |= {"method": self.recipe["name"], "test_accuracy": self.metrics["chosen"]["test_accuracy"]}
        about |= {"search_epochs": self.recipe["epochs"], "train_epochs": self.train_epochs}
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
        changes.settle(home)
        if os.path.lexists(home / "models" / "index.json"):
            for name, entry in read_index(home).items():
                found[name] = _Place(home, name, entry)
    return found


def read_index(home: Path) -> dict[str, dict[str, Any]]:
    """{name: what the index says of it} of one folder."""
    path = home / "models" / "index.json"
    content = files.read_json(path)
    if isinstance(content, dict) and content.get("format", FORMAT) != FORMAT:
        raise FileError(
            path, f"has format {content['format']}; this version of nttzoo reads {FORMAT}", "Update nttzoo."
        )
    return schema.validate(path, content, schema.Index, what="the index of a zoo")["entries"]


def list_models(
    *words: str, dataset: str | None = None, density: float | None = None, scheme: str | None = None
) -> list[str]:
    """Lists the names of published networks.

    Args:
      words: parts of names, such as "conv4", "svhn", "1pct" or "global", or globs over names, such as "conv4-*"; a
        network has to match all of them.
      dataset: only networks for this data set.
      density: only networks with this density, in (0, 1].
      scheme: only networks with this sparsity scheme.

    Returns:
      The names, sorted.

    Raises:
      UnknownName: if a word, data set or scheme is not known.
      DensityError: if the density is not in (0, 1].

    Example:
      >>> nttzoo.list_models("lenet300", "mnist", density=0.01)
    """
    places = _places()
    if dataset is not None:
        SOURCES[dataset]
    if scheme is not None:
        SCHEMES[scheme]
    if density is not None:
        check_density(density)
    known = {*ARCHITECTURES, *SOURCES, *SCHEMES, *(part for name in places for part in name.split("-"))}
    for word in words:
        if not isinstance(word, str) or not (set(word) & set("*?[") or word in known or word in places):
            raise UnknownName("part of a published network's name", word, sorted(known))
    wanted = {"dataset": dataset, "density": density, "scheme": scheme}
    return sorted(
        name
        for name, place in places.items()
        if all(word in name.split("-") or fnmatch.fnmatchcase(name, word) for word in words)
        and all(value is None or place.listed[key] == value for key, value in wanted.items())
    )


def is_folder(name: str | os.PathLike[str]) -> bool:
    """Whether this is a folder with a model or a search, and not the name of a published network."""
    if not isinstance(name, str):
        return True
    return name not in _places() and any((Path(name) / part).exists() for part in ("model.json", "students"))


def _find(name: str) -> _Place:
    places = _places()
    # Looked up, never joined to a path: a name such as "../x" is simply unknown.
    if not isinstance(name, str) or name not in places:
        raise UnknownName("published network", name, places)
    return places[name]


def _steadily(name: str, action: Callable[[_Place], T]) -> T:
    """The result of an action on an entry; repeated if the entry was republished meanwhile."""
    while True:
        place = _find(name)
        try:
            return action(place)
        except FileError:
            if _find(name) == place:
                raise


def info(name: str) -> Entry:
    """All that is known of a published network."""
    return _steadily(name, _info)


def _info(place: _Place) -> Entry:
    metrics = check(place)
    keys = ("name", "architecture", "dataset", "density", "scheme", "recipe", "seed", "speedup", "command")
    size = sum(path.stat().st_size for path in (*files_of(place.home, place.name).values(), place.manifest))
    return Entry(
        **{key: metrics[key] for key in keys},
        license=metrics["licence"],
        layers=tuple(metrics["layers"]),
        size=size,
        metrics=metrics,
    )


def load(
    name: str | os.PathLike[str], *, weights: Weights = "init", factory: Callable[[], nnx.Module] | None = None
) -> architectures.Network:
    """Loads a sparse network with its masks and weights, in evaluation mode, ready for any optax loop.

    Args:
      name: the name of a published network; or the folder of a search, of one of its students, or that
        `nttzoo.save` wrote. A published name takes precedence
        over a folder of the same name.
      weights: "init" (the default) for the sparse initialization, from which one trains; "trained" for the weights
        after training. Exports and `nttzoo.compile` use "trained" by default.
      factory: for a folder with a model that is not a registered architecture: `factory()` makes a model of the same
        class with any weights. `load` never imports code that a file names.

    Returns:
      The model. `model.input_spec` says what its inputs need, if that is known.

    Raises:
      UnknownName: if there is no such published network.
      ZooError, FileError: if a file was changed or lost.
      ModelError: if the factory makes a model with other variables.

    Example:
      >>> model = nttzoo.load("lenet300-mnist-1pct-global")
      >>> logits = model(model.input_spec.standardize(images))
    """
    if weights not in ("init", "trained"):
        raise OptionError(f"weights={weights!r} is not one of 'init', 'trained'.")
    if not isinstance(name, str | os.PathLike):
        raise UnknownName("published network", name, _places())
    if is_folder(name):
        return _load_own(Path(name), weights, factory)
    name = str(name)
    _find(name)
    if factory is not None:
        raise OptionError(f"{name!r} is published and needs no factory: leave it out.")

    def load_published(place: _Place) -> Any:
        return _load_weights(place, check(place), weights)

    return _steadily(name, load_published)


def _load_weights(place: _Place, metrics: dict[str, Any], weights: str) -> Any:
    """A network from a private copy of its arrays, whose bytes are compared with the manifest once more."""
    from nttzoo import checkpoint
    from nttzoo.checkpoint import networks

    abstract, spec = networks.abstract_network(place.folders[0] / "metrics.json", metrics)
    below = f"checkpoints/{place.name}/{weights}/"
    listed = {path: entry for path, entry in _read_manifest(place)["files"].items() if path.startswith(below)}
    present = {path: file for path, file in files_of(place.home, place.name).items() if path.startswith(below)}
    options: Any = {"owner": place.name, "cure": place.cure, "limit": networks.file_limit(abstract)}
    with files.copied(place.home, listed, present, **options) as copy:
        arrays = checkpoint.load_arrays(copy / below, checkpoint.layout(abstract), source=place.home / below)
    return networks.build(metrics, spec, arrays, place.home / below)


def _load_own(folder: Path, weights: Weights, factory: Callable[[], nnx.Module] | None) -> Any:
    from nttzoo import search
    from nttzoo.zoo import saving

    student = search.student_folder(folder)
    read = saving.load_saved if saving.is_saved(student) else saving.load_student
    if weights == "init":
        return read(student, factory)
    if not (student / "trained").is_dir():
        raise RunError(
            f"{student} is not trained yet: `nttzoo train --start {student} --data NAME` does that. Its sparse "
            'initialization are the weights "init".'
        )
    return saving.load_student(student / "trained", factory)


def onnx_file(name: str) -> Path:
    """The ONNX file of a published network's trained weights, checked."""

    def checked(place: _Place) -> Path:
        check(place)
        return place.folders[0] / "model.onnx"

    return _steadily(name, checked)


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


def check(place: _Place) -> dict[str, Any]:
    """The metrics of an entry. Raises, with the file's name, unless its files are exactly those of its manifest."""
    from nttzoo.checkpoint import networks
    from nttzoo.zoo import metrics as metrics_file

    listed = _read_manifest(place)["files"]
    present = files_of(place.home, place.name)
    path = place.folders[0] / "metrics.json"
    expected = listed.get(path.relative_to(place.home).as_posix())
    if expected is None:
        raise FileError(place.manifest, "does not list metrics.json", place.cure)
    if not path.exists():
        raise FileError(path, f"of {place.name!r} is missing", place.cure)
    content = files.read_bytes(path)
    if hashlib.sha256(content).hexdigest() != expected["sha256"]:
        raise FileError(path, f"of {place.name!r} was changed or cut short", place.cure)
    metrics = metrics_file.parse(path, content, place.name)
    limit = UNKNOWN_LIMIT
    if metrics["architecture"] in architectures.ARCHITECTURES:
        limit = networks.file_limit(networks.abstract_network(path, metrics)[0])
    for file in present.values():
        files.check_size(file, limit)
    files.check_listed(place.home, listed, present, owner=place.name, cure=place.cure)
    return metrics


def _read_manifest(place: _Place) -> dict[str, Any]:
    if not os.path.lexists(place.manifest):
        raise FileError(place.manifest, "is missing", place.cure)
    content = files.read_bytes(place.manifest)
    if hashlib.sha256(content).hexdigest() != place.listed["manifest_sha256"]:
        raise FileError(place.manifest, "is not the one in the index: it was changed", place.cure)
    manifest = schema.validate(place.manifest, files.parse_json(place.manifest, content), schema.Manifest)
    if manifest["name"] != place.name:
        raise FileError(place.manifest, f"is that of {manifest['name']!r}, not of {place.name!r}", place.cure)
    return manifest


def files_of(home: Path, name: str) -> dict[str, Path]:
    """{path below home: path} of all files of an entry but its manifest; links, pipes and devices are refused."""
    found = {}
    for folder in (home / "models" / name, home / "checkpoints" / name):
        if folder.is_symlink():
            raise FileError(folder, "is a symbolic link; only regular files belong here")
        for path in sorted(files.walk(folder)) if folder.is_dir() else ():
            if path != home / "checkpoints" / name / "manifest.json":
                found[path.relative_to(home).as_posix()] = path
    return found


def verify(home: Path | None = None, *, leave_out: Collection[str] = ()) -> list[str]:
    """Checks all entries, or those of one folder; returns their names, or raises at one that is not as published.

    All files are compared with their manifests first; then every array is compared with what its network needs.
    """
    every = [place for one in ([home] if home else homes()) for place in _places(one).values()]
    places = [place for place in every if place.name not in leave_out]
    checked = [check(place) for place in places]
    for place, metrics in zip(places, checked, strict=True):
        for weights in ("init", "trained") if metrics["architecture"] in architectures.ARCHITECTURES else ():
            _load_weights(place, metrics, weights)
    return sorted(place.name for place in places)
