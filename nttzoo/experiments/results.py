"""The results in a folder, as rows to make tables and figures of."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nttzoo._util import schema

BUDGET = ("epochs", "outputs", "mask_every")  # values of a recipe that say how much a search may cost


@dataclass(frozen=True)
class Result:
    """One trained network: its case, and everything that was measured, as in its file.

    `stored`: whether there is such a file; otherwise it is the beginning of a longer training.
    """

    name: str
    content: dict[str, Any]
    stored: bool = True

    def __getattr__(self, key: str) -> Any:
        """The values of the case: model, data, method, density, scheme, seed, control."""
        try:
            return self.content["case"][key]
        except KeyError:
            raise AttributeError(key) from None

    @property
    def epochs(self) -> int:
        """Of training."""
        return self.training["epochs"]

    @property
    def training_but_epochs(self) -> str:
        """How it was trained, without the number of epochs: "epochs-nodropout"."""
        return self.name.split("/")[1].lstrip("0123456789")

    def after(self, epochs: int) -> Result:
        """The same network as it was after fewer epochs."""
        network, _, seed = self.name.split("/")
        case, history = self.content["case"], self.content["history"]
        content = {
            **self.content,
            "case": {**case, "training": {**case["training"], "epochs": epochs}},
            "test_accuracy": history["test_accuracy"][epochs - 1],
            "history": {key: value[:epochs] if isinstance(value, list) else value for key, value in history.items()},
        }
        return replace(self, name=f"{network}/{epochs}{self.training_but_epochs}/{seed}", content=content, stored=False)

    @property
    def variant(self) -> dict[str, Any]:
        """What the search does differently from its recipe, apart from its length."""
        return {key: value for key, value in self.content["case"]["change"].items() if key not in BUDGET}

    @property
    def dropout(self) -> bool:
        """Whether it was trained with dropout; networks without it count as trained as the paper has it."""
        return self.training["dropout"] or self.model != "conv4"

    @property
    def test(self) -> float:
        """Test accuracy after the last epoch, in %."""
        return 100 * self.content["test_accuracy"]

    @property
    def train(self) -> float:
        """Training accuracy in the last epoch, in %."""
        accuracy = (self.content["history"]["train_accuracy"] or [None])[-1]
        return math.nan if accuracy is None else 100 * accuracy

    @property
    def multiply_adds(self) -> int:
        """Per image, of the surviving weights."""
        return self.content["speedup"]["total"]["sparse"]


def read(folder: Path) -> list[Result]:
    """All results in a folder, sorted by name."""
    found = []
    for path in sorted(folder.glob("*/*/seed*.json")):
        found.append(Result(path.relative_to(folder).with_suffix("").as_posix(), read_one(path)))
    return found


def read_one(path: Path) -> dict[str, Any]:
    """The result in a file."""
    return schema.read(path, schema.ResultFile, what="the result of a case: `nttzoo reproduce` writes them")


def with_shorter(results: Iterable[Result]) -> list[Result]:
    """The results, and what each network was after as many epochs as others like it were trained.

    The learning rate is constant and batches are drawn epoch by epoch: the first 30 epochs of a training of 60 are a
    training of 30, to the last bit.
    """
    results = list(results)
    groups = grouped(results, lambda r: (r.model, r.data, r.training_but_epochs)).values()
    names = {result.name for result in results}
    shorter = (r.after(epochs) for group in groups for epochs in {r.epochs for r in group} for r in group
               if epochs < r.epochs)  # fmt: skip
    return sorted([*results, *(r for r in shorter if r.name not in names)], key=lambda r: r.name)


def where(results: Iterable[Result], **values: Any) -> list[Result]:
    """Those whose cases have these values; a tuple or list allows several."""
    return [
        result
        for result in results
        if all(
            getattr(result, key) in value if isinstance(value, tuple | list) else getattr(result, key) == value
            for key, value in values.items()
        )
    ]


def grouped(results: Iterable[Result], key: Callable[[Result], Any]) -> dict[Any, list[Result]]:
    """Results by what a function says of them, in sorted order."""
    groups: dict[Any, list[Result]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return dict(sorted(groups.items()))


def longest(results: Iterable[Result]) -> list[Result]:
    """Of equal networks and seeds, the one that was trained for most epochs."""
    best: dict[Any, Result] = {}
    for result in results:
        key = (result.name.split("/")[0], result.seed, result.dropout)
        if key not in best or result.epochs > best[key].epochs:
            best[key] = result
    return list(best.values())


@dataclass(frozen=True)
class Cell:
    """Test accuracies of one kind over seeds."""

    results: tuple[Result, ...]

    @property
    def values(self) -> list[float]:
        """Test accuracies in %."""
        return [result.test for result in self.results]

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.mean(self.values)

    def __str__(self) -> str:
        spread = f" ({min(self.values):.1f} to {max(self.values):.1f})" if len(self.values) > 1 else ""
        return f"{self.mean:.2f}{spread}"


def cells(results: Iterable[Result], *keys: str) -> Iterator[tuple[tuple[Any, ...], Cell]]:
    """(values of the keys, the results with them): seeds are put together."""
    for key, group in grouped(results, lambda r: tuple(getattr(r, name) for name in keys)).items():
        # Only what was trained equally long is comparable.
        most = max(result.epochs for result in group)
        yield key, Cell(tuple(result for result in group if result.epochs == most))
