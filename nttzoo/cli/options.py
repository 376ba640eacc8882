"""Options that several commands share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

from nttzoo.cli.parsing import optional
from nttzoo.errors import OptionError
from nttzoo.settings import DenseLayers, Density, Help, Model, RecipeSettings, SearchSettings

Factory = Annotated[str | None, Help("factory of your own network: package.module:factory or net.py:factory")]
Out = Annotated[str | None, Help("write the results as JSON", "FILE")]
AsJson = Annotated[bool, Help("print JSON instead of a table")]
Runs = Annotated[str, Help("folder of searches", "FOLDER")]


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Where data sets come from."""

    data_dir: Annotated[
        str | None, Help("folder of local .npz files (default: $NTTZOO_DATA or the cache folder)", "FOLDER")
    ] = None
    download: Annotated[bool, Help("fetch missing data through tensorflow-datasets")] = False

    @property
    def where(self) -> dict[str, Any]:
        """The arguments of `nttzoo.data.load`."""
        return {"data_dir": self.data_dir, "download": self.download}


@dataclass(frozen=True, kw_only=True)
class PruneOptions:
    """A new network and how it is pruned."""

    model: Model = SearchSettings.model
    prune: Annotated[
        str, Help("random, scaled_random, magnitude, snip, logit_snip, or dense: no pruning", "METHOD")
    ] = "dense"
    density: Annotated[
        Density | None,
        Help("fraction of weights that --prune keeps, or one per glob: 'conv*=0.02,*=0.1' (default: 0.03)"),
    ] = None
    scheme: Annotated[str, Help("layerwise, global, erk or budget")] = "layerwise"
    exclude: DenseLayers = ()

    @property
    def pruned(self) -> dict[str, Any]:
        """The arguments of `nttzoo.prune` that say how much is left, and where."""
        return {"density": self._density(), "scheme": self.scheme, "exclude": self.exclude}

    def _density(self) -> Density:
        if self.prune == "dense":
            if self.density not in (None, 1):
                raise OptionError(f"--density {self.density} needs a method: --prune random, magnitude, snip ...")
            return 1.0
        return 0.03 if self.density is None else self.density


class RecipeValues(optional(RecipeSettings)):  # type: ignore[misc]
    """Defaults are those of the recipe."""

    def given(self) -> dict[str, Any]:
        """The values that options change."""
        every = {x.name: getattr(self, x.name) for x in fields(self)}
        return {name: value for name, value in every.items() if value is not None}
