"""Value and gradient of the student's kernel loss against neural-tangents' structured derivatives."""

from __future__ import annotations

import resource
import time
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nttzoo import architectures, console, pruning
from nttzoo.bench.measure import PeerError, alone, gigaflop, gigaflop_per_second, milliseconds, run_peer
from nttzoo.nn import merge_params, split_params
from nttzoo.ntk import empirical_ntk, kernel_distance, spread_outputs
from nttzoo.provenance import origin

# architecture, batch, outputs sampled (None: all), rounds in turns with the peer
CASES: list[tuple[str, int, int | None, int]] = [
    ("lenet300", 64, None, 2),
    ("lenet5", 64, None, 2),
    ("conv4", 32, None, 1),
    ("conv4", 32, 1, 0),
]
GROWTH = (16, 32, 64, 128, 256)
PEER_LIMIT = 300.0


def step(name: str, batch: int, sampled: int | None, tangents: str = "all", repeats: int = 5) -> dict[str, Any]:
    """Milliseconds of value and gradient of the kernel loss of a 3 % student, and this process's peak memory.

    Also the milliseconds of a step in a compiled loop, as a search takes them, and the work: gigaflop of products.
    """
    student = architectures.create(name, rngs=0)
    student.eval()
    pruning.prune(student, "magnitude", density=0.03)
    graph, params, rest = split_params(student)
    x = jax.random.normal(jax.random.key(1), (batch, *student.input_shape))
    x1, x2 = x[: batch // 2], x[batch // 2 :]
    outputs = None if sampled is None else spread_outputs(jax.random.key(2), batch, 10, sampled)
    size = 10 if sampled is None else sampled
    teacher = jnp.zeros((batch // 2, batch // 2, size, size))

    @jax.jit
    def value_and_gradient(params: Any, x1: Any, x2: Any) -> Any:
        def loss(params: Any) -> Any:
            model = merge_params(graph, params, rest)
            return kernel_distance(model, teacher, x1, x2, tangents=tangents, outputs=outputs)  # type: ignore[arg-type]

        return jax.value_and_grad(loss)(params)

    @jax.jit
    def loop(params: Any, x1: Any, x2: Any) -> Any:
        def descend(_: Any, params: Any) -> Any:
            gradient = value_and_gradient(params, x1, x2)[1]
            return jax.tree.map(lambda value, slope: value - 1e-9 * slope, params, gradient)

        return lax.fori_loop(0, repeats, descend, params)

    best = milliseconds(lambda: jax.block_until_ready(value_and_gradient(params, x1, x2)), repeats=repeats)
    peak = peak_mib()
    loops = milliseconds(lambda: jax.block_until_ready(loop(params, x1, x2)), repeats=2)
    return {
        "milliseconds": best,
        "peak_mib": peak,
        "loop_milliseconds": loops / repeats,
        "gigaflop": gigaflop(value_and_gradient, params, x1, x2),
    }


def thousand() -> dict[str, Any]:
    """The traced kernel of Conv-4 between 1000 images, which must not take more than a quarter of the memory."""
    model = architectures.create("conv4", rngs=0)
    model.eval()
    x = jax.random.normal(jax.random.key(1), (1000, *model.input_shape))
    began = time.perf_counter()
    jax.block_until_ready(empirical_ntk(model, x, outputs="trace"))
    return {"seconds": round(time.perf_counter() - began), "peak_mib": peak_mib()}


def peak_mib() -> int:
    """This process's peak memory so far."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def run(*, peer_python: str, growth: bool = False) -> dict[str, Any]:
    """Our step and the peer's in turns at the paper's batch sizes; `growth`: also how both grow with it."""
    cases, curves = [], []
    speed = gigaflop_per_second()
    with console.progress_bar() as bar:
        task = bar.add_task("kernel steps", total=len(CASES) + (2 * len(GROWTH) + 1 if growth else 0), note="")
        for name, batch, sampled, rounds in CASES:
            ours = [alone(step, name, batch, sampled) for _ in range(max(rounds, 1))]
            active = alone(step, name, batch, sampled, "active")
            theirs = [_peer(name, batch, peer_python) for _ in range(rounds)]
            case = {"model": name, "batch": batch, "outputs": sampled or 10, **_best(ours, "nttzoo")}
            case["nttzoo_loop_ms"] = round(min(one["loop_milliseconds"] for one in ours), 2)
            case |= {
                "gigaflop": round(ours[0]["gigaflop"], 3),
                "floor_ms": round(1000 * ours[0]["gigaflop"] / speed, 2),
            }
            case |= _best([active], "nttzoo_active")
            if theirs:
                case |= _best(theirs, "peer")
                case["ratio"] = case["peer_ms"] / case["nttzoo_ms"]
            cases.append(case)
            bar.update(task, advance=1, note=f"{name} {case['nttzoo_ms']:.1f} ms")
        peer_lives = {"lenet300": True, "lenet5": True}
        for name in peer_lives:
            for batch in GROWTH if growth else ():
                point = {"model": name, "batch": batch, **_best([alone(step, name, batch, None, "all", 2)], "nttzoo")}
                if peer_lives[name]:
                    try:
                        point |= _best([_peer(name, batch, peer_python)], "peer")
                    except PeerError as error:
                        peer_lives[name] = False
                        point["peer_stopped"] = type(error).__name__ + ": " + str(error)[:80]
                curves.append(point)
                bar.update(task, advance=1, note=f"{name} n={batch}")
        large = None
        if growth:
            large = alone(thousand)
            bar.update(task, advance=1, note="conv4, 1000 images")
    what = (
        "value and gradient of the kernel loss, exact kernel unless outputs < 10; best of rounds in turns. loop: a "
        "step in a compiled loop, as a search takes them; floor: the step's products at the speed of a large one"
    )
    return {
        "what": what,
        "gigaflop_per_second": round(speed),
        "peer": "neural-tangents 0.6.5, structured derivatives, vmap_axes=0, on jax 0.4.21",
        "cases": cases,
        "growth": curves,
        "conv4_trace_of_1000_images": large,
        **origin(),
    }


def _peer(name: str, batch: int, python: str) -> dict[str, Any]:
    repeats = "1" if name == "conv4" else "3"
    return run_peer("neural_tangents_step", name, str(batch), "1", repeats, python=python, timeout=PEER_LIMIT)


def _best(runs: list[dict[str, Any]], who: str) -> dict[str, Any]:
    best = min(runs, key=lambda run: run["milliseconds"])
    return {f"{who}_ms": round(best["milliseconds"], 2), f"{who}_peak_mib": best["peak_mib"]}
