"""The parts of the gallery that work on digits: networks to draw for, and networks that learn in the browser."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nttzoo import architectures, data, zoo
from nttzoo.codegen import wasm
from nttzoo.experiments import controls
from nttzoo.gallery import compact
from nttzoo.gallery.facts import Exhibit
from nttzoo.sparsity import cost, pruning
from nttzoo.zoo import pictures

DATASET, ARCHITECTURE, CONVOLUTIONAL = "mnist", "lenet300", "lenet5"
DENSITIES = (0.01, 0.03)
SAMPLE = "mnist5k"


@dataclass
class Classroom:
    """Facts and bytes for the page."""

    facts: dict[str, Any] = field(default_factory=dict)
    binary: dict[str, bytes] = field(default_factory=dict)


def classroom(exhibits: list[Exhibit]) -> Classroom:
    """The networks that answer to drawn digits, and those that learn; empty without a sparse network for digits."""
    content = Classroom()
    chosen = _chosen(exhibits)
    if not chosen:
        return content
    _sample(content)
    players: list[dict[str, Any]] = [
        {"name": shown.name, "label": _label(shown), "module": f"wasm-{shown.name}"} for shown in chosen
    ]
    first = chosen[0]
    model = pictures.load_random(first.name)
    if model is not None:
        made = wasm.network(model, name="random")
        content.binary["wasm-random"] = made.content
        kept = sum(layer["kept"] for layer in first.facts["layers"])
        label = f"random mask, {100 * first.facts['density']:.3g} %"
        random = {"name": first.name, "label": label, "module": "wasm-random", "random": True, "weights": kept}
        alive = cost.speedup(model).to_dict()["total"]["alive"]
        players.insert(min(2, len(players)), {**random, "alive": alive, "wasm": len(made.content)})
    content.facts["players"] = players
    if first.facts["architecture"] == ARCHITECTURE:
        _learners(content, first)
    return content


def _chosen(exhibits: list[Exhibit]) -> list[Exhibit]:
    """The best network for digits of each kind that is asked for: 1 % and 3 % of LeNet-300-100, and a LeNet-5."""
    digits = [
        shown for shown in exhibits if shown.facts["dataset"] == DATASET and shown.facts.get("drawn") == "trained"
    ]
    kinds = [(ARCHITECTURE, density) for density in DENSITIES] + [(CONVOLUTIONAL, None)]
    chosen = []
    for architecture, density in kinds:
        alike = [
            shown
            for shown in digits
            if shown.facts["architecture"] == architecture and density in (None, shown.facts["density"])
        ]
        if alike:
            chosen.append(
                max(alike, key=lambda shown: (-shown.facts["density"], shown.facts["chosen"]["test_accuracy"]))
            )
    return chosen


def _label(shown: Exhibit) -> str:
    network = {ARCHITECTURE: "NTT", CONVOLUTIONAL: "LeNet-5"}[shown.facts["architecture"]]
    return f"{network}, {100 * shown.facts['density']:.3g} %"


def _sample(content: Classroom) -> None:
    """The embedded digits: to learn from, to test on, and to try."""
    digits = data.load(SAMPLE)
    for name, part in (("train", digits.train), ("test", digits.test)):
        content.binary[f"digits-{name}"] = compact.grays(part.images).tobytes()
        content.binary[f"labels-{name}"] = part.labels.astype(np.uint8).tobytes()
    shape = list(digits.input_shape)
    content.facts["digits"] = {
        "train": len(digits.train),
        "test": len(digits.test),
        "shape": shape,
        "license": digits.license,
    }


def _learners(content: Classroom, first: Exhibit) -> None:
    """Three untrained networks with as many weights: NTT's, one with a random mask, NTT's weights at random places."""
    found: Any = zoo.load(first.name)
    seed = first.facts["seed"]
    fresh: Any = architectures.create(ARCHITECTURE, rngs=seed)
    random: Any = pruning.prune(
        architectures.create(ARCHITECTURE, rngs=seed), "random", density=first.facts["density"], rngs=seed
    )
    shuffled: Any = controls.apply(zoo.load(first.name), "shuffled", dense=fresh, rngs=seed)
    kinds = {"ntt": (found, "NTT"), "random": (random, "random mask"), "shuffled": (shuffled, "NTT, shuffled mask")}
    learners = []
    for key, (model, label) in kinds.items():
        model.input_spec = found.input_spec
        made = wasm.learner(model, name=key)
        content.binary[f"learner-{key}"] = made.content
        learners.append({"key": key, "label": label, "bytes": len(made.content)})
    content.facts["learners"] = {"from": first.name, "density": first.facts["density"], "networks": learners}
