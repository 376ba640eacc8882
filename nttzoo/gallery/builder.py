"""`build`: the gallery of all published networks as a folder with one page."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nttzoo import __version__, data, zoo
from nttzoo._util import console, files
from nttzoo._util.checks import check_path
from nttzoo._util.provenance import check_writable
from nttzoo.codegen.build import usable_cores
from nttzoo.codegen.wasm import toolchain
from nttzoo.errors import NttzooError, OptionError
from nttzoo.gallery import compact, page, school
from nttzoo.gallery.facts import Exhibit, exhibit

LIMIT = 5_000_000  # bytes of the page
SCRIPTS = 170_000  # of them, at most, for HTML, CSS and JavaScript
SAMPLES = 24  # test images per data set of a data folder


@dataclass(frozen=True)
class Built:
    """A finished gallery."""

    page: Path
    networks: int
    bytes: int
    left_out: tuple[str, ...]  # networks that the page lists and cannot run, because it would grow too large

    def __str__(self) -> str:
        text = f"{self.page}: {self.networks} networks, {self.bytes / 1e6:.1f} MB. Open it in a browser."
        if self.left_out:
            text += f" Too large to run in the page: {', '.join(self.left_out)}."
        return text


def build(out: str | os.PathLike[str], *, data_dir: str | os.PathLike[str] | None = None) -> Built:
    """Writes a web page that shows the zoo, to a folder.

    The page needs no server and no network: scripts, data and WebAssembly are in it. It lists every published network,
    draws masks and curves, classifies what a visitor draws, and trains networks of 1 % density in the browser.

    Args:
      out: the folder; it is made if it does not exist, and index.html in it is replaced.
      data_dir: a folder with data sets (`cifar10.npz` ...) of which some test images are put into the page. The
        default is to put in digits of the embedded sample only.

    Returns:
      Where the page is and how large it is.

    Raises:
      ExportError: if there is no compiler for WebAssembly.
      OptionError: if `out` is a file, or `data_dir` has no known data set.
      RunError: if the folder cannot be written.

    Example:
      >>> nttzoo.gallery.build("site")
    """
    check_path("out", out)
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder} is a file; the gallery needs a folder.")
    files.check_folder(folder)
    toolchain.find()
    sets = _data_sets(data_dir)
    folder.mkdir(parents=True, exist_ok=True)
    check_writable(folder / "index.html")
    names = zoo.list_models()
    exhibits, digits, modules = _collect(names)
    samples, binary = _samples(exhibits, sets, data_dir)
    binary |= digits.binary
    for shown in exhibits:
        shown.facts["wasm"] = len(modules[shown.name]) if shown.name in modules else None
        shown.facts["arrays"] = {key: list(array.shape) for key, array in shown.arrays.items()}
        binary |= {f"{key}-{shown.name}": array.tobytes() for key, array in shown.arrays.items()}
    facts = {"version": __version__, "networks": [shown.facts for shown in exhibits], "samples": samples}
    facts |= digits.facts
    used = SCRIPTS + sum(len(page.packed(content)) for content in [page.encoded(facts), *binary.values()])
    players = [row["name"] for row in digits.facts.get("players", [])]
    chosen, left_out = _fit(modules, first=players, limit=LIMIT - used)
    for shown in exhibits:
        if shown.name in left_out:
            command = f"nttzoo export {shown.name} net.wasm"
            shown.facts["notes"].append(f"It is too large to run in this page; `{command}` makes a module of it.")
    text = page.page(facts, binary | {f"wasm-{name}": content for name, content in chosen.items()})
    files.write_text(folder / "index.html", text)
    files.write_text(folder / ".nojekyll", "")
    return Built(folder / "index.html", len(names), len(text.encode()), tuple(left_out))


def _collect(names: list[str]) -> tuple[list[Exhibit], school.Classroom, dict[str, bytes]]:
    """What is known of the networks, those for digits, and the modules of all that have one.

    Compilers run beside the rest.
    """
    exhibits, modules = [], {}
    with console.progress_bar() as bar, ThreadPoolExecutor(usable_cores()) as pool:
        task = bar.add_task("gallery", total=2 * len(names) + 1, note="")
        made = {name: pool.submit(_module, name) for name in names}
        for name in names:
            exhibits.append(exhibit(name))
            bar.update(task, advance=1, note=name)
        digits = school.classroom(exhibits)
        bar.update(task, advance=1, note="networks that learn")
        for shown in exhibits:
            module, note = made[shown.name].result()
            if module is not None:
                modules[shown.name] = module
            shown.facts["notes"] += note
            bar.update(task, advance=1, note=shown.name)
    return exhibits, digits, modules


def _module(name: str) -> tuple[bytes | None, list[str]]:
    """A trained network as WebAssembly; None and a note if there is none."""
    try:
        return compact.network(name).content, []
    except NttzooError as error:
        return None, [f"It cannot be run in this page: {error}"]


def _fit(modules: dict[str, bytes], *, first: list[str], limit: int) -> tuple[dict[str, bytes], list[str]]:
    """The modules that fit into `limit` characters, those of `first` and then the smallest, and the others' names."""
    order = sorted(modules, key=lambda name: (name not in first, len(modules[name]), name))
    chosen, size = {}, 0
    for name in order:
        size += len(page.packed(modules[name]))
        if size <= limit:
            chosen[name] = modules[name]
    return chosen, [name for name in order if name not in chosen]


def _data_sets(data_dir: str | os.PathLike[str] | None) -> list[str]:
    """The data sets in a folder, if one was given. MNIST's digits are in the page anyway."""
    if data_dir is None:
        return []
    check_path("data_dir", data_dir)
    stems = {name: {name, data.SOURCES[name].tfds_name} for name in data.SOURCES if not name.startswith("mnist")}
    found = [name for name, of_name in stems.items() if any((Path(data_dir) / f"{x}.npz").is_file() for x in of_name)]
    if not found:
        expected = ", ".join(f"{name}.npz" for name in stems)
        raise OptionError(f"data_dir: the folder {data_dir} has no test images to show; expected one of {expected}.")
    return found


def _samples(
    exhibits: list[Exhibit], sets: list[str], data_dir: str | os.PathLike[str] | None
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Some test images of each of these data sets that the entries are for."""
    facts, binary = {}, {}
    for name in sorted({shown.facts["dataset"] for shown in exhibits}.intersection(sets)):
        test = data.load(name, data_dir=data_dir).test
        chosen = [np.flatnonzero(test.labels == label)[i] for i in range(SAMPLES) for label in np.unique(test.labels)]
        images = test.images[chosen[:SAMPLES]]
        facts[name] = {"shape": list(images.shape), "labels": test.labels[chosen[:SAMPLES]].tolist()}
        binary[f"samples-{name}"] = images.tobytes()
    return facts, binary
