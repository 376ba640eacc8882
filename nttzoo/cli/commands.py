"""What each command does: one call each. Heavy modules are imported when they are used: `--help` is instant."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from nttzoo.errors import OptionError


def _recipe_values(options: argparse.Namespace) -> dict[str, Any]:
    from dataclasses import fields

    from nttzoo.search.recipes import Recipe

    every = {field.name: getattr(options, field.name, None) for field in fields(Recipe) if field.name != "name"}
    return {name: value for name, value in every.items() if value is not None}


def _density(options: argparse.Namespace) -> float | dict[str, float]:
    """The density that `--prune` is to leave."""
    if options.prune == "dense":
        if options.density not in (None, 1):
            raise OptionError(f"--density {options.density} needs a method: --prune random, magnitude, snip ...")
        return 1.0
    return 0.03 if options.density is None else options.density


def train(options: argparse.Namespace) -> None:
    """Prunes or takes a found student, trains it, and prints a summary."""
    from nttzoo import data, training
    from nttzoo._util import provenance
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
    if options.start:
        trained = baselines.train_student(Path(options.start), dataset, config)
    else:
        pruned = {"density": _density(options), "scheme": options.scheme, "exclude": options.dense_layers}
        trained = baselines.train_baseline(options.model, dataset, config, method=options.prune, **pruned)
    print(trained)
    if options.start:
        print(f"Next, take it to other runtimes: nttzoo export {options.start} model.onnx")
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
        recipe=recipes.find(options.recipe, options.model, options.data).change(**_recipe_values(options)),
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
        change=_recipe_values(options),
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


def list_models(options: argparse.Namespace) -> None:
    """Prints the published networks."""
    from nttzoo import zoo
    from nttzoo._util import console

    names = zoo.list_models(*options.words, dataset=options.data, density=options.density, scheme=options.scheme)
    entries = [zoo.info(name).summary() for name in names]
    if options.json:
        print(json.dumps(entries))
        return
    if not entries:
        print(f"None of the {len(zoo.list_models())} published networks matches.")
        return
    rows = [
        (
            entry["name"],
            f"{100 * entry['test_accuracy']:.2f}",
            f"{entry['search_epochs']} + {entry['train_epochs']}",
            f"{entry['theoretical_speedup']:.1f}x",
            f"{entry['bytes'] / 1000:.0f} kB",
        )
        for entry in entries
    ]
    columns = ("network", "test accuracy, %", "epochs of search + training", "theoretical speedup", "size")
    print(console.table("", columns, rows))
    print('Accuracies are those of the weights "trained"; nttzoo.load gives "init" by default.')


def info(options: argparse.Namespace) -> None:
    """Prints a card, or the metrics behind it."""
    from nttzoo import zoo
    from nttzoo.zoo import card

    entry = zoo.info(options.name)
    print(json.dumps(entry.metrics) if options.json else card.card(entry.metrics))


def verify(options: argparse.Namespace) -> None:
    """Checks all published networks."""
    from nttzoo import zoo

    names = zoo.verify()
    print(json.dumps(names) if options.json else f"{len(names)} networks are exactly as published.")


def load_check(options: argparse.Namespace) -> None:
    """Loads published networks and compares them with their cards."""
    from dataclasses import asdict

    from nttzoo import zoo
    from nttzoo._util import console, provenance

    if options.out:
        provenance.check_writable(options.out)
    names = options.names or zoo.list_models()
    checks = [zoo.load_check(name) for name in names]
    if options.out:
        content = {"what": "milliseconds of nttzoo.load, one after the other in one process, after imports"}
        loads = [asdict(check) for check in checks]
        provenance.write_json(options.out, {**content, "loads": loads, **provenance.origin()})
    if options.json:
        print(json.dumps([asdict(check) for check in checks]))
        return
    rows = [(check.name, f"{check.density:.2%}", f"{check.milliseconds:.0f} ms") for check in checks]
    print(console.table("all as their cards say", ("network", "density", "loads in"), rows))


def export(options: argparse.Namespace) -> None:
    """Writes a network as an ONNX file, as C, as WebAssembly or as a folder for the Hugging Face Hub."""
    from nttzoo import codegen, export, zoo

    published = options.name in zoo.list_models()
    model = options.name if published or not Path(options.name).exists() else Path(options.name)
    chosen = {key: value for key in ("opset", "layout", "batch") if (value := getattr(options, key)) is not None}
    suffix = Path(options.out).suffix
    kind = options.format or {".c": "c", ".wasm": "wasm"}.get(suffix, "onnx")
    if kind == "hub":
        if chosen or options.dense or options.training or options.weights:
            raise OptionError("--format hub writes all weights of a published network and takes no other options.")
        print(export.export_hub(options.name, options.out))
        return
    if kind in ("c", "wasm"):
        if chosen or options.dense:
            given = ", ".join(f"--{key}" for key in (*chosen, *(["dense"] if options.dense else [])))
            raise OptionError(f"{given}: of ONNX only. C takes images as the network does, one by one or many.")
        if options.training:
            from nttzoo.codegen import training, wasm

            write = training.export_training_c if kind == "c" else wasm.export_training_wasm
            print(write(zoo.load(model, weights=options.weights or "init"), options.out))
        elif kind == "wasm":
            from nttzoo.codegen import wasm

            print(wasm.export_wasm(model, options.out, weights=options.weights or "trained"))
        else:
            print(codegen.export_c(model, options.out, weights=options.weights or "trained"))
        return
    if options.training:
        raise OptionError("--training writes C or WebAssembly: name a FILE that ends in .c or .wasm.")
    if options.batch and options.batch.isdecimal():
        chosen["batch"] = int(options.batch)
    print(
        export.export_onnx(model, options.out, sparse=not options.dense, weights=options.weights or "trained", **chosen)
    )


def device(options: argparse.Namespace) -> None:
    """Runs published networks on an emulated microcontroller."""
    from nttzoo._util import console, provenance
    from nttzoo.codegen import device

    if options.out:
        provenance.check_writable(options.out)
    seen = [device.check(name, images=options.images) for name in options.names]
    if options.out:
        provenance.write_json(options.out, {"networks": seen, **provenance.origin()})
    if options.json:
        print(json.dumps(seen))
        return

    def kilobytes(size: int) -> str:
        return f"{size / 1000:.1f} kB"

    rows = [
        (one["name"], *(kilobytes(part[key]) for key in ("flash_bytes", "ram_bytes") for part in (one, one["dense"])))
        for one in seen
    ]
    print(console.table(f"on {seen[0]['board']}", ("network", "flash", "dense", "RAM", "dense"), rows))
    for one in seen:
        answers = f"on {one['inputs']}, {' '.join(one['predictions'])}"
        print(f"{one['name']}: {answers}, as JAX says (difference {one['difference']:.0e})")


def publish(options: argparse.Namespace) -> None:
    """Makes entries of comparisons and prints their names."""
    from nttzoo import data
    from nttzoo.experiments import comparison as comparisons
    from nttzoo.experiments import entries, publish

    pictured = [*options.pictures, *options.curves]
    if not (options.comparison or options.runtimes or options.results or pictured):
        raise OptionError(
            "name a comparison to publish, results with --results, measured times with --runtimes, or entries with "
            "--pictures or --curves."
        )
    if (options.comparison or options.results) and not options.runs:
        raise OptionError("name the folder of the searches with --runs.")
    if options.results:
        where = {"data_dir": options.data_dir, "download": options.download}
        places: dict[str, Any] = {"runs": [Path(options.runs)], "home": Path(options.home), "only": options.only}
        for entry in entries.publish(Path(options.results), lambda name: data.load(name, **where), **places):
            print(entry)
    for comparison in map(Path, options.comparison):
        name = comparisons.read(comparison)["comparison"]["data"]
        dataset = data.load(name, data_dir=options.data_dir, download=options.download)
        for entry in publish.publish(comparison, dataset, runs=Path(options.runs), home=Path(options.home)):
            print(entry)
    if options.runtimes:
        for entry in publish.add_runtimes(Path(options.runtimes), Path(options.home)):
            print(f"{entry}: measured times entered")
    for names, train in ((options.pictures, False), (options.curves, True)):
        if names:
            get = partial(data.load, data_dir=options.data_dir, download=options.download)
            for entry in publish.add_pictures(names, get, home=Path(options.home), train=train):
                print(f"{entry}: pictures entered")


def gallery(options: argparse.Namespace) -> None:
    """Writes the zoo as a web page."""
    from nttzoo import gallery

    print(gallery.build(options.out, data_dir=options.data_dir))


def speedup(options: argparse.Namespace) -> None:
    """Prints what a pruned network costs."""
    from nttzoo import architectures
    from nttzoo.sparsity import cost, pruning

    model = architectures.create(options.model, rngs=options.seed)
    if options.prune != "dense" and pruning.METHODS[options.prune].needs in ("images", "labels"):
        free = [name for name, method in pruning.METHODS.items() if method.needs in ("nothing", "shape")]
        raise OptionError(f"{options.prune!r} needs data; `speedup` takes {', '.join(free)}.")
    where: dict[str, Any] = {"density": _density(options), "scheme": options.scheme, "exclude": options.dense_layers}
    if options.prune != "dense":
        pruning.prune(model, options.prune, **where, rngs=options.seed)
    report = cost.speedup(model)
    print(json.dumps(report.to_dict()) if options.json else report)
