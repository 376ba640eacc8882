"""What is compared: methods, densities, schemes and seeds, and the cases that follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from nttzoo import search
from nttzoo._util.checks import check_seed
from nttzoo.errors import OptionError, UnknownName
from nttzoo.experiments.controls import CONTROLS
from nttzoo.search import recipes
from nttzoo.sparsity.density import Density, check_densities, density_name
from nttzoo.sparsity.pruning import METHODS
from nttzoo.sparsity.schemes import SCHEMES
from nttzoo.training import TrainConfig

UNIFORM = [name for name, method in METHODS.items() if method.uniform]
ALIKE = ("layerwise", "global")  # schemes under which the methods above do the same

Case = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared. `change` overrides values of the recipes, such as epochs or outputs.

    Each of the `densities` is a number, or one for each glob over layer paths.

    `train_epochs`, `dropout`: of the supervised phase, alike for all methods.
    """

    model: str
    data: str
    methods: tuple[str, ...]
    densities: tuple[Density, ...]
    schemes: tuple[str, ...]
    seeds: tuple[int, ...]
    train_epochs: int
    change: dict[str, Any]
    dropout: bool = True
    exclude: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "densities", tuple(map(check_densities, self.densities)))
        for name in ("methods", "densities", "schemes", "seeds", "exclude", "controls"):
            values = [density_name(x) if name == "densities" else str(x) for x in getattr(self, name)]
            if len(set(values)) < len(values):
                raise OptionError(f"{name} has duplicates: {', '.join(values)}.")
        for scheme in self.schemes:
            SCHEMES[scheme]
        for control in self.controls:
            CONTROLS[control]
        for seed in self.seeds:
            check_seed(seed)
        if self.train_epochs < 1:
            raise OptionError(f"train_epochs is {self.train_epochs}; networks are compared after 1 epoch or more.")
        for method in self.methods:
            if method not in every_method():
                raise UnknownName("method", method, every_method())

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        content = asdict(self)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in content.items()}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Comparison:
        """What `to_dict` gave."""
        values: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}
        return cls(**values)

    def config(self, method: str, seed: int) -> search.SearchConfig:
        """The search that finds all students of one method and seed at once."""
        # What is asked of the fall of the density holds for the methods whose density falls.
        falls = "start_density" in recipes.VARIANTS[method]
        change = {k: v for k, v in self.change.items() if falls or k not in recipes.FALL_FIELDS}
        recipe = recipes.find(method, self.model, self.data).change(**change)
        names: dict[str, Any] = {"model": self.model, "data": self.data}
        return search.SearchConfig(**names, **self.pruned(), seed=seed, recipe=recipe)

    @property
    def by_layer(self) -> bool:
        """Whether layers were given densities of their own, or none."""
        return bool(self.exclude) or any(isinstance(density, Mapping) for density in self.densities)

    def pruned(self) -> dict[str, Any]:
        """What the students of one search are."""
        return {"densities": self.densities, "schemes": self.schemes, "exclude": self.exclude}

    def training(self, seed: int) -> TrainConfig:
        """The supervised phase, alike for all methods."""
        return TrainConfig(epochs=self.train_epochs, dropout=self.dropout, seed=seed)

    def folder(self, config: search.SearchConfig) -> str:
        """A name for the folder of one of the searches: says which values of the recipe were changed."""
        return "-".join([config.name, *(f"{key}={value}" for key, value in sorted(self.change.items()))])

    def extends(self, other: Comparison) -> bool:
        """Whether this is the other one with methods, seeds or controls added, or nothing."""
        grown = ("methods", "seeds", "controls")
        more = all(set(getattr(self, name)) >= set(getattr(other, name)) for name in grown)
        return more and replace(other, **{name: getattr(self, name) for name in grown}) == self

    def cases(self) -> Iterator[Case]:
        """Every case: a method, a seed, and where they matter density and scheme."""
        for seed in self.seeds:
            for method in self.methods:
                if method == "dense":
                    yield {"method": method, "seed": seed}
                    continue
                for scheme, density in product(schemes_of(method, self.schemes), self.densities):
                    case = {"method": method, "seed": seed, "scheme": scheme, "density": density}
                    yield case
                    yield from ({**case, "control": control} for control in self.controls)


def every_method() -> tuple[str, ...]:
    """All that can be compared."""
    return (*recipes.NAMES, *METHODS, "dense")


def schemes_of(method: str, schemes: Sequence[str]) -> list[str]:
    """The schemes under which a method does different things: random masks do the same under layerwise and global."""
    if method in METHODS and (own := METHODS[method].scheme):
        return [own]
    alike = [scheme for scheme in schemes if scheme in ALIKE] if method in UNIFORM else []
    return [scheme for scheme in schemes if scheme not in alike[1:]]
