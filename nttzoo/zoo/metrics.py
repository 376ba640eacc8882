"""What an entry's metrics.json must hold, beyond fields and types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nttzoo import architectures, checkpoint
from nttzoo._util import files, schema
from nttzoo.errors import FileError

WHAT = "the metrics of an entry"


def parse(path: Path, content: bytes, name: str) -> dict[str, Any]:
    """The metrics of the entry `name` from the bytes of a file, if they agree with themselves and their network."""
    metrics = schema.validate(path, files.parse_json(path, content), schema.Metrics, what=WHAT)
    if metrics["name"] != name:
        raise FileError(path, f"is that of {metrics['name']!r}, not of {name!r}")
    layers, costs = ([layer["name"] for layer in part] for part in (metrics["layers"], metrics["speedup"]["layers"]))
    if layers != costs or metrics["speedup"]["total"]["name"] != "total":
        raise FileError(path, "lists multiply-adds of layers that it does not have")
    if metrics["architecture"] in architectures.ARCHITECTURES:
        checkpoint.abstract_network(path, metrics)
    return metrics


def read(path: Path) -> dict[str, Any]:
    """The metrics of the entry in whose folder the file is."""
    return parse(path, files.read_bytes(path), path.parent.name)
