"""Networks as ONNX files, for runtimes that know nothing of JAX.

Masks are applied, dropout is removed, and the input specification is stored in the file's metadata. ONNX Runtime checks
that a file computes what the model computes before the file is put in place.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from nttzoo import __version__, data, nn, zoo
from nttzoo._util.checks import check_choice, check_flag, check_model, check_shape, check_text
from nttzoo._util.provenance import check_writable
from nttzoo.errors import ExportError, OptionError
from nttzoo.export.unrolled import Unrolled
from nttzoo.nn import taps
from nttzoo.sparsity import masks

Layout = Literal["NHWC", "NCHW"]
OPSETS = range(17, 24)
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Exported:
    """An ONNX file, and how far its outputs in ONNX Runtime are from the model's: max |difference| / max |output|."""

    path: Path
    size: int  # bytes
    difference: float

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.size / 1000:.0f} kB; outputs in ONNX Runtime differ from JAX's by at most "
            f"{self.difference:.1e} of the largest"
        )


class _Identity(nnx.Module):
    """What dropout is in evaluation mode."""

    def __call__(self, inputs: Array, **_: Any) -> Array:
        return inputs


def export_onnx(
    model: nnx.Module | str | Path,
    path: str | os.PathLike[str],
    *,
    weights: zoo.Weights = "trained",
    name: str | None = None,
    sparse: bool = True,
    opset: int = 17,
    batch: str | int = "B",
    layout: Layout = "NHWC",
    input_shape: tuple[int, ...] | None = None,
    images: Float[np.ndarray, "n h w c"] | None = None,
) -> Exported:
    """Writes a network to an ONNX file and checks it in ONNX Runtime.

    `model`: an NNX model, the name of a published network, or the Path of a search of one's own (then `weights` says
    which). `name`: what the file calls itself, if not like the network or the file. `sparse`: weights as sparse
    initializers, a small file; dense ones are for runtimes that want them. `batch`: a name for a batch of any size, or
    a number. `layout`: of the images that the file takes. `input_shape`: of one input, if the model does not know.
    `images`: standardized images to check on, besides random ones.
    """
    target = check_writable(path)
    _check_options(opset, batch, layout)
    check_choice("weights", weights, ("init", "trained"))
    check_flag("sparse", sparse)
    if name is not None:
        check_text("name", name)
    if isinstance(model, (str, Path)):
        name = name or (model if isinstance(model, str) else None)
        model = zoo.load(model, weights=weights)
    shape = input_shape_of(model, input_shape)
    _check_images(images, shape)
    if layout == "NCHW" and len(shape) != 3:
        raise OptionError(f"layout 'NCHW' is for images of shape (h, w, c); this model takes {shape}.")
    name = name or target.stem
    proto = to_proto(model, name=name, shape=shape, sparse=sparse, opset=opset, batch=batch, layout=layout)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_bytes(proto.SerializeToString(deterministic=True))
        worst = parity(model, part, parity_batches(shape, batch, images), layout)
        os.replace(part, target)
    except OSError as error:
        raise ExportError(f"cannot write {target}: {error}.") from error
    finally:
        part.unlink(missing_ok=True)
    return Exported(target, target.stat().st_size, worst)


def input_shape_of(model: Any, given: tuple[int, ...] | None) -> tuple[int, ...]:
    """The shape of one input: the given one, or what the model says of itself."""
    check_model("model", model)
    if given is not None:
        check_shape("input_shape", given)
    given = given or getattr(model, "input_shape", None)
    if not isinstance(given, tuple | list) or not given:
        raise OptionError("the model does not say what it takes: give input_shape=(...), without the batch axis.")
    try:
        jax.eval_shape(lambda x: nnx.clone(model)(x), jax.ShapeDtypeStruct((1, *given), jnp.float32))
    except (TypeError, ValueError) as error:
        raise OptionError(f"the model does not take float32 inputs of shape [n, {given}]: {error}") from error
    return tuple(given)


