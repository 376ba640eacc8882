"""Sparse networks as plain C with the surviving weights only.

`export_c` writes one self-contained C99 file and its header; `compile` builds it and returns a callable. Both read
ONNX: graphs from `export_onnx` or from other exporters.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flax import nnx

from nttzoo import export, zoo
from nttzoo._util import files
from nttzoo._util.checks import check_choice, check_count, check_path, check_text
from nttzoo._util.provenance import check_writable
from nttzoo.data import InputSpec
from nttzoo.errors import ExportError, FileError, OptionError

with export.onnx_packages():
    import onnx

    from nttzoo.codegen import build, emit, frontend, loading, lower, optimize, selfcheck
    from nttzoo.codegen.build import Compiled
    from nttzoo.codegen.choices import Choices
    from nttzoo.codegen.source import Source

__all__ = ["Choices", "Compiled", "ExportedC", "Source", "compile", "export_c", "to_source"]

# An NNX model, a published network's name, the Path of a search, or the Path of an .onnx file
Model = nnx.Module | str | Path


@dataclass(frozen=True)
class ExportedC:
    """A C file, its header, and the memory that the network needs."""

    code: Path
    header: Path
    name: str  # prefix of all symbols
    arena_bytes: int
    table_bytes: int
    requested: str  # the name before its conversion to a C identifier
    difference: float | None  # max |difference| / max |output| from JAX or ONNX Runtime; None if the C was not run
    unverified: str  # why the C was not run

    def __str__(self) -> str:
        changed = f" ({self.requested!r} is not a C identifier)" if self.requested != self.name else ""
        checked = f"not verified: {self.unverified}"
        if self.difference is not None:
            checked = f"compiled, its outputs differ from the model's by at most {self.difference:.1e} of the largest"
        return (
            f"{self.code} and {self.header.name}: call {self.name}_run{changed}. {self.table_bytes / 1000:.1f} kB of "
            f"tables, {self.arena_bytes / 1000:.1f} kB of working memory; {checked}"
        )


def export_c(
    model: Model,
    path: str | os.PathLike[str],
    *,
    weights: zoo.Weights = "trained",
    name: str | None = None,
    input_shape: tuple[int, ...] | None = None,
) -> ExportedC:
    """Writes a network as C99 with the surviving weights only.

    Where there is a C compiler, the file is compiled and compared with JAX or ONNX Runtime before it is written.

    Args:
      model: an NNX model, the name of a published network, the Path of a folder with a network, or the Path of an
        ONNX file.
      path: path of the C file, ending in .c; the header is written next to it.
      weights: "trained" or "init", where `model` is a name or a folder.
      name: prefix of all symbols (default: the file's name), converted to a C identifier if necessary.
      input_shape: shape of one input without the batch axis, for models that do not record it.

    Returns:
      The files, their memory requirements, and the largest difference from the model's outputs.

    Raises:
      ExportError: if an operation cannot be compiled, or the outputs differ.
      OptionError: if the path does not end in .c.

    Example:
      >>> print(nttzoo.export_c("lenet300-mnist-1pct-global", "digits.c"))
    """
    check_path("path", path)
    if name is not None:
        check_text("name", name)
    target = Path(path)
    if target.suffix != ".c":
        raise OptionError(f"path {target} should end in .c; the header is written next to it.")
    check_writable(target)
    requested = name or target.stem
    proto, oracle = _graph(model, weights, input_shape)
    source, shape = source_of(proto, requested)
    difference, unverified = _verify(source, shape, oracle)
    header = target.with_name(f"{source.name}.h")
    for place, text in ((header, source.header), (target, source.code)):
        part = place.with_name(f".{place.name}.part")
        try:
            part.write_text(text)
            os.replace(part, place)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise ExportError(f"cannot write {place}: {error}.") from error
    return ExportedC(
        target, header, source.name, 4 * source.arena, source.table_bytes, requested, difference, unverified
    )


def _verify(source: Source, shape: tuple[int, ...], oracle: export.Oracle) -> tuple[float | None, str]:
    """Compares the compiled source with the oracle: (relative difference, ""), or (None, why it was not run).

    A missing compiler, or one for another target, is not an error: the C may be meant for another machine.
    """
    with tempfile.TemporaryDirectory() as cache:
        try:
            network = build.build(source, input_shape=shape, threads=1, cache=Path(cache))
        except (ExportError, OSError) as error:
            return None, str(error)
        worst = selfcheck.worst_difference(network, oracle)
    if not export.is_rounding(worst, oracle, selfcheck.batches(network)):
        raise ExportError(
            f"the C's outputs differ from the model's by {worst:.2e} of the largest output, more than rounding "
            "explains: nothing was written."
        )
    return worst, ""


def compile(
    model: Model,
    *,
    threads: int | None = None,
    weights: zoo.Weights = "trained",
    input_shape: tuple[int, ...] | None = None,
) -> Compiled:
    """Compiles a network with the system's C compiler; the library is cached.

    A new library is compared once with JAX or, for an ONNX file, with ONNX Runtime if that is installed.

    Args:
      model: an NNX model, the name of a published network, the Path of a folder with a network, or the Path of an ONNX
        file.
      threads: number of threads that share the examples of a batch (default: all cores that the process may use).
      weights: "trained" (the default) or "init", for a published network or a folder.
      input_shape: of one example, for models that do not record it.

    Returns:
      A callable on numpy arrays [n, ...]; its `predict` gives class names.

    Raises:
      ExportError: if there is no C compiler, or the model has an operation that cannot be compiled.

    Example:
      >>> run = nttzoo.compile("lenet300-mnist-1pct-global")
      >>> outputs = run(images)  # uint8, or standardized floats
    """
    threads = build.usable_cores() if threads is None else check_count("threads", threads)
    proto, oracle = _graph(model, weights, input_shape)
    source, shape = source_of(proto)
    network = build.build(source, input_shape=shape, threads=threads, input_spec=_input_spec(proto, shape))
    selfcheck.check_once(network, proto, oracle)
    return network


def to_source(
    model: Model,
    *,
    name: str | None = None,
    weights: zoo.Weights = "trained",
    input_shape: tuple[int, ...] | None = None,
) -> tuple[Source, tuple[int, ...]]:
    """(C source, shape of one input)."""
    return source_of(_graph(model, weights, input_shape)[0], name)


def described_source(
    model: Model,
    *,
    name: str | None = None,
    weights: zoo.Weights = "trained",
    input_shape: tuple[int, ...] | None = None,
) -> tuple[Source, tuple[int, ...], InputSpec | None]:
    """(C source, shape of one input, the input spec or None)."""
    proto, _ = _graph(model, weights, input_shape)
    source, shape = source_of(proto, name)
    return source, shape, _input_spec(proto, shape)


def source_of(
    proto: onnx.ModelProto, name: str | None = None, choices: Choices | None = None
) -> tuple[Source, tuple[int, ...]]:
    """(C source, shape of one input) of an ONNX graph."""
    choices = choices or Choices()
    program = frontend.read(proto)
    needed = optimize.optimize(program, choices)
    plan = lower.lower(program, needed, choices)
    shape = program.shapes[program.source]
    sizes = [_size(program.shapes[value]) for value in (program.source, program.target)]
    about = _metadata(proto)
    known = _numbers_and_names(about)
    known["shape"] = "".join(f"[{size}]" for size in shape)
    return emit.emit(plan, name or about.get("name") or "network", sizes[0], sizes[1], known, choices), shape


def _metadata(proto: onnx.ModelProto) -> dict[str, str]:
    """The metadata that `export_onnx` writes; other exporters may use the same keys for something else."""
    ours = proto.producer_name == "nttzoo"
    return {entry.key: entry.value for entry in proto.metadata_props if ours}


def _input_spec(proto: onnx.ModelProto, shape: tuple[int, ...]) -> InputSpec | None:
    """The input spec in a file's metadata, if there is one and images have their channels last."""
    about = _metadata(proto)
    if about.get("layout") != "NHWC" or not {"mean", "std", "classes"} <= about.keys():
        return None
    known = _numbers_and_names(about)
    return InputSpec(shape, *(tuple(known[key]) for key in ("mean", "std", "classes")))


def _numbers_and_names(about: dict[str, str]) -> dict[str, Any]:
    """Mean, std and class names in the metadata of a file from `export_onnx`."""
    known: dict[str, Any] = {}
    for key, kind in (("mean", float | int), ("std", float | int), ("classes", str)):
        if key not in about:
            continue
        try:
            known[key] = files.parse_json(key, about[key].encode())
        except FileError as error:
            raise ExportError(f"the file's metadata {key!r} is not JSON: {error}") from error
        if (
            not isinstance(known[key], list)
            or not known[key]
            or not all(isinstance(value, kind) for value in known[key])
        ):
            raise ExportError(f"the file's metadata {key!r} is {about[key][:80]}; a list is needed.")
    return known


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for axis in shape:
        size *= axis
    return size


def _graph(
    model: Model, weights: zoo.Weights, input_shape: tuple[int, ...] | None
) -> tuple[onnx.ModelProto, export.Oracle]:
    """A network's ONNX graph, and an independent implementation: ONNX Runtime for a file, JAX for a model."""
    check_choice("weights", weights, ("init", "trained"))
    if isinstance(model, str) and weights == "trained":
        model = zoo.onnx_file(model)  # checked when it was published
    if isinstance(model, Path) and model.suffix == ".onnx":
        proto = loading.load(model)
        return proto, partial(selfcheck.outputs_of_graph, frontend.prepared(proto))
    if isinstance(model, str | Path):
        name = model if isinstance(model, str) else model.name
        model = zoo.load(model, weights=weights)
    else:
        name = type(model).__name__.lower()
    shape = export.input_shape_of(model, input_shape)
    proto = export.to_proto(model, name=name, shape=shape, sparse=False, opset=17, batch="B", layout="NHWC")
    return proto, partial(export.outputs_of, model)
