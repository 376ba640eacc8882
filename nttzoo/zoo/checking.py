"""Checks of an entry's files against its manifest, before any of them is used."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from nttzoo import architectures
from nttzoo._util import files, schema
from nttzoo.errors import FileError
from nttzoo.zoo.index import Place

UNKNOWN_LIMIT = 2**32  # bytes of a file of an architecture that is not registered


def check(place: Place) -> dict[str, Any]:
    """The metrics of an entry. Raises, with the file's name, unless its files are exactly those of its manifest."""
    from nttzoo.checkpoint import networks
    from nttzoo.zoo import metrics as metrics_file

    listed = read_manifest(place)["files"]
    present = files_of(place.home, place.name)
    path = place.folders[0] / "metrics.json"
    expected = listed.get(path.relative_to(place.home).as_posix())
    if expected is None:
        raise FileError(place.manifest, "does not list metrics.json", place.cure)
    if not path.exists():
        raise FileError(path, f"of {place.name!r} is missing", place.cure)
    content = files.read_bytes(path)
    if hashlib.sha256(content).hexdigest() != expected["sha256"]:
        raise FileError(path, f"of {place.name!r} was changed or cut short", place.cure)
    metrics = metrics_file.parse(path, content, place.name)
    limit = UNKNOWN_LIMIT
    if metrics["architecture"] in architectures.ARCHITECTURES:
        limit = networks.file_limit(networks.abstract_network(path, metrics)[0])
    for file in present.values():
        files.check_size(file, limit)
    files.check_listed(place.home, listed, present, owner=place.name, cure=place.cure)
    return metrics


def read_manifest(place: Place) -> dict[str, Any]:
    """An entry's manifest, if it is the one that the index lists."""
    if not os.path.lexists(place.manifest):
        raise FileError(place.manifest, "is missing", place.cure)
    content = files.read_bytes(place.manifest)
    if hashlib.sha256(content).hexdigest() != place.listed["manifest_sha256"]:
        raise FileError(place.manifest, "is not the one in the index: it was changed", place.cure)
    manifest = schema.validate(place.manifest, files.parse_json(place.manifest, content), schema.Manifest)
    if manifest["name"] != place.name:
        raise FileError(place.manifest, f"is that of {manifest['name']!r}, not of {place.name!r}", place.cure)
    return manifest


def files_of(home: Path, name: str) -> dict[str, Path]:
    """{path below home: path} of all files of an entry but its manifest; links, pipes and devices raise an error."""
    found = {}
    for folder in (home / "models" / name, home / "checkpoints" / name):
        if folder.is_symlink():
            raise FileError(folder, "is a symbolic link; only regular files belong here")
        for path in sorted(files.walk(folder)) if folder.is_dir() else ():
            if path != home / "checkpoints" / name / "manifest.json":
                found[path.relative_to(home).as_posix()] = path
    return found
