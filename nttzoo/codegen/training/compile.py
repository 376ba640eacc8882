"""`compile_training`: from a model to a compiled training step, compared with JAX before its first use."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from nttzoo import export, nn
from nttzoo._util import libraries
from nttzoo._util.checks import check_choice, check_count, check_flag, check_number, check_seed
from nttzoo.codegen.training import library, resolve, source, tables, trace
from nttzoo.codegen.training.library import UpdateRule
from nttzoo.codegen.training.step import TrainingStep
from nttzoo.errors import ExportError

FLAGS = ("-std=gnu99", "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
# Of a new library's gradient: the largest difference from JAX's, relative to the largest entry.
TOLERANCE = 1e-4
CHECKS = 3  # draws of images, of which one must agree


def compile_training(
    model: nnx.Module,
    *,
    optimizer: str | UpdateRule = "adam",
    learning_rate: float = 1e-3,
    loss: str = "cross_entropy",
    dropout: bool = True,
    seed: int = 0,
    threads: int | None = None,
    input_shape: tuple[int, ...] | None = None,
) -> TrainingStep:
    """Compiles a training step for a model, whose cost is that of the surviving weights.

    Args:
      model: an NNX model of Linear and Conv layers, pooling, GroupNorm, dropout and elementwise functions. It is not
        changed; its masks stay fixed.
      optimizer: "adam", "sgd", or an `UpdateRule`.
      learning_rate: learning rate of every step, unless a call passes its own.
      loss: "cross_entropy" or "squared".
      dropout: whether dropout layers are active.
      seed: seed of dropout.
      threads: number of threads that share a batch; results are bit-identical for any number (default: one or all
        cores, whichever is currently faster).
      input_shape: shape of one input, for models that do not record it.

    Returns:
      A step: `step(images, labels)` trains on a batch and returns its loss.

    Raises:
      ExportError: if there is no C compiler, or the model has an operation without a backward rule.

    Example:
      >>> step = nttzoo.compile_training(nttzoo.load("lenet300-mnist-1pct-global"))
      >>> losses = [step(images, labels) for images, labels in batches]
    """
    rule = library.update_rule(optimizer)
    check_choice("loss", loss, library.LOSSES)
    check_number("learning_rate", learning_rate, "positive", 0)
    check_flag("dropout", dropout)
    threads = None if threads is None else check_count("threads", threads)
    check_seed(seed)
    shape = export.input_shape_of(model, input_shape)
    traced = trace.trace(model, shape, dropout=dropout)
    resolved = resolve.resolve(traced.program)
    block = _block()
    text = source.host_source(resolved, block=block, channels=shape[-1])
    path = libraries.shared_library("training", {"training.c": text.code}, FLAGS)

    def make(model: nnx.Module) -> TrainingStep:
        table = tables.make(resolved, traced.parameters.survivors(model))
        compiled = library.Library(path, text, table)
        return TrainingStep(compiled, traced.parameters, model, rule, learning_rate, loss, seed, threads, shape)

    # Another model may have the same C but other derivatives (`stop_gradient`): each is checked once.
    checked = path.with_name(f"{path.stem}-{traced.digest}.checked")
    if not checked.exists():
        typical = _typical(model, traced.parameters)
        _check_gradient(make(typical), typical, shape)
        with suppress(OSError):  # training does not need the cache
            checked.touch()
    return make(model)


def _block() -> int:
    """Examples per block: the floats in the machine's widest vector."""
    macros = libraries.machine_macros()
    for macro, size in (("__AVX512F__", 16), ("__AVX__", 8), ("__SSE2__", 4), ("__ARM_NEON", 4)):
        if f"#define {macro} " in macros:
            return size
    return 1


def _typical(model: nnx.Module, parameters: trace.Parameters) -> nnx.Module:
    """A dense copy with random biases, and random weights in place of the pruned ones.

    If units are constant, or depend on few inputs, which may all be zero, rounding errors decide whether a rectifier is
    active and which of equal values is the largest of a window; and normalization magnifies them.
    """
    rng = np.random.default_rng(1)
    copy = nnx.clone(model)
    masked: list[Any] = [layer for _, layer in nnx.iter_modules(copy) if nn.is_masked(layer)]
    for layer in masked:
        kernel, kept = np.asarray(layer.kernel[...]), np.asarray(layer.mask[...])
        noise = rng.normal(scale=math.prod(kernel.shape[:-1]) ** -0.5, size=kernel.shape)
        layer.kernel[...] = jnp.asarray(np.where(kept, kernel, noise), kernel.dtype)
        layer.mask[...] = jnp.ones_like(layer.mask[...])
    values = parameters.flatten(copy)
    for array in parameters.unflatten(values).values():  # views of it
        if array.ndim == 1:
            array += rng.normal(scale=0.1, size=array.shape).astype(np.float32)
    parameters.assign(copy, values)
    return copy


def _check_gradient(step: TrainingStep, model: nnx.Module, shape: tuple[int, ...]) -> None:
    """Compares loss and gradient with JAX's on a few random images.

    A mistake shows with any images. Rounding may switch a rectifier with some, so others are tried then.
    """
    frozen = nnx.clone(model)
    frozen.eval()
    graph_def, params, rest = nn.split_params(frozen)

    @jax.jit
    def both(params: Any, images: Any, labels: Any) -> Any:
        def mean_loss(params: Any) -> Any:
            logits = nn.merge_params(graph_def, params, rest)(images)
            if step._loss == "squared":
                return 0.5 * jnp.square(logits - jax.nn.one_hot(labels, logits.shape[-1])).sum(-1).mean()
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        return jax.value_and_grad(mean_loss)(params)

    differences = []
    for seed in range(CHECKS):
        rng = np.random.default_rng(seed)
        images = rng.normal(size=(3, *shape)).astype(np.float32)
        labels = rng.integers(0, step._library.source.outputs, 3).astype(np.int32)
        expected_loss, expected = both(params, jnp.asarray(images), jnp.asarray(labels))
        loss, gradient = step.gradient(images, labels)
        wanted = {path: np.asarray(value[...]) for path, value in nnx.to_flat_state(expected)}
        largest = max(float(np.abs(value).max(initial=1e-30)) for value in wanted.values())
        worst = max(float(np.abs(gradient[path] - value).max(initial=0)) for path, value in wanted.items()) / largest
        if max(worst, abs(loss - float(expected_loss)) / (1 + abs(loss))) <= TOLERANCE:
            return
        differences.append(worst)
    raise ExportError(f"the compiled gradient differs from JAX's by {min(differences):.1e} of the largest entry.")
