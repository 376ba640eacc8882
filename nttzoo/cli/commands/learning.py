"""Commands that search and train."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from nttzoo.cli.options import DataOptions, PruneOptions, RecipeValues
from nttzoo.errors import OptionError
from nttzoo.settings import DataName, Help, SearchSettings, TrainSettings


@dataclass(frozen=True, kw_only=True)
class Train(DataOptions, TrainSettings, PruneOptions):
    """Prune a network and train it on labeled images."""

    data: DataName = SearchSettings.data
    start: Annotated[
        str | None,
        Help("train a published network, or the folder of a student or of nttzoo.save, in place of --prune", "NAME"),
    ] = None
    out: Annotated[str | None, Help("write history and summary as JSON", "FILE")] = None

    def run(self) -> None:
        """Prunes or loads a network, trains it, and prints a summary."""
        from nttzoo import data, training
        from nttzoo._util import provenance
        from nttzoo.architectures import own
        from nttzoo.cli import networks
        from nttzoo.experiments import baselines

        if self.out:
            provenance.check_writable(self.out)
        config = training.TrainConfig(**{x.name: getattr(self, x.name) for x in fields(TrainSettings)})
        dataset = data.load(self.data, **self.where)
        if self.start and (self.prune != "dense" or self.density is not None):
            raise OptionError("--start takes a network that is pruned already: leave out --prune and --density.")
        start = networks.find(self.start) if self.start else None
        if isinstance(start, Path) and networks.is_student(start):
            trained = baselines.train_student(start, dataset, config)
        elif start:
            network = networks.load(start, model=self.model, data=self.data)
            trained = baselines.train_loaded(start, network, dataset, config)
        else:
            trained = baselines.train_baseline(self.model, dataset, config, method=self.prune, **self.pruned)
        print(trained)
        if isinstance(start, Path) and networks.is_student(start):
            factory = own.about(self.model).get("factory")
            needs = f" --model {factory['reference']}" if factory else ""
            print(f"Next, export it: nttzoo export {self.start} model.onnx{needs}")
        if self.out:
            provenance.write_json(self.out, {**trained.to_dict(), **provenance.origin()})


@dataclass(frozen=True, kw_only=True)
class Search(DataOptions, SearchSettings):
    """Search for sparse networks by Neural Tangent Transfer, without labels."""

    recipe: Annotated[
        str, Help("ntt (the paper), gradual (decreasing density) or ntt+ (decreasing density, no dead weights)")
    ] = "ntt"
    recipe_values: RecipeValues
    out: Annotated[str | None, Help("folder of the run (default: runs/<name>)", "FOLDER")] = None
    fresh: Annotated[bool, Help("start over instead of resuming")] = False
    save_every: Annotated[float, Help("seconds between saved states")] = 60
    dry_run: Annotated[bool, Help("estimate steps, memory and time without searching")] = False
    devices: Annotated[int | None, Help("number of devices that share each batch (default: all)")] = None
    distributed: Annotated[bool, Help("join other hosts (SLURM, TPU pod, JAX_* variables)")] = False

    def run(self) -> None:
        """Runs a search, or estimates its cost."""
        from nttzoo import search
        from nttzoo.search import recipes

        if self.distributed:
            search.start_distributed()
        recipe = recipes.find(self.recipe, self.model, self.data).change(**self.recipe_values.given())
        asked: dict[str, Any] = {x.name: getattr(self, x.name) for x in fields(SearchSettings)}
        config = search.SearchConfig(**asked, recipe=recipe)
        where: dict[str, Any] = {"devices": self.devices, **self.where}
        if self.dry_run:
            text = search.dry_run(config, **where)
            if search.is_first():  # of several hosts
                print(text)
            return
        summary = search.run(config, out=self.out, fresh=self.fresh, save_every=self.save_every, **where)
        if summary.content:  # on the first host only
            print(summary)
