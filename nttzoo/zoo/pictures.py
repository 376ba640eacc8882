"""What the gallery draws of an entry beyond its metrics: `models/<name>/gallery.json`, stored when it is published.

It may hold the tangent kernels of teacher and student on a few test images, and the learning curves of the student
beside those of a random mask of the same density, whose trained weights are then in `checkpoints/<name>/random`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nttzoo._util import files, schema
from nttzoo.zoo.checking import check
from nttzoo.zoo.index import Place, retried
from nttzoo.zoo.loading import load_weights

FILE = "gallery.json"
RANDOM = "random"  # the folder of a random mask's trained weights, beside "init" and "trained"


def read(name: str, home: Path | None = None) -> dict[str, Any]:
    """The content of an entry's gallery.json, or nothing if it has none."""

    def checked(place: Place) -> dict[str, Any]:
        check(place)
        path = place.folders[0] / FILE
        return schema.validate(path, files.read_json(path), schema.Pictures) if path.exists() else {}

    return retried(name, checked, home)


def load_random(name: str) -> Any:
    """The trained network with a random mask that was published beside an entry, or None."""

    def loaded(place: Place) -> Any:
        metrics = check(place)
        return load_weights(place, metrics, RANDOM) if (place.folders[1] / RANDOM).is_dir() else None

    return retried(name, loaded)
