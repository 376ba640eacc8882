"""Commands that run experiments: comparisons and the paper's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nttzoo.cli.options import DataOptions, RecipeValues, Runs
from nttzoo.settings import Argument, DataName, DenseLayers, Density, Help, Model, SearchSettings, TrainSettings


@dataclass(frozen=True, kw_only=True)
class Compare(DataOptions):
    """Compare methods: search or prune, then train."""

    model: Model = SearchSettings.model
    data: DataName = SearchSettings.data
    methods: Annotated[tuple[str, ...], Help("all; or ntt, gradual, ntt+, dense, and pruning methods", "METHOD")] = (
        "ntt",
        "gradual",
        "random",
    )
    controls: Annotated[
        tuple[str, ...], Help("also train controls: shuffled, reinitialized, magnitude_mask", "CONTROL")
    ] = ()
    densities: Annotated[
        tuple[Density, ...], Help("fractions of weights kept, each a number or one per glob: 'conv*=0.02,*=0.1'")
    ] = (0.03,)
    schemes: Annotated[tuple[str, ...], Help("layerwise, global, erk, budget")] = SearchSettings.schemes
    exclude: DenseLayers = ()
    seeds: Annotated[tuple[int, ...], Help("seeds; each has its own network, search and training")] = (0,)
    train_epochs: Annotated[int, Help("of the supervised phase")] = TrainSettings.epochs
    dropout: Annotated[bool, Help("train without dropout where the network has it")] = True
    recipe_values: RecipeValues
    runs: Runs = "runs"
    jobs: Annotated[int, Help("concurrent trainings, such as 2 on two cores")] = 1
    out: Annotated[str, Help("JSON file of the comparison; extended case by case", "FILE")]

    def run(self) -> None:
        """Runs a comparison and prints its table."""
        from nttzoo import data
        from nttzoo._util import provenance
        from nttzoo.experiments import comparison, plots

        chosen = comparison.Comparison(
            model=self.model,
            data=self.data,
            methods=comparison.every_method() if self.methods == ("all",) else self.methods,
            controls=self.controls,
            densities=self.densities,
            schemes=self.schemes,
            seeds=self.seeds,
            train_epochs=self.train_epochs,
            dropout=self.dropout,
            exclude=self.exclude,
            change=self.recipe_values.given(),
        )
        out = provenance.check_writable(self.out)
        dataset = data.load(self.data, **self.where)
        content = comparison.run(chosen, dataset, out=out, runs=Path(self.runs), jobs=self.jobs, **self.where)
        plots.comparison(content, out.with_suffix(".png"))
        print(comparison.table(content))
        if chosen.by_layer and (layers := comparison.layers_table(content)):
            print(f"\n{layers}")
        print(f"Picture: {out.with_suffix('.png')}")


@dataclass(frozen=True, kw_only=True)
class Visualize(DataOptions):
    """Plot the training trajectories of teacher and student on zeros and ones."""

    model: Annotated[str, Help("lenet300 or lenet5")] = SearchSettings.model
    data: Annotated[str, Help("data set whose first two classes are used")] = SearchSettings.data
    seed: Annotated[int, Help("of the network and the search")] = 0
    epochs: Annotated[int | None, Help("full-batch steps of the search (default: the paper's 5000)")] = None
    tangents: Annotated[tuple[str, ...], Help("all or active, or both: whose derivatives a search matches")] = ("all",)
    steps: Annotated[int, Help("steps of gradient descent")] = 200
    runs: Runs = "runs"
    out: Annotated[str, Help("output file, JSON; the figure is written next to it", "FILE")]

    def run(self) -> None:
        """Trains networks on zeros and ones; writes trajectories and a figure."""
        from nttzoo import data
        from nttzoo._util import provenance
        from nttzoo.experiments import plots, trajectories

        out = provenance.check_writable(self.out)
        seen = trajectories.follow(
            self.model,
            data.load(self.data, **self.where),
            seed=self.seed,
            steps=self.steps,
            epochs=self.epochs,
            tangents=list(self.tangents),
            folder=Path(self.runs) / out.stem,
        )
        provenance.write_json(out, {**seen.to_dict(), **provenance.origin()})
        plots.trajectories(seen, out.with_suffix(".png"))
        for who, distance in seen.distances().items():
            print(f"{who}: mean distance from the teacher's path {distance:.4f}")
        print(f"Picture: {out.with_suffix('.png')}")


@dataclass(frozen=True, kw_only=True)
class Reproduce(DataOptions):
    """Run the paper's experiments; finished cases are skipped."""

    experiment: Annotated[
        str,
        Argument(
            "table1, table2, curves, density, tradeoff, controls, ablation, field, networks, dynamics, all; "
            "report: only write the report",
            "EXPERIMENT",
        ),
    ]
    budget: Annotated[str, Help("paper, cpu (about a day on two cores) or smoke")] = "cpu"
    results: Annotated[str, Help("folder of results, one file per case", "FOLDER")] = "results/reproduce"
    report: Annotated[str, Help("tables and pictures of all results", "FILE")] = "results/REPORT.md"
    runs: Annotated[
        tuple[str, ...], Help("folders of finished searches; new ones are written to the first", "FOLDER")
    ] = ("runs", "results/searches")
    only: Annotated[tuple[str, ...], Help("only the cases whose names match", "GLOB")] = ()
    no_search: Annotated[bool, Help("do not start searches; only train existing networks")] = False
    dry_run: Annotated[bool, Help("list the cases and estimated times")] = False

    def run(self) -> None:
        """Runs the missing cases of an experiment and writes the report."""
        from nttzoo._util import files
        from nttzoo.experiments import dynamics, plans, report, reproduce

        results = Path(self.results)
        for folder in (results, Path(self.report).parent, *map(Path, self.runs[:1])):
            files.check_folder(folder)
        place = reproduce.Workplace(results, tuple(map(Path, self.runs)), not self.no_search, self.where)
        if self.experiment != "report":
            cases = reproduce.select(plans.plan(self.experiment, self.budget), self.only)
            if self.dry_run:
                print(reproduce.dry_run(cases, place))
                return
            left = reproduce.run(cases, place) if cases else []
            if self.experiment == "dynamics" or (self.experiment == "all" and not self.only):
                dynamics.run(self.budget, place, only=self.only)
            if left:
                print(f"{len(left)} cases are left; run the same command again.")
        if not self.dry_run and (self.experiment == "report" or results.is_dir()):
            for file in report.write(results, Path(self.report)):
                print(file)
