"""Estimates of the kernel loss's gradient from some of the outputs: how noisy they are, and what they cost.

At equal wall-clock the better estimate is the one with the smaller product of variance and time: of a cheaper one more
can be averaged.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from benchmarks.measure import milliseconds
from nttzoo import architectures, data
from nttzoo._util import console
from nttzoo._util.provenance import origin
from nttzoo.nn import merge_params, split_params
from nttzoo.ntk import kernel_distance, spread_outputs
from nttzoo.search.batches import draw_batch
from nttzoo.sparsity import pruning

DRAWS = {"lenet300": 400, "lenet5": 100}
OUTPUTS = 10


class Estimator(NamedTuple):
    """`way`: exact; shared, the same outputs for all examples; own, each example's; spread, as `spread_outputs`."""

    way: str
    outputs: int
    batch: int


ESTIMATORS = [
    Estimator("exact", 10, 64),
    *(Estimator(way, outputs, 64) for outputs in (1, 2, 5) for way in ("shared", "own", "spread")),
    Estimator("spread", 1, 128),
    Estimator("spread", 2, 128),
    Estimator("spread", 1, 256),
    Estimator("exact", 10, 16),
]


def choose(estimator: Estimator, key: Array) -> Array | None:
    """The outputs of one draw."""
    way, outputs, batch = estimator
    if way == "exact":
        return None
    if way == "shared":
        return jax.random.permutation(key, OUTPUTS)[:outputs]
    if way == "own":
        return jnp.argsort(jax.random.uniform(key, (batch, OUTPUTS)))[:, :outputs]
    return spread_outputs(key, batch, OUTPUTS, outputs)


def compare(model: str, draws: int, bar: Any = None) -> list[dict[str, Any]]:
    """Each estimator's relative variance and bias, against the exact gradient's mean over batches, and its time."""
    dataset = data.load("mnist5k")
    images = dataset.standardize(dataset.train.images)
    teacher, student = (architectures.create(model, rngs=0) for _ in range(2))
    teacher.eval()
    student.eval()
    pruning.prune(student, "magnitude", density=0.03)
    graph, params, rest = split_params(student)

    def gradient_of(estimator: Estimator) -> Any:
        @jax.jit
        def gradient(params: Any, images: Array, key: Array) -> Array:
            batch_key, outputs_key = jax.random.split(key)
            x = images[draw_batch(batch_key, len(images), estimator.batch)]
            halves = x[: len(x) // 2], x[len(x) // 2 :]
            chosen = choose(estimator, outputs_key)
            loss = lambda p: kernel_distance(merge_params(graph, p, rest), teacher, *halves, outputs=chosen)  # noqa: E731
            return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(jax.grad(loss)(params))])

        return lambda seed: np.asarray(gradient(params, images, jax.random.key(seed)), np.float64)

    exact = gradient_of(ESTIMATORS[0])
    # Drawn apart from the draws below, so that the exact estimator is not compared with itself.
    truth = sum(exact(-1 - i) for i in range(3 * draws)) / (3 * draws)
    size = np.sum(truth**2)
    rows = []
    for estimator in ESTIMATORS:
        gradient = gradient_of(estimator)
        found, mean = 0.0, 0.0
        for i in range(draws):
            drawn = gradient(i)
            found, mean = found + np.sum((drawn - truth) ** 2) / draws, mean + drawn / draws
        time = milliseconds(lambda gradient=gradient: gradient(0), repeats=5)  # type: ignore[misc]
        rows.append(
            {
                "model": model,
                **estimator._asdict(),
                "variance": float(found / size),
                "bias": float(np.sqrt(np.sum((mean - truth) ** 2) / size)),
                "milliseconds": time,
            }
        )
        if bar:
            bar.update(bar.task_ids[0], advance=1, note=f"{model}, {estimator.way} {estimator.outputs}")
    for row in rows:
        row["noise_at_equal_time"] = (
            row["variance"] * row["milliseconds"] / (rows[0]["variance"] * rows[0]["milliseconds"])
        )
    return [{key: round(v, 4) if isinstance(v, float) else v for key, v in row.items()} for row in rows]


def run() -> dict[str, Any]:
    """Both networks, at the start of a search at 3 % on the embedded images."""
    with console.progress_bar() as bar:
        bar.add_task("estimators", total=len(DRAWS) * len(ESTIMATORS), note="")
        cases = [row for model, draws in DRAWS.items() for row in compare(model, draws, bar)]
    what = (
        "gradients of the kernel distance at the start of a search (3 %, magnitude): variance over batches and "
        "outputs, and bias, both relative to the exact gradient's mean over batches (a mean over n draws has a bias of "
        "sqrt(variance / n) by chance); milliseconds, the teacher's kernel included; variance times milliseconds, "
        "relative to the exact estimate"
    )
    return {"what": what, "draws": DRAWS, "cases": cases, **origin()}


def tables(result: dict[str, Any]) -> str:
    """One row per estimator."""
    rows = [
        (
            f"{case['model']}, batch {case['batch']}",
            f"{case['way']}, {case['outputs']}",
            f"{case['variance']:.2g}",  # from 0.004 to 7
            f"{case['bias']:.2g}",
            f"{case['milliseconds']:.1f}",
            f"{case['noise_at_equal_time']:.2f}x",
        )
        for case in result["cases"]
    ]
    heads = ("network", "outputs", "variance", "bias", "ms", "noise at equal time")
    return console.table("estimates of the kernel loss's gradient", heads, rows)
