"""Do student and teacher learn alike? The paper's experiment on zeros and ones (section 4.1, appendix C.1).

Teacher, student and a randomly pruned network learn to tell zeros from ones by plain gradient descent on the squared
loss. Their outputs, two numbers per image, are followed step by step, beside what the teacher's kernel predicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from nttzoo import architectures, search
from nttzoo.data import Dataset
from nttzoo.errors import DataError, UnknownName
from nttzoo.nn import merge_params, split_params
from nttzoo.ntk import empirical_ntk, linearized
from nttzoo.search import Journal, SearchConfig, recipes
from nttzoo.sparsity import pruning

IMAGES = 500
DENSITY = 0.1
LEARNING_RATE = 0.01
SHOWN = 251  # steps whose losses are written down


@dataclass(frozen=True)
class Trajectories:
    """Outputs [steps + 1, n, 2] of each network while it learns, and the one-hot targets [n, 2]."""

    model: str
    outputs: dict[str, Float[np.ndarray, "t n 2"]]
    targets: Float[np.ndarray, "n 2"]
    found: dict[str, search.Found]  # the searches of the students, by the students' names

    def losses(self) -> dict[str, Float[np.ndarray, " t"]]:
        """Half the squared distance to the targets, mean over images and outputs, at each step."""
        return {who: 0.5 * np.square(f - self.targets).mean((1, 2)) for who, f in self.outputs.items()}

    def steps_to_learn(self) -> dict[str, int | None]:
        """The first step at which a network's loss is below a tenth of the teacher's first; None if that never is."""
        losses = self.losses()
        below = {who: np.nonzero(values < losses["teacher"][0] / 10)[0] for who, values in losses.items()}
        return {who: int(steps[0]) if len(steps) else None for who, steps in below.items()}

    def distances(self) -> dict[str, float]:
        """How far each network's outputs are from the teacher's: mean over steps and images."""
        teacher = self.outputs["teacher"]
        others = {who: f for who, f in self.outputs.items() if who != "teacher"}
        return {who: float(np.linalg.norm(f - teacher, axis=-1).mean()) for who, f in others.items()}

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        losses, steps = self.losses(), len(self.outputs["teacher"]) - 1
        shown = np.unique(np.linspace(0, steps, min(steps + 1, SHOWN)).astype(int))
        return {
            "model": self.model,
            "images": len(self.targets),
            "density": DENSITY,
            "steps": steps,
            "students": {
                who: {
                    "search_steps": found.plan.steps,
                    "tangents": found.plan.recipe.tangents,
                    "kernel_before": found.students[0].kernel_before,
                    "kernel_after": found.students[0].kernel_after,
                }
                for who, found in self.found.items()
            },
            "mean_distance_from_teacher": self.distances(),
            "steps_to_learn": self.steps_to_learn(),
            "final_loss": {who: float(values[-1]) for who, values in losses.items()},
            "shown_steps": shown.tolist(),
            "loss": {who: [float(f"{v:.5g}") for v in values[shown]] for who, values in losses.items()},
        }


def follow(
    model: str,
    dataset: Dataset,
    *,
    seed: int = 0,
    steps: int = 200,
    epochs: int | None = None,
    tangents: Sequence[str] = ("all",),
    folder: Path | None = None,
) -> Trajectories:
    """Searches students on zeros and ones, trains all networks for `steps` steps and follows their outputs.

    `epochs`: steps of a search (None: the paper's 5000). `tangents`: one student for each. `folder`: where the searches
    are kept, so that they can be resumed.
    """
    if model not in recipes.VISUAL:
        raise UnknownName("architecture with a recipe for zeros and ones", model, recipes.VISUAL)
    x, targets = _zeros_and_ones(dataset)
    teacher = architectures.create(model, num_classes=2, input_shape=dataset.input_shape, rngs=seed)
    teacher.eval()
    found = {}
    for kind in tangents:
        recipe = recipes.VISUAL[model].change(epochs=epochs, tangents=kind)
        config = SearchConfig(model=model, data=dataset.name, densities=(DENSITY,), seed=seed, recipe=recipe)
        journal = Journal(None if folder is None else folder / kind)
        who = "student" if len(tangents) == 1 else f"student, {kind} tangents"
        found[who] = search.transfer(teacher, np.asarray(x), config, journal=journal)
        journal.close()
    pruned = pruning.prune(nnx.clone(teacher), "random", density=DENSITY, rngs=seed)
    networks: dict[str, Any] = {"teacher": teacher, **{who: f.students[0].model for who, f in found.items()}}
    networks["random"] = pruned
    outputs = {who: descend(network, x, targets, steps) for who, network in networks.items()}
    outputs["linearized teacher"] = linearized.gradient_descent(
        empirical_ntk(teacher, x),
        outputs["teacher"][0],
        targets,
        jnp.arange(steps + 1),
        learning_rate=LEARNING_RATE / targets.size,  # the loss is a mean over images and outputs
    )
    return Trajectories(model, {who: np.asarray(f) for who, f in outputs.items()}, np.asarray(targets), found)


def descend(model: nnx.Module, x: Array, targets: Float[Array, "n o"], steps: int) -> Float[Array, "t n o"]:
    """Outputs before, between and after steps of full-batch gradient descent; the model itself is not changed."""
    graph, params, rest = split_params(model)

    @jax.jit  # with arrays as arguments: XLA would spend minutes on folding constants
    def run(params: Any, x: Array, targets: Array) -> Array:
        def loss(params: Any) -> tuple[Array, Array]:
            y = merge_params(graph, params, rest)(x)
            return 0.5 * jnp.square(y - targets).mean(), y

        def step(params: Any, _: None) -> tuple[Any, Array]:
            grads, y = jax.grad(loss, has_aux=True)(params)
            return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads), y

        return jax.lax.scan(step, params, length=steps + 1)[1]

    return run(params, x, targets)


def _zeros_and_ones(dataset: Dataset) -> tuple[Float[Array, "n h w c"], Float[Array, "n 2"]]:
    (chosen,) = np.nonzero(dataset.train.labels < 2)
    if len(chosen) < IMAGES:
        raise DataError(f"{dataset.name!r} has {len(chosen)} images of its first two classes; {IMAGES} are needed.")
    chosen = chosen[:IMAGES]
    return dataset.standardize(dataset.train.images[chosen]), jax.nn.one_hot(dataset.train.labels[chosen], 2)
