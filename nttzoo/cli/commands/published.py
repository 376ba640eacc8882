"""Commands about published networks."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from nttzoo.cli.options import AsJson, DataOptions, Factory, Out
from nttzoo.errors import OptionError
from nttzoo.settings import Argument, Help


@dataclass(frozen=True, kw_only=True)
class List:
    """List the published networks."""

    words: Annotated[tuple[str, ...], Argument("parts of names, such as conv4 svhn (default: all)", "WORD")] = ()
    data: Annotated[str | None, Help("only those of a data set")] = None
    density: Annotated[float | None, Help("only those of a density")] = None
    scheme: Annotated[str | None, Help("only those of a scheme")] = None
    json: AsJson = False

    def run(self) -> None:
        """Prints the published networks."""
        from nttzoo import zoo
        from nttzoo._util import console

        names = zoo.list_models(*self.words, dataset=self.data, density=self.density, scheme=self.scheme)
        entries = [zoo.info(name).summary() for name in names]
        if self.json:
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


@dataclass(frozen=True, kw_only=True)
class Info:
    """Print the card of a published network."""

    name: Annotated[str, Argument("of the network", "NAME")]
    json: Annotated[bool, Help("print JSON instead of its card")] = False

    def run(self) -> None:
        """Prints a card, or the metrics behind it."""
        from nttzoo import zoo
        from nttzoo.zoo import card

        entry = zoo.info(self.name)
        print(json.dumps(entry.metrics) if self.json else card.card(entry.metrics))


@dataclass(frozen=True, kw_only=True)
class Verify:
    """Check every file of every published network."""

    json: Annotated[bool, Help("print JSON")] = False

    def run(self) -> None:
        """Checks all published networks."""
        from nttzoo import zoo

        names = zoo.verify()
        print(json.dumps(names) if self.json else f"{len(names)} networks are intact.")


@dataclass(frozen=True, kw_only=True)
class LoadCheck:
    """Load published networks and compare them with their cards."""

    names: Annotated[tuple[str, ...], Argument("(default: all)", "NAME")] = ()
    model: Factory = None
    json: AsJson = False
    out: Out = None

    def run(self) -> None:
        """Loads published networks and compares them with their cards."""
        from nttzoo import architectures, zoo
        from nttzoo._util import console, provenance

        if self.out:
            provenance.check_writable(self.out)
        # Custom ones can be built if --model names their factory.
        names = self.names or [n for n in zoo.list_models() if zoo.info(n).architecture in architectures.ARCHITECTURES]
        checks = [zoo.load_check(name) for name in names]
        if self.out:
            content = {"what": "milliseconds of nttzoo.load, one after the other in one process, after imports"}
            loads = [asdict(check) for check in checks]
            provenance.write_json(self.out, {**content, "loads": loads, **provenance.origin()})
        if self.json:
            print(json.dumps([asdict(check) for check in checks]))
            return
        rows = [(check.name, f"{check.density:.2%}", f"{check.milliseconds:.0f} ms") for check in checks]
        print(console.table("all networks match their cards", ("network", "density", "loads in"), rows))


@dataclass(frozen=True, kw_only=True)
class Publish(DataOptions):
    """Make entries of the zoo from finished comparisons."""

    comparison: Annotated[tuple[str, ...], Argument("JSON files of `nttzoo compare`", "COMPARISON")] = ()
    results: Annotated[str | None, Help("results of `nttzoo reproduce`, such as results/reproduce", "FOLDER")] = None
    only: Annotated[tuple[str, ...], Help("publish only these entries of the results", "GLOB")] = ()
    runs: Annotated[str | None, Help("folder of the searches and of the weights of results", "FOLDER")] = None
    runtimes: Annotated[str | None, Help("add the times that `scripts/bench.py runtime NAME ...` measured", "FILE")] = (
        None
    )
    pictures: Annotated[tuple[str, ...], Help("store tangent kernels for the gallery with these entries", "NAME")] = ()
    curves: Annotated[
        tuple[str, ...], Help("like --pictures, and train each with a random mask for learning curves", "NAME")
    ] = ()
    home: Annotated[str, Help("the zoo: $NTTZOO_HOME, or this folder", "FOLDER")] = field(
        default_factory=lambda: os.environ.get("NTTZOO_HOME", ".")
    )
    model: Factory = None
    data: Annotated[
        str | None, Help("data of your own that the comparison used: my.npz, a folder, module:function")
    ] = None

    def run(self) -> None:
        """Makes entries of comparisons and prints their names."""
        from nttzoo import data
        from nttzoo.experiments import comparison as comparisons
        from nttzoo.experiments import entries, publish

        pictured = [*self.pictures, *self.curves]
        if not (self.comparison or self.runtimes or self.results or pictured):
            raise OptionError(
                "name a comparison to publish, results with --results, measured times with --runtimes, or entries with "
                "--pictures or --curves."
            )
        if (self.comparison or self.results) and not self.runs:
            raise OptionError("name the folder of the searches with --runs.")
        runs = Path(self.runs or "")
        if self.results:
            places: dict[str, Any] = {"runs": [runs], "home": Path(self.home), "only": self.only}
            for entry in entries.publish(Path(self.results), lambda name: data.load(name, **self.where), **places):
                print(entry)
        for comparison in map(Path, self.comparison):
            name = comparisons.read(comparison)["comparison"]["data"]
            dataset = data.load(name, **self.where)
            for entry in publish.publish(comparison, dataset, runs=runs, home=Path(self.home)):
                print(entry)
        if self.runtimes:
            for entry in publish.add_runtimes(Path(self.runtimes), Path(self.home)):
                print(f"{entry}: measured times entered")
        for names, train in ((self.pictures, False), (self.curves, True)):
            if names:
                get = partial(data.load, **self.where)
                for entry in publish.add_pictures(names, get, home=Path(self.home), train=train):
                    print(f"{entry}: pictures entered")


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Write the zoo as a web page that opens from disk."""

    out: Annotated[str, Help("output folder", "FOLDER")]
    data_dir: Annotated[
        str | None,
        Help("put test images of the data sets in this folder into the page (default: embedded digits only)", "FOLDER"),
    ] = None

    def run(self) -> None:
        """Writes the zoo as a web page."""
        from nttzoo import gallery

        print(gallery.build(self.out, data_dir=self.data_dir))
