"""What the search's loop costs beside the bare kernel step, and what its devices say to each other per step."""

from __future__ import annotations

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import alone, milliseconds
from nttzoo import architectures
from nttzoo._util import console
from nttzoo._util.provenance import origin
from nttzoo.ntk import spread_outputs
from nttzoo.search import SearchConfig, recipes
from nttzoo.search.config import Plan
from nttzoo.search.devices import make_mesh
from nttzoo.search.loop import prepare
from nttzoo.search.objective import behavior, ntt_loss

# architecture, data set of its recipe, outputs sampled (None: all), steps per measurement
CASES: list[tuple[str, str, int | None, int]] = [
    ("lenet300", "mnist", None, 100),
    ("lenet5", "mnist", None, 4),
    ("lenet5", "mnist", 2, 10),
    ("conv4", "cifar10", 1, 3),
]
IMAGES = {"mnist": 60_000, "cifar10": 50_000}
DEVICES = (2, 4, 8)
COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "reduce-scatter", "collective-permute")


def machinery(model: str, data: str, outputs: int | None, devices: int, batch: int | None = None) -> Any:
    """The machinery of a search on random images of the right shape."""
    recipe = recipes.find("ntt", model, data).change(outputs=outputs, batch_size=batch)
    config = SearchConfig(model=model, data=data, recipe=recipe)
    teacher = architectures.create(model, rngs=0)
    images = np.random.default_rng(0).normal(size=(2000, *teacher.input_shape)).astype(np.float32)
    return prepare(teacher, images, config, None, make_mesh(devices, recipe.batch_size))[0]


def overhead(model: str, data: str, outputs: int | None, steps: int) -> dict[str, Any]:
    """Milliseconds of a step in the search's loop, and of its teacher's behavior and student's gradient alone."""
    students = machinery(model, data, outputs, 1)
    states = students.start()
    x = jnp.asarray(students.images[: students.recipe.batch_size])
    chosen = None if outputs is None else spread_outputs(jax.random.key(0), len(x), 10, outputs)

    @jax.jit
    def bare(state: Any, teacher_params: Any, x: Any) -> Any:
        merge = students.merged
        seen = behavior(merge(teacher_params, students.full_masks), x, chosen)
        options: dict[str, Any] = {"density": 0.03, "coefficients": students.recipe.coefficients}
        loss = lambda p: ntt_loss(merge(p, state.masks), seen, x, chosen, **options)[0]  # noqa: E731
        return jax.value_and_grad(loss)(state.params)

    in_loop, alone = math.inf, math.inf
    for _ in range(3):  # in turns, so that a noisy machine is unfair to both
        alone = min(
            alone, milliseconds(lambda: jax.block_until_ready(bare(states[0], students.teacher_params, x)), repeats=5)
        )
        chunk = milliseconds(lambda: jax.block_until_ready(students.advance(states, 0, steps)), repeats=2)
        in_loop = min(in_loop, chunk / steps)
    whole = Plan.of(students.recipe, IMAGES[data]).steps
    return {
        "loop_ms": round(in_loop, 2),
        "bare_ms": round(alone, 2),
        "overhead": round(in_loop / alone - 1, 3),
        "search_steps": whole,
        "search_minutes": round(whole * in_loop / 60_000, 1),
    }


def collectives(model: str, data: str, outputs: int | None, devices: int, batch: int) -> dict[str, Any]:
    """How often devices speak per step and how many bytes each one gets, from the compiled program."""
    students = machinery(model, data, outputs, devices, batch)
    program = students.lowered(students.start()).compile().as_text()
    found: dict[str, dict[str, int]] = {}
    for kind in COLLECTIVES:
        types = re.findall(rf"= (.*?) {kind}(?:-start)?\(", program)
        if types:
            found[kind] = {"count": len(types), "bytes": sum(map(_bytes, types))}
    return found


def _bytes(types: str) -> int:
    """The size of a program's value from its type, such as "f32[2,3]{1,0}" or a tuple of these."""
    sizes = {"f32": 4, "s32": 4, "u32": 4, "f64": 8, "pred": 1}
    arrays = re.findall(r"(\w+)\[([\d,]*)\]", types)
    return sum(sizes[kind] * math.prod(int(n) for n in shape.split(",") if n) for kind, shape in arrays)


def run() -> dict[str, Any]:
    """The loop's overhead on one device; collectives on 2, 4 and 8, batch grown with the devices."""
    loops, talks = [], []
    with console.progress_bar() as bar:
        task = bar.add_task("search steps", total=len(CASES) * (1 + len(DEVICES)), note="")
        for model, data, outputs, steps in CASES:
            case = {"model": model, "outputs": outputs or 10}
            loops.append({**case, **alone(overhead, model, data, outputs, steps)})
            bar.update(task, advance=1, note=f"{model} {loops[-1]['loop_ms']} ms")
            for devices in DEVICES:
                batch = 8 * devices
                talk = alone(collectives, model, data, outputs, devices, batch, devices=devices)
                talks.append({**case, "devices": devices, "batch": batch, "per_step": talk})
                bar.update(task, advance=1, note=f"{model} on {devices} devices")
    what = (
        "a search's step in its loop beside its parts alone, and the minutes of the recipe's steps at that pace; bytes "
        "that each device gets per step, by collective"
    )
    return {"what": what, "loop": loops, "communication": talks, **origin()}
