"""A case: one network, trained once. Experiments are lists of cases; a case's name gives the path of its result."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from nttzoo import search
from nttzoo.errors import UnknownName
from nttzoo.experiments.controls import CONTROLS
from nttzoo.search import SearchConfig, recipes
from nttzoo.sparsity.density import check_density
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
        kept = [] if self.method == "dense" else [search.Target(self.density, self.scheme).name]
        changed = [f"{key}={value}" for key, value in sorted(self.change.items())] if self.searched else []
        control = [self.control] if self.control else []
        return "-".join([self.model, self.data, *kept, self.method, *changed, *control])

    @property
    def student(self) -> str:
        """The network before a control changes it, with its seed: the folder of its search."""
        return f"{self.network.removesuffix(f'-{self.control}')}-seed{self.seed}"

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
