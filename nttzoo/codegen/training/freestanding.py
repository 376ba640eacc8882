"""A training step as one freestanding C99 file, for devices and browsers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flax import nnx

from nttzoo import export
from nttzoo._util import files, libraries
from nttzoo._util.checks import check_choice, check_flag, check_path, check_seed, check_text
from nttzoo._util.provenance import check_writable
from nttzoo.codegen.source import Source, float_literal, identifier
from nttzoo.codegen.training import kernels, library, resolve, source, tables, trace
from nttzoo.codegen.training.compile import compile_training
from nttzoo.codegen.training.library import UpdateRule
from nttzoo.errors import ExportError, OptionError


@dataclass(frozen=True)
class ExportedTraining:
    """A C file, its header, and the memory that training needs, in bytes."""

    code: Path
    header: Path
    name: str  # prefix of all symbols
    table_bytes: int
    state_bytes: int
    arena_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.code} and {self.header.name}: call {self.name}_train. {self.table_bytes / 1000:.1f} kB of tables, "
            f"{self.state_bytes / 1000:.1f} kB of weights and optimizer state, {self.arena_bytes / 1000:.1f} kB of "
            "working memory."
        )


def export_training_c(
    model: nnx.Module,
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    optimizer: str | UpdateRule = "adam",
    loss: str = "cross_entropy",
    dropout: bool = True,
    seed: int = 0,
    input_shape: tuple[int, ...] | None = None,
) -> ExportedTraining:
    """Writes the training step of a model as `path` (ending in .c) and the header beside it.

    The C needs nothing but a C99 compiler and at most sqrtf: no heap, one thread; the caller provides the memory. It
    starts from the model's current weights.

    Args:
      model: an NNX model, as `compile_training` takes it.
      path: path of the C file.
      name: prefix of all symbols (default: the file's name).
      optimizer: "adam", "sgd" or an `UpdateRule`.
      loss: "cross_entropy" or "squared".
      dropout: whether dropout layers are active in training.
      seed: seed of dropout.
      input_shape: shape of one input, for models that do not record it.

    Returns:
      The files and their memory requirements.

    Raises:
      OptionError: if the path does not end in .c.
      ExportError: if an operation has no backward rule.

    Example:
      >>> nttzoo.export_training_c(nttzoo.load("lenet300-mnist-1pct-global"), "digits.c")
    """
    check_path("path", path)
    if name is not None:
        check_text("name", name)
    target = Path(path)
    if target.suffix != ".c":
        raise OptionError(f"path {target} should end in .c; the header is written next to it.")
    check_writable(target)
    if _has_compiler():
        compile_training(model, loss=loss, input_shape=input_shape)  # compares gradients with JAX's
    made, state = training_source(
        model, name or target.stem, optimizer=optimizer, loss=loss, dropout=dropout, seed=seed, input_shape=input_shape
    )
    header = target.with_name(f"{made.name}.h")
    files.write_text(header, made.header)
    files.write_text(target, made.code)
    return ExportedTraining(target, header, made.name, made.table_bytes, state, 4 * made.arena)


def training_source(
    model: nnx.Module,
    name: str,
    *,
    optimizer: str | UpdateRule = "adam",
    loss: str = "cross_entropy",
    dropout: bool = True,
    seed: int = 0,
    input_shape: tuple[int, ...] | None = None,
) -> tuple[Source, int]:
    """(the C of a training step and its header, bytes of its state)."""
    rule = library.update_rule(optimizer)
    check_choice("loss", loss, library.LOSSES)
    check_flag("dropout", dropout)
    check_seed(seed)
    name = identifier(name)
    shape = export.input_shape_of(model, input_shape)
    traced = trace.trace(model, shape, dropout=dropout)
    resolved = resolve.resolve(traced.program)
    table = tables.make(resolved, traced.parameters.survivors(model))
    theta = traced.parameters.flatten(model)[table.parameters]
    text, places = source.write(resolved, block=1, channels=shape[-1])
    arrays: dict[str, tuple[str, np.ndarray]] = {f"list_{i}": ("int32_t", a) for i, a in enumerate(table.lists)}
    arrays |= {
        "starts": ("int64_t", table.starts),
        "back_starts": ("int64_t", table.back_starts),
        "norm_starts": ("int64_t", table.norm_starts),
        "back_from": ("int32_t", table.back_from),
        "initial": ("float", theta),
    }
    defined = [_array(key, kind, values) for key, (kind, values) in arrays.items()]
    pointers = ", ".join(f"list_{i}" for i in range(len(table.lists)))
    c_rule = rule.to_c()
    numbers = [float_literal(getattr(c_rule, field[0])) for field in c_rule._fields_[2:]]
    body = kernels.text(
        "freestanding.c",
        name=name,
        rule=", ".join([str(c_rule.kind), str(c_rule.nesterov), *numbers]),
        seed=seed,
        loss=library.LOSSES.index(loss),
    )
    size, back = max(len(theta), 1), max(len(table.back_from), 1)
    code = "\n".join(
        [
            f'#include "{name}.h"',
            "#define RESTRICT restrict",
            f"#define SIZE {len(theta)}",
            f"#define BACK {len(table.back_from)}",
            text,
            kernels.text("mix.h"),
            *defined,
            f"static const int32_t *const lists[] = {{{pointers}}};",
            body,
        ]
    )
    arena = places.size + max(table.partial, 1)
    inputs, outputs = resolved.source.size, len(resolved.output_order)
    header = kernels.text(
        "freestanding.h",
        name=name,
        upper=name.upper(),
        inputs=inputs,
        outputs=outputs,
        last=outputs - 1,
        arena=arena,
        size=size,
        back=back,
        rate="1e-3f",
        optimizer=rule.kind,
    )
    table_bytes = sum(values.size * {"int64_t": 8}.get(kind, 4) for kind, values in arrays.values())
    work = sum(len(table.lists[i + 1]) for i in range(0, len(table.lists), 4))
    made = Source(name, header, code, arena, arena, inputs, outputs, table_bytes, work)
    return made, 4 * (4 * size + back) + 24


def _has_compiler() -> bool:
    try:
        return bool(libraries.find_compiler())
    except ExportError:
        return False


def _array(name: str, kind: str, values: np.ndarray) -> str:
    written = [float_literal(value) if kind == "float" else str(int(value)) for value in values] or ["0"]
    return f"static const {kind} {name}[{len(written)}] = {{{', '.join(written)}}};"
