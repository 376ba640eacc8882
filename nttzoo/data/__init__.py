"""Data sets: embedded, from local .npz files, or through tensorflow-datasets."""

from nttzoo.data.dataset import Dataset, Labelled, Unlabelled, epoch_order, from_arrays
from nttzoo.data.input_spec import InputSpec, standardise
from nttzoo.data.sources import SOURCES, Source, data_folder, load

__all__ = [
    "SOURCES",
    "Dataset",
    "InputSpec",
    "Labelled",
    "Source",
    "Unlabelled",
    "data_folder",
    "epoch_order",
    "from_arrays",
    "load",
    "standardise",
]
