"""Saved models: `save`, and `load` from a folder."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flax import nnx

from nttzoo import architectures, checkpoint, search
from nttzoo._util import files, provenance, schema
from nttzoo._util.checks import check_instance, check_model, check_path
from nttzoo.checkpoint import networks
from nttzoo.data import InputSpec
from nttzoo.errors import ModelError, OptionError
from nttzoo.nn import masked_layers, path_name, sparsify

Factory = Callable[[], nnx.Module]


def save(model: nnx.Module, folder: str | os.PathLike[str], *, input_spec: InputSpec | None = None) -> Path:
    """Saves the masks and weights of any masked NNX model; `nttzoo.load` reads them back.

    The folder holds the surviving weights, all other variables except random keys, and a manifest of checksums. It
    holds no code: `load` rebuilds a registered architecture by its name, and any other model with a factory.

    Args:
      model: any NNX module with masked layers (see `nttzoo.sparsify`).
      folder: a new folder, or one that `save` wrote before, which is replaced atomically.
      input_spec: shape, mean, std and classes that the model expects (default: `model.input_spec`, if it has one).

    Returns:
      The folder, as `load` takes it.

    Raises:
      ModelError: if the model has no masked layers.
      RunError: if the folder holds files that nttzoo did not write.

    Example:
      >>> nttzoo.save(found.students[0].model, "mine")
      >>> model = nttzoo.load(Path("mine"), factory=lambda: MyNet(rngs=nnx.Rngs(0)))
    """
    check_model("model", model)
    check_path("folder", folder)
    target = Path(folder)
    spec = getattr(model, "input_spec", None) if input_spec is None else input_spec
    if spec is not None:
        check_instance("input_spec", spec, InputSpec)
    about: dict[str, Any] = {
        "class": type(model).__name__,
        "architecture": _registered_name(model),
        "masked": [path_name(path) for path in masked_layers(model)],
        "variables": _variables(model),
        **(spec.to_dict() if spec else {}),
    }
    if about["architecture"] and not spec:
        network: Any = model
        about |= {"num_classes": network.num_classes, "input_shape": list(network.input_shape)}
    with files.new_folder(target) as part:
        checkpoint.save_arrays(part / "arrays", checkpoint.pack(model))
        provenance.write_json(part / "model.json", about)
    return target


def is_saved(folder: Path) -> bool:
    """Whether `save` wrote this folder (and not a search)."""
    path = folder / "model.json"
    content = files.read_json(path) if path.exists() else None
    return isinstance(content, dict) and "variables" in content


def described(folder: Path) -> dict[str, Any]:
    """What `save` wrote of a model; its inputs are among it only if they were known."""
    path = folder / "model.json"
    about = schema.read(path, schema.SavedFile, what="the description of a model that nttzoo.save wrote")
    return schema.validate(path, about, schema.Inputs) if "mean" in about else about


def load_saved(folder: Path, factory: Factory | None) -> Any:
    """The model that `save` wrote, in evaluation mode."""
    about = described(folder)
    if "mean" not in about and about["architecture"] and factory is None:
        schema.validate(folder / "model.json", about, schema.ShapesOnly)
    model = _build(folder, about, factory)
    if differences := _differences(about["variables"], _variables(model)):
        raise ModelError(f"{folder} holds another network than {type(model).__name__}: {differences}.")
    _fill(model, folder)
    if "mean" in about:
        model.input_spec = InputSpec.from_dict(about)
    return model


def load_student(folder: Path, factory: Factory | None) -> Any:
    """The student that a search wrote, in evaluation mode; rebuilt by its name, or by the factory."""
    if factory is None:
        return search.load_student(folder)[0]
    model = call_factory(factory)
    _fill(model, folder)
    about = schema.read(folder / "model.json", schema.NetworkFile)
    model.input_spec = InputSpec.from_dict(about)
    return model


def call_factory(factory: Factory) -> Any:
    """The model that a factory makes, with masks on all its layers if it has none."""
    model = _call(factory)
    if not _has_masks(model):
        sparsify(model, copy=False)
    return model


def _fill(model: Any, folder: Path) -> None:
    """Sets a model's arrays from a folder, whose files are checked, and puts it in evaluation mode."""
    with files.verified_copy(folder, limit=networks.file_limit(model)) as copy:
        arrays = checkpoint.load_arrays(copy / "arrays", checkpoint.layout(model), source=folder / "arrays")
    checkpoint.unpack(model, arrays, source=folder / "arrays")
    model.eval()


def _build(folder: Path, about: dict[str, Any], factory: Factory | None) -> Any:
    if factory is not None:
        model = _call(factory)
        layers = {name.rpartition(".")[0] for name in about["variables"] if name.endswith(".kernel")}
        # A subset of the layers may have had masks: the others stay as they are.
        dense = [glob.escape(name) for name in sorted(layers - set(about["masked"]))]
        return model if _has_masks(model) else sparsify(model, exclude=dense, copy=False)
    if about["architecture"] is None:
        raise OptionError(
            f"{folder} holds a model of class {about['class']!r}, which is not a registered architecture: give "
            "load(..., factory=f), where f() makes a model of this class with any weights."
        )
    if "mean" in about:
        _, spec = networks.abstract_network(folder / "model.json", {**about, "seed": 0})
        return architectures.blank(about["architecture"], spec, seed=0)
    shapes: dict[str, Any] = {"num_classes": about["num_classes"], "input_shape": tuple(about["input_shape"])}
    return architectures.create(about["architecture"], rngs=0, **shapes)


def _call(factory: Factory) -> Any:
    if not callable(factory):
        raise OptionError(f"factory is {factory!r}; it must be a function without arguments that makes the model.")
    model = factory()
    if not isinstance(model, nnx.Module):
        raise OptionError(f"factory() gave {type(model).__name__}; it must make an NNX model.")
    return model


def _registered_name(model: nnx.Module) -> str | None:
    return next((name for name, make in architectures.ARCHITECTURES.items() if type(model) is make), None)


def _has_masks(model: nnx.Module) -> bool:
    try:
        return bool(masked_layers(model))
    except ModelError:
        return False


def _variables(model: nnx.Module) -> dict[str, list[Any]]:
    """{name: [shape, type]} of everything that is saved."""
    kept = nnx.to_flat_state(nnx.state(model, nnx.Not(nnx.RngState)))
    return {path_name(path): [list(value[...].shape), str(value[...].dtype)] for path, value in kept}


def _differences(saved: dict[str, list[Any]], built: dict[str, list[Any]]) -> str:
    """The first difference between two sets of variables, or nothing."""
    for name in sorted(saved.keys() | built.keys()):
        if name not in built:
            return f"it has a variable {name!r} that the model does not have"
        if name not in saved:
            return f"it has no variable {name!r}, which the model has"
        if saved[name] != built[name]:
            (shape, kind), (other, its) = saved[name], built[name]
            return f"{name!r} is {kind} {shape} in the folder and {its} {other} in the model"
    return ""
