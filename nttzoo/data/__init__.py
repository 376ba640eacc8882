"""Data sets: embedded, from local .npz files, or through tensorflow-datasets."""

from nttzoo.data.dataset import (
    SOURCES,
    Dataset,
    InputSpec,
    Labelled,
    Source,
    Unlabelled,
    data_folder,
    epoch_order,
    from_arrays,
    load,
    standardise,
)

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
