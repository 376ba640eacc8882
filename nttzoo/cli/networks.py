"""Networks named on the command line: published ones and the user's folders."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from flax import nnx

from nttzoo import architectures, search, zoo
from nttzoo.architectures.own import Factory
from nttzoo.data import SOURCES
from nttzoo.errors import ModelError, RunError
from nttzoo.zoo import hub, saving


def find(name: str) -> str | Path:
    """A published network's name as it is, or a folder as a path; published names take precedence."""
    published = zoo.list_models()
    if name in published:
        return name
    if Path(name).is_dir():
        return Path(name) if hub.is_hub(Path(name)) else search.student_folder(Path(name))
    near = difflib.get_close_matches(name, published, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise RunError(f"there is no folder {name}, and no published network of this name.{hint}")


def is_student(folder: Path) -> bool:
    """Whether a search found the network in this folder."""
    return not (hub.is_hub(folder) or saving.is_saved(folder))


def load(found: str | Path, *, model: str, data: str | None, weights: zoo.Weights = "init") -> Any:
    """Loads what `find` found. `model` names the factory of a custom model, `data` the inputs that it takes."""
    folder = found if isinstance(found, Path) and not is_student(found) and not hub.is_hub(found) else None
    about = saving.described(folder) if folder else {}
    if folder is None or about["architecture"]:
        return zoo.load(found, weights=weights)
    make = architectures.ARCHITECTURES[model]
    if not isinstance(make, Factory):
        raise ModelError(
            f"{folder} holds a {about['class']} (a custom model). Name its factory: --model net.py:factory."
        )
    shapes: dict[str, Any]
    if "mean" in about:
        shapes = {"num_classes": len(about["classes"]), "input_shape": tuple(about["input_shape"])}
    elif data:
        shapes = {"num_classes": len(SOURCES[data].classes), "input_shape": SOURCES[data].input_shape}
    else:
        raise ModelError(f"{folder} does not record its input shape: name a data set with --data.")
    network = zoo.load(folder, weights=weights, factory=lambda: make.make(**shapes, rngs=nnx.Rngs(0)))
    network.input_shape = shapes["input_shape"]  # for counting; custom classes need not set it
    return network
