"""Commands about published networks."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from nttzoo.errors import OptionError


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
