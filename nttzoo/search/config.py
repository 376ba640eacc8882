"""What to search for: `SearchConfig`, and the plan that follows from it: how many steps, which density when."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

from nttzoo import architectures, data
from nttzoo._util.checks import check_instance, check_seed, check_sequence, check_texts
from nttzoo.errors import OptionError
from nttzoo.search import recipes
from nttzoo.search.recipes import Recipe
from nttzoo.settings import SearchSettings
from nttzoo.sparsity.density import Density, check_densities, dense_name, density_name
from nttzoo.sparsity.schemes import Scheme, find_scheme, scheme_name

EVALUATION_IMAGES = 64


class Target(NamedTuple):
    """Density and scheme of one student."""

    density: Density
    scheme: str | Scheme

    @property
    def name(self) -> str:
        """As entries of the zoo are called: "3pct-layerwise", "0.5pct-global"."""
        return f"{density_name(self.density)}pct-{scheme_name(self.scheme)}"


@dataclass(frozen=True, kw_only=True)
class SearchConfig(SearchSettings):
    """Configuration of a search: one teacher, and students at all `densities` in all `schemes`, with one recipe.

    Args:
      model: the architecture. `transfer` takes a teacher and images instead; it uses `model` and `data` only to look
        up the recipe.
      data: the data set.
      densities: of the students, in (0, 1]; each may also be a mapping from globs over layer paths, such as
        {"blocks.*": 0.02, "*": 0.1}.
      schemes: names such as "layerwise", "global", "erk" and "budget", or functions (see `nttzoo.sparsity.schemes`).
      exclude: globs over the paths of layers that stay dense.
      seed: of the teacher's weights and of the batches.
      recipe: "ntt", "gradual" or "ntt+", looked up for model and data set, or a `Recipe`.

    Example:
      >>> config = nttzoo.search.SearchConfig(model="lenet300", data="mnist", densities=(0.01, 0.03), recipe="gradual")
    """

    schemes: tuple[str | Scheme, ...] = SearchSettings.schemes  # type: ignore[assignment]
    recipe: Recipe = field(default="ntt")  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if isinstance(self.recipe, str):
            object.__setattr__(self, "recipe", recipes.find(self.recipe, self.model, self.data))
        check_instance("recipe", self.recipe, Recipe)
        densities = check_sequence("densities", self.densities)
        object.__setattr__(self, "densities", tuple(check_densities(density) for density in densities))
        object.__setattr__(self, "schemes", check_sequence("schemes", self.schemes))
        object.__setattr__(self, "exclude", check_texts("exclude", self.exclude))
        for scheme in self.schemes:
            find_scheme(scheme)
        if not self.targets:
            raise OptionError("nothing to search for: give at least one density and one scheme.")
        if len({target.name for target in self.targets}) < len(self.targets):
            raise OptionError(f"each student once: densities {self.densities}, schemes {self.schemes}.")
        check_seed(self.seed)

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        """The students: each density in each scheme."""
        return tuple(Target(density, scheme) for scheme in self.schemes for density in self.densities)

    @property
    def name(self) -> str:
        """For folders: says what is in it."""
        densities, schemes = "+".join(map(density_name, self.densities)), "+".join(map(scheme_name, self.schemes))
        dense = dense_name(self.exclude)
        return f"{self.model}-{self.data}-{densities}pct-{schemes}{dense}-{self.recipe.name}-seed{self.seed}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON: all that a run depends on, but devices."""
        content = {**asdict(self), "densities": list(self.densities), "schemes": list(map(scheme_name, self.schemes))}
        # Left out where there is none: runs from before layers could be excluded can be resumed.
        return {key: value for key, value in content.items() if key != "exclude"} | {
            **({"exclude": list(self.exclude)} if self.exclude else {}),
            **self.own,
        }

    @staticmethod
    def defaults() -> dict[str, Any]:
        """What a field counts as that the config of an earlier version, in the form of `to_dict`, does not have."""
        own, recipe = (_field_defaults(kind) for kind in (SearchConfig, Recipe))
        return {**own, "recipe": recipe}

    @property
    def own(self) -> dict[str, Any]:
        """Which factory and data, beside their names, a run depends on, if they are a person's own."""
        return {**architectures.own.about(self.model), **data.own.about(self.data)}


def _field_defaults(kind: type) -> dict[str, Any]:
    return {entry.name: entry.default for entry in fields(kind) if entry.default is not MISSING}


@dataclass(frozen=True)
class Plan:
    """What a config means for a number of images."""

    recipe: Recipe
    images: int  # to search on
    held_out: int  # to report kernel distances on
    steps: int

    @classmethod
    def of(cls, recipe: Recipe, images: int) -> Plan:
        """Splits the images and counts the steps; says so if the recipe does not fit."""
        wanted = max(round(recipe.held_out * images), EVALUATION_IMAGES) if recipe.held_out else 0
        held = min(wanted, images // 4 * 2)
        left = images - held
        if recipe.batch_size > left:
            raise OptionError(
                f"batch_size {recipe.batch_size} does not fit {left} images ({held} of {images} are held out): "
                f"choose at most {left // 2 * 2}."
            )
        return cls(recipe, left, held, recipe.epochs * math.ceil(left / recipe.batch_size))

    def check_fall(self, densities: tuple[Density, ...]) -> None:
        """Says so if some density is to fall for longer than masks are refreshed."""
        recipe, until = self.recipe, self.recipe.fall * self.steps
        falls = any(self.density(target, 0) != target for target in densities)
        if falls and self.last_refresh < until:
            raise OptionError(
                f"the density is to fall until step {math.ceil(until)}, but the mask is refreshed for the last time at "
                f"step {self.last_refresh} of {self.steps}: search longer, or make mask_every ({recipe.mask_every}) or "
                f"fall ({recipe.fall:g}) smaller."
            )

    @property
    def last_refresh(self) -> int:
        """In the last `mask_every` steps the mask stays."""
        return max(self.steps - self.recipe.mask_every, 0) // self.recipe.mask_every * self.recipe.mask_every

    def refreshes_at(self, step: int) -> bool:
        """Whether the mask is recomputed after `step` steps."""
        return 0 < step <= self.last_refresh and step % self.recipe.mask_every == 0

    def mask_before(self, step: int) -> int:
        """The step at which the mask was taken that was in use just before `step`; 0 for the first one."""
        every = self.recipe.mask_every
        return min(max(step - 1, 0) // every * every, self.last_refresh)

    def next_event(self, step: int) -> int:
        """The next step at which something happens between steps: a refresh or a line of metrics, or the end."""
        return min((step // self.recipe.mask_every + 1) * self.recipe.mask_every, self.steps)

    def density(self, target: Density, step: int) -> Density:
        """The density, or densities, of a mask taken when `step` steps are done."""
        if isinstance(target, Mapping):
            return {pattern: self._density(value, step) for pattern, value in target.items()}
        return self._density(target, step)

    def _density(self, target: float, step: int) -> float:
        start = self.recipe.start_density
        if start is None or start <= target:
            return target
        progress = min(step / (self.recipe.fall * self.steps), 1.0)
        return target if progress == 1 else recipes.FALLS[self.recipe.fall_shape](start, target, progress)
