"""Peer: value and gradient of the kernel loss with neural-tangents' structured derivatives, as JSON.

    python neural_tangents_step.py lenet5 64 [vmap] [seconds]

Needs jax 0.4.21 and neural-tangents 0.6.5: an environment of its own. `vmap` (1 or 0) says whether neural-tangents may
assume that examples are independent; steps are repeated for `seconds`, and then in a compiled loop (0: one step only).
"""

import json
import resource
import sys
import time

import jax
import jax.numpy as jnp
import neural_tangents as nt
from jax import lax

CONVS = {
    "lenet300": [],
    "lenet5": [(5, 20, True), (5, 50, True)],
    "conv4": [(3, 64, 0), (3, 64, 1), (3, 128, 0), (3, 128, 1)],
}
LINEARS = {"lenet300": [300, 100, 10], "lenet5": [500, 10], "conv4": [512, 10]}
LOOP_STEPS = 5
SHAPES = {"lenet300": (28, 28, 1), "lenet5": (28, 28, 1), "conv4": (32, 32, 3)}


def network(name):
    """(initial parameters, apply) of one of the paper's networks in plain JAX."""
    key = jax.random.PRNGKey(0)
    params, (height, width, channels) = [], SHAPES[name]
    for window, outputs, pool in CONVS[name]:
        key, sub = jax.random.split(key)
        fan = window * window * (channels + outputs)
        params.append(
            (jax.random.normal(sub, (window, window, channels, outputs)) * (2 / fan) ** 0.5, jnp.zeros(outputs))
        )
        height, width, channels = height - window + 1, width - window + 1, outputs
        height, width = (height // 2, width // 2) if pool else (height, width)
    inputs = height * width * channels
    for outputs in LINEARS[name]:
        key, sub = jax.random.split(key)
        params.append((jax.random.normal(sub, (inputs, outputs)) * (2 / (inputs + outputs)) ** 0.5, jnp.zeros(outputs)))
        inputs = outputs

    def apply(params, x, **_):
        layers = iter(params)
        for _, _, pool in CONVS[name]:
            kernel, bias = next(layers)
            x = lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")) + bias
            if pool:
                x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
            x = jax.nn.relu(x)
        x = x.reshape(x.shape[0], -1)
        for i in range(len(LINEARS[name])):
            kernel, bias = next(layers)
            x = x @ kernel + bias
            x = jax.nn.relu(x) if i < len(LINEARS[name]) - 1 else x
        return x

    return params, apply


def best_of(work, seconds):
    """The best milliseconds of at least three runs, for at least so many seconds; one run before warms up."""
    jax.block_until_ready(work())
    times = []
    while len(times) < 3 or sum(times) < seconds:
        began = time.perf_counter()
        jax.block_until_ready(work())
        times.append(time.perf_counter() - began)
    return 1000 * min(times)


def main(name, n=64, vmap=1, seconds=2):
    """Prints {"milliseconds": best, "loop_milliseconds": best in a loop, "peak_mib": ..., "version": ...}."""
    params, apply = network(name)
    kernel = nt.empirical_ntk_fn(
        apply,
        trace_axes=(),
        vmap_axes=0 if vmap else None,
        implementation=nt.NtkImplementation.STRUCTURED_DERIVATIVES,
    )
    x = jax.random.normal(jax.random.PRNGKey(1), (n, *SHAPES[name]))
    target = jnp.zeros((n // 2, n // 2, 10, 10))

    @jax.jit
    def step(params, x):
        def loss(params):
            return jnp.mean((kernel(x[: n // 2], x[n // 2 :], params) - target) ** 2)

        return jax.value_and_grad(loss)(params)

    @jax.jit
    def loop(params, x):
        def descend(_, params):
            return jax.tree_util.tree_map(lambda value, slope: value - 1e-9 * slope, params, step(params, x)[1])

        return lax.fori_loop(0, LOOP_STEPS, descend, params)

    result = {"milliseconds": best_of(lambda: step(params, x), seconds)}
    result["peak_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    if seconds:
        result["loop_milliseconds"] = best_of(lambda: loop(params, x), seconds) / LOOP_STEPS
    print(json.dumps({**result, "version": nt.__version__}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
