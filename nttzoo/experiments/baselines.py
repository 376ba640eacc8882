"""Training of sparse networks, pruned or found by a search, with their multiply-add counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from nttzoo import architectures, search, training, zoo
from nttzoo._util import console, files, schema
from nttzoo.data import Dataset
from nttzoo.sparsity import cost, masks, pruning
from nttzoo.sparsity.density import Density
from nttzoo.zoo import saving

SCORING_IMAGES = {"cifar10": 128, "svhn": 128}


@dataclass(frozen=True)
class Trained:
    """A pruned and trained network with its history; `print` shows a summary."""

    model: nnx.Module
    settings: dict[str, Any]
    history: training.History
    density: masks.DensityReport
    speedup: cost.Speedup

    def to_dict(self) -> dict[str, Any]:
        """For JSON: everything but the weights."""
        return {
            "settings": self.settings,
            "test_accuracy": self.history.test_accuracy[-1] if self.history.test_accuracy else None,
            "density": asdict(self.density.total),
            "speedup": self.speedup.to_dict(),
            "history": self.history.to_dict(),
        }

    def __str__(self) -> str:
        final = {
            name: f"{values[-1]:.2%}" for name, values in asdict(self.history).items() if "accuracy" in name and values
        }
        rows = [
            ("density", f"{self.density.total.density:.2%}"),
            ("theoretical speedup", f"{self.speedup.theoretical:.1f}x"),
        ]
        rows += [("  without dead weights", f"{self.speedup.without_dead:.1f}x")]
        rows += [(name.replace("_", " "), value) for name, value in final.items()]
        settings = self.settings
        title = f"{settings['model']} on {settings['data']}, {settings['method']}, {settings['scheme']}"
        return f"{console.table(title, ('', ''), rows)}\n{self.density}"


def scoring_batch(data: Dataset, seed: int) -> tuple[Array, Array]:
    """The labeled batch on which SNIP scores weights: up to 100 standardized images, 128 of CIFAR-10 and SVHN."""
    count = min(SCORING_IMAGES.get(data.name, 100), len(data.train))
    images, labels = next(data.train.batches(count, rngs=seed))
    return data.standardize(images), jnp.asarray(labels)


def make_network(model: str, data: Dataset, *, seed: int = 0, method: str = "dense", **pruned: Any) -> Any:
    """Creates an architecture for the data set and prunes it by a method (see `prune_network`)."""
    network = architectures.create(model, num_classes=data.num_classes, input_shape=data.input_shape, rngs=seed)
    network.input_spec = data.input_spec
    return prune_network(network, data, seed=seed, method=method, **pruned)


def prune_network(
    network: Any,
    data: Dataset,
    *,
    method: str,
    seed: int,
    density: Density = 1.0,
    scheme: str = "layerwise",
    exclude: Sequence[str] = (),
) -> Any:
    """Prunes a network in place by a method ("dense": not at all), which may see a batch of the training images."""
    if method != "dense":
        where: dict[str, Any] = {"density": density, "scheme": scheme, "exclude": exclude}
        pruning.prune(network, method, **where, batch=scoring_batch(data, seed), rngs=seed)
    return network


def train_baseline(
    model: str, data: Dataset, config: training.TrainConfig, *, method: str = "dense", **pruned: Any
) -> Trained:
    """Makes a network (see `make_network`) and trains it; the config's seed is that of both."""
    network = make_network(model, data, method=method, seed=config.seed, **pruned)
    settings: dict[str, Any] = {"model": model, "method": method, "scheme": pruned.get("scheme", "layerwise")}
    if method != "dense":
        settings |= {"density": pruned.get("density", 1.0)}
        settings |= {"exclude": list(pruned["exclude"])} if pruned.get("exclude") else {}
    return train_network(network, data, config, settings)


def train_student(folder: Path, data: Dataset, config: training.TrainConfig) -> Trained:
    """Trains a student from the folder of a search and saves the weights in its subfolder `trained`.

    Weights of an earlier training are replaced; with zero epochs nothing is saved.
    """
    folder = search.student_folder(folder)
    network, about = search.load_student(folder)
    schema.validate(folder / "model.json", about, schema.StudentFile, what="the description of a student")
    files.check_replaceable(folder / "trained")  # now, not after hours of training
    settings = {"model": about["architecture"], "method": about["recipe"], "scheme": about["scheme"]}
    settings |= {"density": about["density"], "searched_on": about["data"], "search_seed": about["seed"]}
    trained = train_network(network, data, config, settings)
    # It may have been searched for on other images: what the trained one takes is what it was trained on.
    classes = data.classes if data.num_classes == network.num_classes else network.input_spec.classes
    network.input_spec = replace(data.input_spec, classes=tuple(classes))
    if config.epochs:
        about |= {"data": data.name, "searched_on": about["data"], "train_epochs": config.epochs}
        about["test_accuracy"] = trained.to_dict()["test_accuracy"]
        search.save_student(folder / "trained", network, about)
    return trained


def train_loaded(start: str | Path, network: Any, data: Dataset, config: training.TrainConfig) -> Trained:
    """Trains a published network, given its name, or a model from the folder of `nttzoo.save` or of an export.

    The weights of a saved model are kept beside it, in `trained`, as those of a student are. Entries of the zoo and
    exports have trained weights already, which stay.
    """
    folder = Path(start) if zoo.is_folder(start) and saving.is_saved(Path(start)) else None
    if folder:
        files.check_replaceable(folder / "trained")
    trained = train_network(network, data, config, _origin(start, network))
    if folder and config.epochs:
        saving.save(network, folder / "trained", input_spec=data.input_spec)
    return trained


def _origin(start: str | Path, network: Any) -> dict[str, Any]:
    if zoo.is_folder(start):
        return {"model": type(network).__name__, "method": f"from {start}", "scheme": "masks as saved"}
    entry = zoo.info(str(start))
    settings = {"model": entry.architecture, "method": entry.recipe["name"], "scheme": entry.scheme}
    settings |= {"density": entry.density, "searched_on": entry.dataset, "search_seed": entry.seed}
    return {**settings, "start": entry.name}


def train_network(
    network: nnx.Module,
    data: Dataset,
    config: training.TrainConfig,
    settings: dict[str, Any],
    *,
    checkpoint: Path | None = None,
) -> Trained:
    """Counts multiply-adds and trains a network in place; `settings` records its origin.

    `checkpoint` is a folder from which a killed training resumes (see `nttzoo.fit`).
    """
    report, counted = masks.density_report(network), cost.speedup(network)
    history = training.fit(network, data, config, checkpoint=checkpoint)
    how = {name: value for name, value in asdict(config).items() if isinstance(value, str | int | float)}
    how.pop("progress")
    return Trained(network, {**settings, "data": data.name, **how}, history, report, counted)
