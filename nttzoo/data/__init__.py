"""Data sets: embedded, from local .npz files, or through tensorflow-datasets."""

from nttzoo._util.deprecation import renamed
from nttzoo.data import own
from nttzoo.data.dataset import Dataset, Labeled, Unlabeled, epoch_order, from_arrays
from nttzoo.data.input_spec import InputSpec, standardize
from nttzoo.data.sources import SOURCES, Source, data_folder, load

__all__ = [
    "SOURCES",
    "Dataset",
    "InputSpec",
    "Labeled",
    "Source",
    "Unlabeled",
    "data_folder",
    "epoch_order",
    "from_arrays",
    "load",
    "own",
    "standardize",
]

__getattr__ = renamed(__name__, {"standardise": "standardize", "Labelled": "Labeled", "Unlabelled": "Unlabeled"})
