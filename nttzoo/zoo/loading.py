"""`load`: published networks by name, and saved ones from folders."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from flax import nnx

from nttzoo import architectures
from nttzoo._util import files
from nttzoo._util.checks import check_choice
from nttzoo.data import InputSpec
from nttzoo.errors import OptionError, RunError, UnknownName
from nttzoo.zoo.checking import check, files_of, read_manifest
from nttzoo.zoo.index import Place, all_places, find_place, is_folder, retried

Weights = Literal["init", "trained"]


def load(
    name: str | os.PathLike[str], *, weights: Weights = "init", factory: Callable[[], nnx.Module] | None = None
) -> architectures.Network:
    """Loads a sparse network with its masks and weights, in evaluation mode, ready for any optax loop.

    Args:
      name: the name of a published network; or the folder of a search, of one of its students, or that `nttzoo.save`
        or `nttzoo.export.export_hub` wrote. A published name takes precedence over a folder of the same name.
      weights: "init" (the default) for the sparse initialization, from which one trains; "trained" for the weights
        after training. Exports and `nttzoo.compile` use "trained" by default.
      factory: for a network that is not a registered architecture: `factory()` makes a model of the same class with
        any weights. `load` never imports code that a file names.

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
    check_choice("weights", weights, ("init", "trained"))
    if not isinstance(name, str | os.PathLike):
        raise UnknownName("published network", name, all_places(), shown_by="`nttzoo list`")
    if is_folder(name):
        return _load_own(Path(name), weights, factory)
    name = str(name)
    find_place(name)

    def load_published(place: Place) -> Any:
        metrics = check(place)
        if factory is not None and not metrics.get("factory"):
            raise OptionError(f"{name!r} is published and needs no factory: leave it out.")
        return load_weights(place, metrics, weights, factory)

    return retried(name, load_published)


def load_from(home: Path, name: str, weights: Weights) -> Any:
    """A published network from one folder of entries."""
    return retried(name, lambda place: load_weights(place, check(place), weights), home)


def load_weights(
    place: Place, metrics: dict[str, Any], weights: str, factory: Callable[[], nnx.Module] | None = None
) -> Any:
    """A network from a private copy of its arrays, whose bytes are compared with the manifest once more.

    It is made by the factory, or by its architecture's name.
    """
    from nttzoo import checkpoint
    from nttzoo.checkpoint import networks
    from nttzoo.zoo import saving

    if factory is not None:
        abstract, spec = saving.call_factory(factory), InputSpec.from_dict(metrics)
    else:
        abstract, spec = networks.abstract_network(place.folders[0] / "metrics.json", metrics)
    below = f"checkpoints/{place.name}/{weights}/"
    listed = {path: entry for path, entry in read_manifest(place)["files"].items() if path.startswith(below)}
    present = {path: file for path, file in files_of(place.home, place.name).items() if path.startswith(below)}
    options: Any = {"owner": place.name, "cure": place.cure, "limit": networks.file_limit(abstract)}
    with files.copied(place.home, listed, present, **options) as copy:
        arrays = checkpoint.load_arrays(copy / below, checkpoint.layout(abstract), source=place.home / below)
    if factory is not None:
        return networks.fill(abstract, spec, arrays, place.home / below)
    return networks.build(metrics, spec, arrays, place.home / below)


def _load_own(folder: Path, weights: Weights, factory: Callable[[], nnx.Module] | None) -> Any:
    from nttzoo import search
    from nttzoo.zoo import hub, saving

    if hub.is_hub(folder):
        return hub.load_hub(folder, weights, factory)
    student = search.student_folder(folder)
    if weights == "trained":
        student = _trained(student)
    read = saving.load_saved if saving.is_saved(student) else saving.load_student
    return read(student, factory)


def _trained(student: Path) -> Path:
    if not (student / "trained").is_dir():
        raise RunError(
            f"{student} is not trained yet: `nttzoo train --start {student} --data NAME` does that. Until then "
            'there is only its sparse initialization: weights="init" (--weights init).'
        )
    return student / "trained"


def onnx_file(name: str) -> Path:
    """The ONNX file of a published network's trained weights, checked."""

    def checked(place: Place) -> Path:
        check(place)
        return place.folders[0] / "model.onnx"

    return retried(name, checked)
