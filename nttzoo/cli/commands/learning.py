"""Commands that search and train."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from nttzoo.cli.commands.options import density_of, recipe_values
from nttzoo.errors import OptionError


def train(options: argparse.Namespace) -> None:
    """Prunes or takes a found student, trains it, and prints a summary."""
    from nttzoo import data, training
    from nttzoo._util import provenance
    from nttzoo.architectures import own
    from nttzoo.cli import networks
    from nttzoo.experiments import baselines

    if options.out:
        provenance.check_writable(options.out)
    config = training.TrainConfig(
        epochs=options.epochs,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        optimizer=options.optimizer,
        momentum=options.momentum,
        weight_decay=options.weight_decay,
        engine=options.engine,
        loss=options.loss,
        validation=options.validation,
        augmentation=options.augmentation,
        dropout=not options.no_dropout,
        seed=options.seed,
    )
    dataset = data.load(options.data, data_dir=options.data_dir, download=options.download)
    if options.start and (options.prune != "dense" or options.density is not None):
        raise OptionError("--start takes a network that is pruned already: leave out --prune and --density.")
    start = networks.find(options.start) if options.start else None
    if isinstance(start, Path) and networks.is_student(start):
        trained = baselines.train_student(start, dataset, config)
    elif start:
        network = networks.load(start, model=options.model, data=options.data)
        trained = baselines.train_loaded(start, network, dataset, config)
    else:
        pruned = {"density": density_of(options), "scheme": options.scheme, "exclude": options.dense_layers}
        trained = baselines.train_baseline(options.model, dataset, config, method=options.prune, **pruned)
    print(trained)
    if isinstance(start, Path) and networks.is_student(start):
        factory = own.about(options.model).get("factory")
        needs = f" --model {factory['reference']}" if factory else ""
        print(f"Next, take it to other runtimes: nttzoo export {options.start} model.onnx{needs}")
    if options.out:
        provenance.write_json(options.out, {**trained.to_dict(), **provenance.origin()})


def search(options: argparse.Namespace) -> None:
    """Runs a search, or prints what it would take."""
    from nttzoo import search
    from nttzoo.search import recipes

    if options.distributed:
        search.start_distributed()
    config = search.SearchConfig(
        model=options.model,
        data=options.data,
        densities=tuple(options.density),
        schemes=tuple(options.scheme),
        exclude=tuple(options.dense_layers),
        seed=options.seed,
        recipe=recipes.find(options.recipe, options.model, options.data).change(**recipe_values(options)),
    )
    where: dict[str, Any] = {"devices": options.devices, "data_dir": options.data_dir, "download": options.download}
    if options.dry_run:
        text = search.dry_run(config, **where)
        if search.is_first():  # of several hosts
            print(text)
        return
    summary = search.run(config, out=options.out, fresh=options.fresh, save_every=options.save_every, **where)
    if summary.content:  # on the first host only
        print(summary)


def compare(options: argparse.Namespace) -> None:
    """Runs a comparison and prints its table."""
    from nttzoo import data
    from nttzoo._util import provenance
    from nttzoo.experiments import comparison, plots

    chosen = comparison.Comparison(
        model=options.model,
        data=options.data,
        methods=comparison.every_method() if options.methods == ["all"] else tuple(options.methods),
        controls=tuple(options.controls),
        densities=tuple(options.density),
        schemes=tuple(options.scheme),
        seeds=tuple(options.seeds),
        train_epochs=options.train_epochs,
        dropout=not options.no_dropout,
        exclude=tuple(options.dense_layers),
        change=recipe_values(options),
    )
    out = provenance.check_writable(options.out)
    where = {"data_dir": options.data_dir, "download": options.download}
    dataset = data.load(options.data, **where)
    content = comparison.run(chosen, dataset, out=out, runs=Path(options.runs), jobs=options.jobs, **where)
    plots.comparison(content, out.with_suffix(".png"))
    print(comparison.table(content))
    print(f"Picture: {out.with_suffix('.png')}")


def visualize(options: argparse.Namespace) -> None:
    """Follows networks on zeros and ones; writes numbers and a picture."""
    from nttzoo import data
    from nttzoo._util import provenance
    from nttzoo.experiments import plots, trajectories

    out = provenance.check_writable(options.out)
    dataset = data.load(options.data, data_dir=options.data_dir, download=options.download)
    chosen = {name: getattr(options, name) for name in ("seed", "steps", "epochs", "tangents")}
    seen = trajectories.follow(options.model, dataset, **chosen, folder=Path(options.runs) / out.stem)
    provenance.write_json(out, {**seen.to_dict(), **provenance.origin()})
    plots.trajectories(seen, out.with_suffix(".png"))
    for who, distance in seen.distances().items():
        print(f"{who}: mean distance from the teacher's path {distance:.4f}")
    print(f"Picture: {out.with_suffix('.png')}")


def reproduce(options: argparse.Namespace) -> None:
    """Runs an experiment of the paper as far as it is not done, and writes the report."""
    from nttzoo.experiments import dynamics, plans, report, reproduce

    results = Path(options.results)
    where = {"data_dir": options.data_dir, "download": options.download}
    place = reproduce.Workplace(results, tuple(map(Path, options.runs)), not options.no_search, where)
    if options.experiment != "report":
        cases = reproduce.select(plans.plan(options.experiment, options.budget), options.only)
        if options.dry_run:
            print(reproduce.dry_run(cases, place))
            return
        left = reproduce.run(cases, place)
        if options.experiment in ("dynamics", "all") and not options.only:
            dynamics.run(options.budget, place)
        if left:
            print(f"{len(left)} cases are left; run the same command again.")
    if not options.dry_run and (options.experiment == "report" or results.is_dir()):
        for file in report.write(results, Path(options.report)):
            print(file)
