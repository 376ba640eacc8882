"""What a step of a search gains when its students' convolutions skip pruned weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from benchmarks.search import machinery
from nttzoo._util import console
from nttzoo._util.provenance import origin
from nttzoo.nn import split_masked
from nttzoo.ntk import spread_outputs
from nttzoo.search.objective import behavior, ntt_loss
from nttzoo.sparsity import pruning

# architecture, data set of its recipe, outputs sampled
CASES: list[tuple[str, str, int]] = [("conv4", "cifar10", 1), ("lenet5", "mnist", 2)]
DENSITIES = (0.01, 0.03, 0.05, 0.1, 0.2)
REPEATS = 9


def compare(model: str, data: str, outputs: int, bar: Any) -> list[dict[str, Any]]:
    """At each density, in turns: the teacher's part of a step, and the gradient of a student by dense and sparse
    convolutions."""
    search = machinery(model, data, outputs, 1)
    x = jnp.asarray(search.images[: search.recipe.batch_size])
    chosen = spread_outputs(jax.random.key(0), len(x), search.num_outputs, outputs)
    teacher = jax.jit(lambda params, x: behavior(search.merged(params, search.full_masks), x, chosen))
    seen = teacher(search.teacher_params, x)

    def gradient(sparse: bool) -> Callable[[Any, Any, Any, Any], Any]:
        def loss(params: Any, masks: Any, seen: Any, x: Any) -> Any:
            options: dict[str, Any] = {"density": 0.03, "coefficients": search.recipe.coefficients, "sparse": sparse}
            return ntt_loss(search.merged(params, masks), seen, x, chosen, **options)[0]

        return jax.jit(jax.grad(loss))

    dense, sparse = gradient(False), gradient(True)
    rows = []
    for density in DENSITIES:
        student = pruning.prune(nnx.clone(search.teacher), "magnitude", density=density)
        _, params, masks, _ = split_masked(student)
        given = (params, masks, seen, x)
        times = _in_turns(partial(teacher, search.teacher_params, x), partial(dense, *given), partial(sparse, *given))
        gap = jax.tree.map(lambda a, b: jnp.abs(a - b).max() / jnp.abs(a).max(), dense(*given), sparse(*given))
        row = {"model": model, "outputs": outputs, "density": density}
        row |= {f"{name}_ms": round(each, 1) for name, each in zip(("teacher", "dense", "sparse"), times, strict=True)}
        row["difference"] = float(max(jax.tree.leaves(gap)))
        rows.append(row | {"gain": {str(count): _gain(times, count) for count in (1, 3)}})
        bar.advance(0)
    return rows


def _in_turns(*functions: Callable[[], Any]) -> list[float]:
    """The least milliseconds of each function, which take turns."""
    best = [math.inf] * len(functions)
    for repeat in range(REPEATS + 1):  # the first compiles
        for i, function in enumerate(functions):
            began = time.perf_counter()
            jax.block_until_ready(function())
            if repeat:
                best[i] = min(best[i], 1000 * (time.perf_counter() - began))
    return best


def _gain(times: list[float], students: int) -> float:
    """How much faster a step is with this many students of one teacher."""
    teacher, dense, sparse = times
    return round((teacher + students * dense) / (teacher + students * sparse), 2)


def run() -> dict[str, Any]:
    """Both networks at all densities."""
    with console.progress_bar() as bar:
        bar.add_task("sparse students", total=len(CASES) * len(DENSITIES), note="")
        cases = [row for case in CASES for row in compare(*case, bar)]
    what = (
        "milliseconds of a search's step (magnitude masks, layerwise): the teacher's outputs and kernel, and the "
        "gradient of one student's loss with dense and with sparse convolutions; the largest difference of a "
        "gradient, relative to its parameter's largest; how much faster a step is with 1 and with 3 students of "
        "one teacher"
    )
    return {"what": what, "repeats": REPEATS, "cases": cases, **origin()}


def table(result: dict[str, Any]) -> str:
    """One row per network and density."""
    rows = [
        (
            f"{case['model']}, {case['outputs']} outputs",
            f"{case['density']:.0%}",
            *(f"{case[f'{name}_ms']:.0f}" for name in ("teacher", "dense", "sparse")),
            *(f"{gain:.2f}x" for gain in case["gain"].values()),
        )
        for case in result["cases"]
    ]
    heads = ("network", "density", "teacher", "student, dense", "student, sparse", "step, 1 student", "3 students")
    return console.table("milliseconds of a search's step", heads, rows)
