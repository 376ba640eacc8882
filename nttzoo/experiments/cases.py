"""A case: one network, trained once. Experiments are lists of cases; a case's name gives the path of its result."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from nttzoo.errors import UnknownName
from nttzoo.experiments.controls import CONTROLS
from nttzoo.search import SearchConfig, recipes
from nttzoo.sparsity.density import Density, check_density, density_name
from nttzoo.sparsity.pruning import METHODS
from nttzoo.sparsity.schemes import SCHEMES
from nttzoo.training import TrainConfig

# What a training's name does not say: a case says the seed itself, and the rest does not change what is learned.
_UNNAMED = ("epochs", "dropout", "seed", "progress", "engine")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One network and its training.

    `method` is a recipe of the search ("ntt", "gradual", "ntt+"), a pruning method, or "dense". `change` overrides
    values of the recipe, such as {"epochs": 2}. `control` replaces a part of the network before it is trained (see
    `nttzoo.experiments.controls`). The seed is that of everything: weights, search, pruning and training.
    """

    model: str
    data: str
    method: str
    density: float = 1.0
    scheme: str = "layerwise"
    seed: int = 0
    control: str = ""
    change: dict[str, Any] = field(default_factory=dict)
    training: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        if self.method not in (*recipes.NAMES, *METHODS, "dense"):
            raise UnknownName("method", self.method, (*recipes.NAMES, *METHODS, "dense"))
        check_density(self.density)
        SCHEMES[self.scheme]
        if self.control:
            CONTROLS[self.control]
        object.__setattr__(self, "training", replace(self.training, seed=self.seed, progress=False))

    @property
    def searched(self) -> bool:
        """Whether a search finds the network."""
        return self.method in recipes.NAMES

    @property
    def network(self) -> str:
        """What is trained: "conv4-cifar10-1pct-layerwise-ntt-epochs=2"."""
        return self._network([self.density]) + (f"-{self.control}" if self.control else "")

    @property
    def student(self) -> str:
        """The network before a control changes it, with its seed."""
        return self.run_folder([self.density])

    def run_folder(self, densities: Sequence[Density]) -> str:
        """The folder of a search for this network at several densities: "conv4-cifar10-1+3pct-layerwise-ntt-seed0"."""
        return f"{self._network(densities)}-seed{self.seed}"

    def _network(self, densities: Sequence[Density]) -> str:
        kept = [] if self.method == "dense" else [f"{'+'.join(map(density_name, densities))}pct-{self.scheme}"]
        changed = [f"{key}={value}" for key, value in sorted(self.change.items())] if self.searched else []
        return "-".join([self.model, self.data, *kept, self.method, *changed])

    @property
    def training_name(self) -> str:
        """How: "60epochs-nodropout", and whatever else is not the default."""
        default = TrainConfig()
        others = [x.name for x in fields(TrainConfig) if x.name not in _UNNAMED]
        changed = [f"{n}={v}" for n in others if (v := getattr(self.training, n)) != getattr(default, n)]
        dropout = [] if self.training.dropout else ["nodropout"]
        return "-".join([f"{self.training.epochs}epochs", *dropout, *changed])

    @property
    def name(self) -> str:
        """Everything, as a path: network/training/seed."""
        return f"{self.network}/{self.training_name}/seed{self.seed}"

    def file(self, results: Path) -> Path:
        """Where the result is."""
        return results / f"{self.name}.json"

    def done(self, results: Path) -> bool:
        """Whether its result is there, or that of a longer training, which has it in its history."""
        own, how = self.training.epochs, self.training_name.lstrip("0123456789")
        files = results.glob(f"{glob.escape(self.network)}/*{glob.escape(how)}/seed{self.seed}.json")
        epochs = (file.parent.name.removesuffix(how) for file in files)
        return any(number.isdecimal() and int(number) >= own for number in epochs)

    def search(self) -> SearchConfig:
        """The search that finds the network."""
        recipe = recipes.find(self.method, self.model, self.data).change(**self.change)
        names: dict[str, Any] = {"model": self.model, "data": self.data, "seed": self.seed}
        return SearchConfig(**names, densities=(self.density,), schemes=(self.scheme,), recipe=recipe)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        content = {x.name: getattr(self, x.name) for x in fields(self)}
        how = {key: value for key, value in asdict(self.training).items() if isinstance(value, str | int | float)}
        return {**content, "training": {key: value for key, value in how.items() if key != "progress"}}
