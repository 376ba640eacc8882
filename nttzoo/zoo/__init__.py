"""The published networks: find them by name, check them, load them."""

from nttzoo.zoo.index import (
    FORMAT,
    Entry,
    LoadCheck,
    Weights,
    check,
    files_of,
    homes,
    info,
    list_models,
    load,
    load_check,
    onnx_file,
    read_index,
    verify,
)

__all__ = [
    "FORMAT",
    "Entry",
    "LoadCheck",
    "Weights",
    "check",
    "files_of",
    "homes",
    "info",
    "list_models",
    "load",
    "load_check",
    "onnx_file",
    "read_index",
    "verify",
]
