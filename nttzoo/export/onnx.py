"""Networks as ONNX files, for runtimes without JAX.

Masks are applied, dropout is removed, and the input specification is stored in the file's metadata. ONNX Runtime checks
that a file computes what the model computes before the file is put in place.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from nttzoo import __version__, nn, zoo
from nttzoo._util.checks import check_choice, check_count, check_flag, check_model, check_shape, check_text
from nttzoo._util.provenance import check_writable
from nttzoo.errors import ExportError, OptionError
from nttzoo.export.conversion import Layout, graph_of, plain_copy
from nttzoo.export.packages import onnx_packages
from nttzoo.export.parity import parity, parity_batches
from nttzoo.sparsity import masks

OPSETS = range(17, 24)


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
    """Writes a network to an ONNX file, after comparing the file's outputs in ONNX Runtime with the model's.

    Args:
      model: an NNX model, the name of a published network, or the folder (a Path) of a network of your own.
      path: of the file.
      weights: "trained" or "init", where `model` is a name or a folder.
      name: what the file calls itself (default: the network's name, or the file's).
      sparse: whether weights are stored as sparse initializers: a small file, but some runtimes need dense ones.
      opset: version of ONNX's operators, 17 to 23.
      batch: a name for a batch of any size, or a fixed number of images.
      layout: of the images that the file takes: "NHWC" or "NCHW".
      input_shape: of one input without the batch axis, if the model does not record it.
      images: standardized images to compare on, in addition to random ones.

    Returns:
      The file, its size, and how far its outputs are from the model's.

    Raises:
      ExportError: if a layer cannot be exported, if outputs differ, or if the packages of the extra `onnx` are missing.
      OptionError: if an option has a wrong value.

    Example:
      >>> print(nttzoo.export_onnx("lenet300-mnist-1pct-global", "digits.onnx"))
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
    if isinstance(opset, bool) or not isinstance(opset, int) or opset not in OPSETS:
        raise OptionError(f"opset {opset} is not supported; choose {OPSETS[0]} to {OPSETS[-1]}.")
    if not isinstance(layout, str) or layout not in ("NHWC", "NCHW"):
        raise OptionError(f"layout {layout!r} is not one of 'NHWC', 'NCHW'.")
    if isinstance(batch, bool) or not isinstance(batch, int | str) or (isinstance(batch, int) and batch < 1):
        raise OptionError(f"batch is {batch}; it is the number of images, 1 or more, or a name for any number.")
    if isinstance(batch, int):
        check_count("batch", batch)
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


def _about(model: Any, name: str, layout: Layout) -> dict[str, str]:
    """What the file says of itself."""
    about = {"name": name, "layout": layout}
    if any(nn.is_masked(layer) for _, layer in nnx.iter_modules(model)):
        about["density"] = f"{masks.density_report(model).total.density:.6g}"
    if spec := getattr(model, "input_spec", None):
        about |= {"mean": json.dumps(spec.mean), "std": json.dumps(spec.std), "classes": json.dumps(spec.classes)}
        about["inputs"] = "(images - mean) / std, per channel; bytes are divided by 255 first"
    return about
