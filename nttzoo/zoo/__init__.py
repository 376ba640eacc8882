"""The published networks: find them by name, check them, load them."""

from nttzoo.zoo.checking import check, files_of
from nttzoo.zoo.entries import Entry, info
from nttzoo.zoo.index import FORMAT, homes, is_folder, list_models, read_index
from nttzoo.zoo.loading import Weights, load, load_from, onnx_file
from nttzoo.zoo.verification import LoadCheck, load_check, verify

__all__ = [
    "FORMAT",
    "Entry",
    "LoadCheck",
    "Weights",
    "check",
    "files_of",
    "homes",
    "info",
    "is_folder",
    "list_models",
    "load",
    "load_check",
    "load_from",
    "onnx_file",
    "read_index",
    "verify",
]
