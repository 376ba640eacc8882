"""What is known of a published network: `Entry` and `info`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nttzoo._util import console
from nttzoo._util.checks import check_path
from nttzoo._util.deprecation import renamed_attribute
from nttzoo.zoo import methods
from nttzoo.zoo.checking import check, files_of
from nttzoo.zoo.index import Place, retried


@dataclass(frozen=True)
class Entry:
    """A published network. `metrics` is all that is known of it, as in its metrics.json."""

    name: str
    architecture: str
    dataset: str
    density: float
    scheme: str
    recipe: dict[str, Any]
    seed: int
    layers: tuple[dict[str, Any], ...]  # name, size and kept weights of each
    speedup: dict[str, Any]
    license: str  # of the training data
    command: str
    size: int  # bytes of all its files
    metrics: dict[str, Any]

    licence = renamed_attribute("licence", "license")

    def __repr__(self) -> str:
        rows = {
            "architecture": self.architecture,
            "data": self.dataset,
            "density": f"{self.density:.2%}, {self.scheme}",
            "method": f"{methods.method(self.recipe)}, seed {self.seed}",
            "test accuracy": f"{self.metrics['chosen']['test_accuracy']:.2%} after {self.train_epochs} epochs",
            "theoretical speedup": f"{self.speedup['theoretical']:.1f}x",
            "size": f"{self.size / 1000:.0f} kB",
            "license of the data": self.license,
        }
        layers = [(layer["name"], layer["size"], layer["kept"]) for layer in self.layers]
        shown = console.table("", ("layer", "weights", "kept"), layers)
        return f"{console.table(self.name, ('', ''), rows.items())}\n{shown}"

    @property
    def train_epochs(self) -> int:
        """Epochs of supervised training behind the "trained" weights."""
        return self.metrics["train"]["epochs"]

    def summary(self) -> dict[str, Any]:
        """What one would choose it by."""
        about = {key: getattr(self, key) for key in ("name", "architecture", "dataset", "density", "scheme")}
        about |= {"method": methods.method(self.recipe), "test_accuracy": self.metrics["chosen"]["test_accuracy"]}
        about |= {"search_epochs": self.recipe["epochs"], "train_epochs": self.train_epochs}
        return {**about, "theoretical_speedup": self.speedup["theoretical"], "bytes": self.size}


def info(name: str, home: str | os.PathLike[str] | None = None) -> Entry:
    """Looks up a published network.

    Args:
      name: the name of a published network (see `nttzoo.list_models`).
      home: the one folder of entries in which to look (default: the package's and NTTZOO_HOME).

    Returns:
      Its entry; `print` shows it as tables.

    Raises:
      UnknownName: if there is no such published network.
      FileError: if a file of the entry was changed or lost.

    Example:
      >>> print(nttzoo.info("lenet300-mnist-1pct-global"))
    """
    if home is not None:
        check_path("home", home)
    return retried(name, _info, None if home is None else Path(home))


def _info(place: Place) -> Entry:
    metrics = check(place)
    keys = ("name", "architecture", "dataset", "density", "scheme", "recipe", "seed", "speedup", "command")
    size = sum(path.stat().st_size for path in (*files_of(place.home, place.name).values(), place.manifest))
    return Entry(
        **{key: metrics[key] for key in keys},
        license=metrics["licence"],
        layers=tuple(metrics["layers"]),
        size=size,
        metrics=metrics,
    )
