"""Data sets through tensorflow-datasets, if it is installed."""

from __future__ import annotations

import importlib.util
import os
import socket

import numpy as np


def read(name: str, *, download: bool) -> dict[str, np.ndarray] | None:
    """The arrays of a data set that tensorflow-datasets has prepared, or prepares now; None if it cannot."""
    if importlib.util.find_spec("tensorflow_datasets") is None:
        return None
    import tensorflow_datasets as tfds

    builder = tfds.builder(name, data_dir=os.environ.get("TFDS_DATA_DIR"))
    if not builder.data_path.exists():
        if not download:
            return None
        if not _online():
            raise ConnectionError("this machine has no network")
        builder.download_and_prepare()
    arrays = {}
    for part in ("train", "test"):
        whole = tfds.as_numpy(builder.as_dataset(split=part, batch_size=-1))
        arrays[f"x_{part}"], arrays[f"y_{part}"] = np.asarray(whole["image"]), np.asarray(whole["label"])
    return arrays


def _online() -> bool:
    """Whether the host that serves tensorflow-datasets answers; tfds itself would try for minutes."""
    try:
        socket.create_connection(("storage.googleapis.com", 443), timeout=5).close()
    except OSError:
        return False
    return True
