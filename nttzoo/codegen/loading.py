"""Reads ONNX files; the kind and size of a file are checked before it, or a file with its tensors, is opened."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_tensor, uses_external_data

from nttzoo._util import files
from nttzoo.errors import ExportError, FileError
from nttzoo.export.graph import MAX_BYTES

FILE_LIMIT = 2**31  # bytes: the limit of protocol buffers


def load(path: Path) -> onnx.ModelProto:
    """The model in an ONNX file, with constants that are stored in files beside it.

    Raises:
      FileError: if one of the files is not a regular file or too large.
      ExportError: if they cannot be read as ONNX.
    """
    try:
        files.check_regular(path, limit=FILE_LIMIT)
        model = onnx.load(path, load_external_data=False)
        outside = [tensor for tensor in model.graph.initializer if uses_external_data(tensor)]
        total = sum(_size(path, tensor) for tensor in outside)
        if total > MAX_BYTES:
            raise ExportError(f"{path}: the constants beside it take more than {MAX_BYTES / 2**30:g} GiB.")
        for tensor in outside:
            load_external_data_for_tensor(tensor, str(path.parent))
    except (ExportError, FileError):
        raise
    except Exception as error:  # protobuf's own errors have no common base
        raise ExportError(f"{path} cannot be read as ONNX: {error}") from error
    return model


def _size(path: Path, tensor: onnx.TensorProto) -> int:
    """How many bytes of a file ONNX would read for a tensor."""
    where = ExternalDataInfo(tensor)
    file = path.parent / where.location
    files.check_regular(file, limit=FILE_LIMIT)
    return file.stat().st_size if where.length is None else int(where.length)
