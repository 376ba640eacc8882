"""Value and gradient of the student's kernel loss against neural-tangents' structured derivatives."""

from __future__ import annotations

import resource
import time
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.measure import PeerError, alone, milliseconds, products, products_milliseconds, run_peer
from nttzoo import architectures
from nttzoo._util import console
from nttzoo._util.provenance import origin
from nttzoo.nn import merge_params, split_params
from nttzoo.ntk import empirical_ntk, kernel_distance, spread_outputs
from nttzoo.sparsity import pruning

# architecture, batch, outputs sampled (None: all), rounds in turns with the peer (0: it cannot do that)
CASES: list[tuple[str, int, int | None, int]] = [
    ("lenet300", 64, None, 5),
    ("lenet5", 64, None, 3),
    ("conv4", 32, None, 1),
    ("conv4", 32, 1, 0),
]
GROWTH = (16, 32, 64, 128, 256)
PEER_LIMIT = 300.0
LOOP_STEPS = 5


def step(name: str, batch: int, sampled: int | None, tangents: str = "all", seconds: float = 2.0) -> dict[str, Any]:
    """Milliseconds of value and gradient of the kernel loss of a 3 % student, and this process's peak memory.

    Also the milliseconds of a step in a compiled loop, as a search takes them.
    """
    value_and_gradient, arguments = _kernel_step(name, batch, sampled, tangents)

    @jax.jit
    def loop(params: Any, x1: Any, x2: Any) -> Any:
        def descend(_: Any, params: Any) -> Any:
            gradient = value_and_gradient(params, x1, x2)[1]
            return jax.tree.map(lambda value, slope: value - 1e-9 * slope, params, gradient)

        return lax.fori_loop(0, LOOP_STEPS, descend, params)

    best = milliseconds(lambda: jax.block_until_ready(value_and_gradient(*arguments)), seconds=seconds)
    peak = peak_mib()
    loops = milliseconds(lambda: jax.block_until_ready(loop(*arguments)), seconds=seconds)
    return {"milliseconds": best, "peak_mib": peak, "loop_milliseconds": loops / LOOP_STEPS}


def products_alone(name: str, batch: int, sampled: int | None) -> dict[str, Any]:
    """The work of a step's matrix products in gigaflop, and their milliseconds when each is run by itself, in sum."""
    value_and_gradient, arguments = _kernel_step(name, batch, sampled, "all")
    found = products(value_and_gradient, *arguments)
    return {
        "gigaflop": sum(count * product.flop for product, count in found.items()) / 1e9,
        "milliseconds": products_milliseconds(found),
    }


def _kernel_step(name: str, batch: int, sampled: int | None, tangents: str) -> tuple[Any, tuple[Any, ...]]:
    """Value and gradient of the kernel loss as a compiled function, and its arguments: parameters, x1, x2."""
    student = architectures.create(name, rngs=0)
    student.eval()
    pruning.prune(student, "magnitude", density=0.03)
    graph, params, rest = split_params(student)
    x = jax.random.normal(jax.random.key(1), (batch, *student.input_shape))
    outputs = None if sampled is None else spread_outputs(jax.random.key(2), batch, 10, sampled)
    size = 10 if sampled is None else sampled
    teacher = jnp.zeros((batch // 2, batch // 2, size, size))

    @jax.jit
    def value_and_gradient(params: Any, x1: Any, x2: Any) -> Any:
        def loss(params: Any) -> Any:
            model = merge_params(graph, params, rest)
            return kernel_distance(model, teacher, x1, x2, tangents=tangents, outputs=outputs)  # type: ignore[arg-type]

        return jax.value_and_grad(loss)(params)

    return value_and_gradient, (params, x[: batch // 2], x[batch // 2 :])


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
    with console.progress_bar() as bar:
        task = bar.add_task("kernel steps", total=len(CASES) + (2 * len(GROWTH) + 1 if growth else 0), note="")
        for case in CASES:
            cases.append(_case(*case, peer_python))
            bar.update(task, advance=1, note=f"{case[0]} {cases[-1]['nttzoo_ms']:.1f} ms")
        peer_lives = {"lenet300": True, "lenet5": True}
        for name in peer_lives:
            for batch in GROWTH if growth else ():
                point = {"model": name, "batch": batch, **_best([alone(step, name, batch, None)], "nttzoo")}
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
        "value and gradient of the kernel loss, exact kernel unless outputs < 10; best of rounds in turns, of which "
        "ratios gives each. loop: a step in a compiled loop, as a search takes them; products: the step's matrix "
        "products, each run by itself, in sum"
    )
    return {
        "what": what,
        "peer": "neural-tangents 0.6.5, structured derivatives, vmap_axes=0, on jax 0.4.21",
        "cases": cases,
        "growth": curves,
        "conv4_trace_of_1000_images": large,
        **origin(),
    }


def _case(name: str, batch: int, sampled: int | None, rounds: int, peer_python: str) -> dict[str, Any]:
    """One row of the table: our step and the peer's take turns."""
    ours, theirs = [], []
    for _ in range(max(rounds, 1)):
        ours.append(alone(step, name, batch, sampled))
        theirs += [_peer(name, batch, peer_python)] if rounds else []
    bare = alone(products_alone, name, batch, sampled)
    row = {"model": name, "batch": batch, "outputs": sampled or 10, **_best(ours, "nttzoo")}
    row |= {"gigaflop": round(bare["gigaflop"], 3), "products_ms": round(bare["milliseconds"], 2)}
    row |= _best([alone(step, name, batch, sampled, "active")], "nttzoo_active")
    if theirs:
        row |= _best(theirs, "peer")
        row["ratio"] = round(row["peer_ms"] / row["nttzoo_ms"], 2)
        pairs = zip(ours, theirs, strict=True)
        row["ratios"] = [round(peer["milliseconds"] / own["milliseconds"], 2) for own, peer in pairs]
        if "peer_loop_ms" in row:
            row["loop_ratio"] = round(row["peer_loop_ms"] / row["nttzoo_loop_ms"], 2)
    return row


def _peer(name: str, batch: int, python: str) -> dict[str, Any]:
    seconds = "0" if name == "conv4" else "2"
    return run_peer("neural_tangents_step", name, str(batch), "1", seconds, python=python, timeout=PEER_LIMIT)


def _best(runs: list[dict[str, Any]], who: str) -> dict[str, Any]:
    """The best times of several runs, and the memory of the first; a loop's time where there is one."""
    best = {f"{who}_ms": round(min(run["milliseconds"] for run in runs), 2), f"{who}_peak_mib": runs[0]["peak_mib"]}
    if "loop_milliseconds" in runs[0]:
        best[f"{who}_loop_ms"] = round(min(run["loop_milliseconds"] for run in runs), 2)
    return best