def _check_images(images: Any, shape: tuple[int, ...]) -> None:
    if images is not None and (np.shape(images)[1:] != shape or not len(images)):
        raise OptionError(f"images has shape {np.shape(images)}; at least one of shape {shape} is needed.")


def _check_options(opset: int, batch: str | int, layout: str) -> None:
    if isinstance(opset, bool) or opset not in OPSETS:
        raise OptionError(f"opset {opset} is not supported; choose {OPSETS[0]} to {OPSETS[-1]}.")
    if layout not in ("NHWC", "NCHW"):
        raise OptionError(f"layout {layout!r} is not one of 'NHWC', 'NCHW'.")
    if isinstance(batch, bool) or not isinstance(batch, int | str) or (isinstance(batch, int) and batch < 1):
        raise OptionError(f"batch is {batch}; it is the number of images, 1 or more, or a name for any number.")
    if isinstance(batch, str) and not batch.isidentifier():
        raise OptionError(f"batch {batch!r} is not a name: use letters, such as 'B', or a number.")


def to_proto(
    model: Any, *, name: str, shape: tuple[int, ...], sparse: bool, opset: int, batch: str | int, layout: Layout
) -> Any:
    """The model as an `onnx.ModelProto`, checked by ONNX itself."""
    with onnx_packages():
        import onnx

        from nttzoo.export import graph
    proto = graph_of(plain_copy(model), (batch, *shape), opset=opset, layout=layout, name=name)
    proto.producer_name, proto.producer_version = "nttzoo", __version__
    if sparse:
        graph.use_sparse_initializers(proto.graph)
    graph.add_metadata(proto, _about(model, name, layout))
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        raise ExportError(f"the graph is not valid at opset {opset}: {error}. Try a later opset.") from error
    return proto


def graph_of(plain: Any, shape: tuple[str | int, ...], *, opset: int, layout: Layout, name: str) -> Any:
    """The `onnx.ModelProto` of a model of plain NNX layers, with static shapes and names after its layers."""
    with onnx_packages():
        import onnx

        from nttzoo.export import graph
    proto = _convert(plain, shape, opset=opset, layout=layout, name=name)
    proto.ir_version = onnx.helper.find_min_ir_version_for(list(proto.opset_import))
    graph.tidy(proto, _weights(plain))
    return proto


def plain_copy(model: Any) -> Any:
    """A copy of ordinary NNX layers in evaluation mode: zeros for pruned weights, nothing for dropout, no loops."""
    plain = nn.densify(model)
    plain.eval()
    for _, layer in nnx.iter_modules(plain):
        if isinstance(layer, nnx.Dropout):
            layer.__class__ = _Identity  # type: ignore[assignment]
        elif type(layer) is nnx.RNN:
            layer.__class__ = Unrolled  # type: ignore[assignment]
    for path, weight in _weights(plain).items():
        if weight.dtype != np.float32:
            raise ExportError(f"weight {path} is {weight.dtype}; only float32 models are exported.")
        if not np.isfinite(weight).all():
            raise ExportError(f"weight {path} has values that are not finite.")
    return plain


def _weights(model: nnx.Module) -> dict[str, np.ndarray]:
    state = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return {nn.path_name(path): np.asarray(value[...]) for path, value in state}


def _convert(model: Any, shape: tuple[str | int, ...], *, opset: int, layout: Layout, name: str) -> Any:
    with onnx_packages():
        import jax2onnx

    options: dict[str, Any] = {"inputs_as_nchw": [0]} if layout == "NCHW" else {}
    options |= {"model_name": name, "opset": opset, "input_names": ["images"], "output_names": ["logits"]}
    with _lenient():
        try:
            return jax2onnx.to_onnx(model, [shape], **options)
        except Exception as error:
            culprit = _unsupported_layer(model, shape, opset)
            cure = ""
            if isinstance(error, TypeError) and "positional argument" in str(error):
                cure = ". Give options by name: nnx.max_pool(x, window_shape=(2, 2), strides=(2, 2))"
            raise ExportError(f"{culprit} cannot be exported to ONNX: {type(error).__name__}: {error}{cure}") from error


