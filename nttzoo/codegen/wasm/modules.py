"""`export_wasm` and `export_training_wasm`: a network, or its training step, as .wasm beside a JavaScript module."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from flax import nnx

from nttzoo import codegen, zoo
from nttzoo._util import files
from nttzoo._util.provenance import check_writable
from nttzoo.codegen.source import Source, float_literal
from nttzoo.codegen.training import freestanding
from nttzoo.codegen.wasm import toolchain
from nttzoo.data import InputSpec
from nttzoo.errors import ModelError, OptionError

BATCH = 64  # examples that one call into a module takes
SECTION = "nttzoo"  # the custom section with a module's metadata


@dataclass(frozen=True)
class Module:
    """A WebAssembly module and its metadata."""

    content: bytes
    about: dict[str, Any]


@dataclass(frozen=True)
class ExportedWasm:
    """A WebAssembly module and the ES module that loads it."""

    module: Path
    script: Path
    bytes: int
    call: str

    def __str__(self) -> str:
        return (
            f"{self.module} ({self.bytes / 1000:.1f} kB, imports nothing) and {self.script.name}: "
            f'import {{ {self.call} }} from "./{self.script.name}".'
        )


def export_wasm(
    model: codegen.Model,
    path: str | os.PathLike[str],
    *,
    weights: zoo.Weights = "trained",
    input_shape: tuple[int, ...] | None = None,
) -> ExportedWasm:
    """Writes a network as `path` (ending in .wasm), and beside it the ES module that loads and calls it.

    The module holds the surviving weights, imports nothing and uses SIMD. It standardizes raw pixels and stores its
    name, shape and classes in a custom section.

    Args:
      model: an NNX model, the name of a published network, the Path of a folder with a network, or the Path of an ONNX
        file.
      path: path of the module; the script beside it ends in .js.
      weights: "trained" (the default) or "init", for a published network or a folder.
      input_shape: of one example, for models that do not record it.

    Returns:
      The two files and the module's size.

    Raises:
      ExportError: if there is no compiler for WebAssembly, or an operation cannot be compiled.
      OptionError: if the path does not end in .wasm.

    Example:
      >>> nttzoo.export_wasm("lenet300-mnist-1pct-global", "digits.wasm")
    """
    target = _target(path)
    made = network(model, name=target.stem, weights=weights, input_shape=input_shape)
    return _write(made, target, "load")


def export_training_wasm(model: nnx.Module, path: str | os.PathLike[str], **options: Any) -> ExportedWasm:
    """Writes the training step of a model as `path` (ending in .wasm), and beside it the ES module that loads it.

    Args:
      model: an NNX model with an `input_spec`, as `compile_training` takes it.
      path: path of the module, ending in .wasm.
      **options: those of `export_training_c`: optimizer, loss, dropout, seed.

    Returns:
      The files and their sizes.

    Raises:
      ExportError: if there is no compiler for WebAssembly, or an operation has no backward rule.
      ModelError: if the model has no `input_spec`.

    Example:
      >>> nttzoo.export_training_wasm(nttzoo.load("lenet300-mnist-1pct-global"), "digits.wasm")
    """
    target = _target(path)
    return _write(learner(model, name=target.stem, **options), target, "loadLearner")


def network(
    model: codegen.Model,
    *,
    name: str = "network",
    weights: zoo.Weights = "trained",
    input_shape: tuple[int, ...] | None = None,
) -> Module:
    """A network as a module; see `export_wasm`."""
    toolchain.find()  # before anything that takes long
    source, shape, spec = codegen.described_source(model, name=name, weights=weights, input_shape=input_shape)
    told = model if isinstance(model, str) else name
    about = {"name": told, "shape": list(shape), "outputs": source.outputs, "batch": BATCH}
    return _module("network.c", source, about, spec)


def learner(model: nnx.Module, *, name: str = "network", **options: Any) -> Module:
    """A training step as a module; see `export_training_wasm`."""
    toolchain.find()
    spec = getattr(model, "input_spec", None)
    if spec is None:
        raise ModelError(
            f"{type(model).__name__} does not know how its inputs are standardized: set `model.input_spec` to an "
            "nttzoo.data.InputSpec."
        )
    source, state = freestanding.training_source(model, name, **options)
    about = {"name": name, "shape": list(spec.shape), "outputs": source.outputs, "batch": BATCH}
    return _module("training.c", source, {**about, "learns": True, "state_bytes": state}, spec)


def javascript(file: str) -> str:
    """The ES module that loads a .wasm file beside it."""
    return _text("net.js").replace('const FILE = "net.wasm";', f"const FILE = {json.dumps(file)};")


def _module(frame: str, source: Source, about: dict[str, Any], spec: InputSpec | None) -> Module:
    code = _text(frame)
    marks = {"@NAME@": source.name, "@UPPER@": source.name.upper(), "@COUNT@": str(BATCH), "@SLOPE@": "", "@SHIFT@": ""}
    if spec is not None:
        about |= {"classes": list(spec.classes), "mean": list(spec.mean), "std": list(spec.std)}
        slopes = [1 / std if std > 0 else 1.0 for std in spec.std]  # as `data.standardize` does
        marks["@SLOPE@"] = ", ".join(float_literal(slope / 255) for slope in slopes)
        shifts = zip(spec.mean, slopes, strict=True)
        marks["@SHIFT@"] = ", ".join(float_literal(mean * slope) for mean, slope in shifts)
        code = f"#define CHANNELS {len(slopes)}\n{code}"
    for mark, value in marks.items():
        code = code.replace(mark, value)
    texts = {f"{source.name}.h": source.header, f"{source.name}.c": source.code, f"wasm_{frame}": code}
    built = toolchain.build(texts | {file: _text(file) for file in ("math.h", "math.c")})
    return Module(toolchain.with_section(built, SECTION, json.dumps(about).encode()), about)


def _text(file: str) -> str:
    return (resources.files("nttzoo.codegen.wasm") / "sources" / file).read_text()


def _target(path: str | os.PathLike[str]) -> Path:
    target = check_writable(path)
    if target.suffix != ".wasm":
        raise OptionError(f"path {target} should end in .wasm; the script is written next to it.")
    return target


def _write(made: Module, target: Path, call: str) -> ExportedWasm:
    script = target.with_suffix(".js")
    files.write_bytes(target, made.content)
    files.write_text(script, javascript(target.name))
    return ExportedWasm(target, script, len(made.content), call)
