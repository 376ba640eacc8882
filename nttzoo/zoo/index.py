"""The published networks: where they are, and finding them by name.

An entry is two folders, `models/<name>/` for people and `checkpoints/<name>/` for machines, and a manifest with the
size and SHA-256 of every file of both; the index, `models/index.json`, holds the manifests' hashes. Nothing of an
entry is opened before all of it has been checked. Entries come with the package; NTTZOO_HOME names a folder with more.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from nttzoo._util import files, schema
from nttzoo._util.checks import check_text
from nttzoo.architectures import ARCHITECTURES
from nttzoo.data import SOURCES
from nttzoo.errors import FileError, UnknownName, ZooError
from nttzoo.sparsity.density import check_density
from nttzoo.sparsity.schemes import SCHEMES
from nttzoo.zoo import changes

FORMAT = 1
T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """Where an entry lies, and what its files must be."""

    home: Path
    name: str
    listed: dict[str, Any]  # what the index says of it

    @property
    def folders(self) -> tuple[Path, Path]:
        """The entry's folders in models/ and checkpoints/."""
        return self.home / "models" / self.name, self.home / "checkpoints" / self.name

    @property
    def manifest(self) -> Path:
        """The entry's manifest."""
        return self.home / "checkpoints" / self.name / "manifest.json"

    @property
    def cure(self) -> str:
        """What to do about files that are not what they should be."""
        return "Install nttzoo again." if self.home == homes()[0] else "Copy or publish the entry again."


def homes() -> list[Path]:
    """The folders that hold entries: the package's own, and NTTZOO_HOME."""
    package = Path(__file__).parents[1]
    own = package / "_zoo" if (package / "_zoo").is_dir() else package.parent
    extra = Path(os.environ.get("NTTZOO_HOME", "")).expanduser()
    if extra == Path():
        return [own]
    if not (extra / "models" / "index.json").is_file():
        raise ZooError(
            f"NTTZOO_HOME is {extra}, which has no models/index.json: `nttzoo publish --home {extra}` makes entries "
            "there; or unset it."
        )
    return [own, extra]


def all_places(only: Path | None = None) -> dict[str, Place]:
    """The entries of all homes, or of one, by name; the user's entries take precedence over the package's."""
    found = {}
    for home in [only] if only else homes():
        changes.settle(home)
        if os.path.lexists(home / "models" / "index.json"):
            for name, entry in read_index(home).items():
                found[name] = Place(home, name, entry)
    return found


def read_index(home: Path) -> dict[str, dict[str, Any]]:
    """{name: what the index says of it} of one folder."""
    path = home / "models" / "index.json"
    content = files.read_json(path)
    if isinstance(content, dict) and content.get("format", FORMAT) != FORMAT:
        raise FileError(
            path, f"has format {content['format']}; this version of nttzoo reads {FORMAT}", "Update nttzoo."
        )
    return schema.validate(path, content, schema.Index, what="the index of a zoo")["entries"]


def list_models(
    *words: str, dataset: str | None = None, density: float | None = None, scheme: str | None = None
) -> list[str]:
    """Lists the names of published networks.

    Args:
      words: parts of names, such as "conv4", "svhn", "1pct" or "global", or globs over names, such as "conv4-*"; a
        network has to match all of them.
      dataset: only networks for this data set.
      density: only networks with this density, in (0, 1].
      scheme: only networks with this sparsity scheme.

    Returns:
      The names, sorted.

    Raises:
      UnknownName: if a word, data set or scheme is not known.
      DensityError: if the density is not in (0, 1].

    Example:
      >>> nttzoo.list_models("lenet300", "mnist", density=0.01)
    """
    places = all_places()
    if dataset is not None:
        check_text("dataset", dataset)
    if dataset is not None and dataset not in {place.listed["dataset"] for place in places.values()}:
        SOURCES[dataset]
    if scheme is not None:
        SCHEMES[scheme]
    if density is not None:
        check_density(density)
    known = {*ARCHITECTURES, *SOURCES, *SCHEMES, *(part for name in places for part in name.split("-"))}
    for word in words:
        if not isinstance(word, str) or not (set(word) & set("*?[") or word in known or word in places):
            raise UnknownName("part of a published network's name", word, sorted(known))
    wanted = {"dataset": dataset, "density": density, "scheme": scheme}
    return sorted(
        name
        for name, place in places.items()
        if all(word in name.split("-") or fnmatch.fnmatchcase(name, word) for word in words)
        and all(value is None or place.listed[key] == value for key, value in wanted.items())
    )


def is_folder(name: str | os.PathLike[str]) -> bool:
    """Whether this is a folder with a model or a search, and not the name of a published network."""
    if not isinstance(name, str):
        return True
    return name not in all_places() and any(
        (Path(name) / part).exists() for part in ("model.json", "students", "model.safetensors")
    )


def find_place(name: str, home: Path | None = None) -> Place:
    """The place of an entry; `home`: the one folder in which to look."""
    places = all_places(home)
    # Looked up, never joined to a path: a name such as "../x" is simply unknown.
    if not isinstance(name, str) or name not in places:
        raise UnknownName("published network", name, places, shown_by="`nttzoo list`")
    return places[name]


def retried(name: str, action: Callable[[Place], T], home: Path | None = None) -> T:
    """The result of an action on an entry; repeated if the entry was republished meanwhile."""
    while True:
        place = find_place(name, home)
        try:
            return action(place)
        except FileError:
            if find_place(name, home) == place:
                raise