@contextmanager
def _lenient() -> Iterator[None]:
    """jax2onnx uses deprecated access to variables, broadcasts freely, and logs which values have no types."""
    logger = logging.getLogger("onnx_ir.serde")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), jax.numpy_rank_promotion("allow"):
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)


def _unsupported_layer(model: Any, shape: tuple[str | int, ...], opset: int) -> str:
    """The first layer that cannot be exported by itself, or else the model."""
    import jax2onnx

    one = jax.ShapeDtypeStruct((1, *(size for size in shape[1:] if isinstance(size, int))), jnp.float32)
    for call in taps.call_shapes(model, lambda layer: layer is not model and not _has_layers(layer), one):
        try:
            jax2onnx.to_onnx(call.layer, [call.inputs.shape], opset=opset)
        except Exception:
            return f"layer {nn.path_name(call.path)} ({taps.kind_of(call.layer).__name__})"
    return f"{type(model).__name__}, outside of its layers,"


def _has_layers(layer: nnx.Module) -> bool:
    return sum(1 for _ in nnx.iter_modules(layer)) > 1


def _about(model: Any, name: str, layout: Layout) -> dict[str, str]:
    """What the file says of itself."""
    about = {"name": name, "layout": layout}
    if any(nn.is_masked(layer) for _, layer in nnx.iter_modules(model)):
        about["density"] = f"{masks.density_report(model).total.density:.6g}"
    if spec := getattr(model, "input_spec", None):
        about |= {"mean": json.dumps(spec.mean), "std": json.dumps(spec.std), "classes": json.dumps(spec.classes)}
        about["inputs"] = "(images / 255 - mean) / std, per channel"
    return about


def parity_batches(shape: tuple[int, ...], batch: str | int, images: Any) -> list[np.ndarray]:
    """Batches to compare on: random ones, the given ones, and where they fit the embedded digits."""
    size = batch if isinstance(batch, int) else 8
    inputs = [np.random.default_rng(0).normal(size=(size, *shape)).astype(np.float32)]
    if images is None and shape == (28, 28, 1):
        digits = data.load("mnist5k")
        images = digits.standardize(digits.test.images[:64])
    if images is not None:
        images = np.asarray(images, np.float32)
        inputs.append(np.resize(images, (batch, *shape)) if isinstance(batch, int) else images)
    return inputs


def parity(model: Any, path: Path, inputs: list[np.ndarray], layout: Layout) -> float:
    """The largest difference between ONNX Runtime's outputs and the model's, relative to the largest output."""
    with onnx_packages():
        import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    worst = 0.0
    for images in inputs:
        expected = outputs_of(model, images)
        fed = images.transpose(0, 3, 1, 2) if layout == "NCHW" else images
        (got,) = session.run(None, {session.get_inputs()[0].name: np.ascontiguousarray(fed)})
        if got.shape != expected.shape:
            raise ExportError(f"ONNX Runtime gives outputs of shape {got.shape}, the model {expected.shape}.")
        worst = float(np.maximum(worst, difference(got, expected)))  # keeps a NaN, which `max` would lose
    if not worst <= TOLERANCE:
        raise ExportError(
            f"ONNX Runtime's outputs differ from the model's by {worst:.2e} of the largest output, more than "
            f"{TOLERANCE:.0e}: nothing was written."
        )
    return worst


def outputs_of(model: Any, inputs: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, "n outputs"]:
    """What a model answers in evaluation mode."""
    model = nnx.clone(model)
    model.eval()
    return np.asarray(nnx.jit(lambda m, x: m(x))(model, jnp.asarray(inputs)))


def difference(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest expected output."""
    return float(np.abs(got - expected).max() / max(np.abs(expected).max(), 1e-30))


@contextmanager
def onnx_packages() -> Iterator[None]:
    """Imports that need an extra: a missing package is answered with how to install it."""
    try:
        yield
    except ImportError as error:
        raise ExportError(f'this needs {error.name}: pip install "nttzoo[onnx]".') from error
