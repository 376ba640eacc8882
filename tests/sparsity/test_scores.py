import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nttzoo import architectures, nn
from nttzoo.errors import OptionError, ShapeError
from nttzoo.sparsity import allocation, masks, schemes, scores
from nttzoo.sparsity.pruning import METHODS, Method, prune

FIRST = np.array([[1.0, -2.0, 0.5], [0.5, 3.0, -1.0]])
SECOND = np.array([[2.0, 0.1], [-1.0, 0.5], [0.25, -4.0]])
IMAGES = np.array([[1.0, 2.0], [-3.0, 0.5], [0.5, -1.0], [2.0, 1.0]])
LABELS = np.array([0, 1, 1, 0])


class Tiny(nnx.Module):
    """2 - 3 - 2 with ReLU; biases are there, and small."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.first = nn.Linear(2, 3, rngs=rngs, param_dtype=jnp.float64)
        self.second = nn.Linear(3, 2, rngs=rngs, param_dtype=jnp.float64)
        self.first.kernel[...] = jnp.array(FIRST)
        self.second.kernel[...] = jnp.array(SECOND)
        self.first.bias[...] = jnp.array([0.1, -0.1, 0.2])

    def __call__(self, x):
        return self.second(nnx.relu(self.first(x)))


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def forward(kernels, x):
    return jax.nn.relu(x @ kernels[0] + jnp.array([[0.1, -0.1, 0.2]])) @ kernels[1]


def loss(kernels):
    logits = forward(kernels, IMAGES)
    return (jax.nn.logsumexp(logits, axis=1) - logits[jnp.arange(4), LABELS]).sum()


def check(found, *expected):
    for name, values in zip(("first", "second"), expected, strict=True):
        np.testing.assert_allclose(found[name,], values, rtol=1e-9, atol=1e-12)


def batch():
    return jnp.array(IMAGES), jnp.array(LABELS)


def test_synflow_by_hand():
    # R = sum over paths of |w1| |w2|: hidden unit j gets c_j in and hands out d_j.
    into, out = np.array([1.5, 5.0, 1.5]), np.array([2.1, 1.5, 4.25])
    check(scores.synflow_scores(Tiny(), (2,)), np.abs(FIRST) * out, np.abs(SECOND) * into[:, None])


def test_synflow_is_conserved_from_layer_to_layer():
    network = architectures.create("lenet5", input_shape=(16, 16, 1), rngs=0)
    totals = [float(s.sum()) for s in scores.synflow_scores(network, (16, 16, 1)).values()]
    np.testing.assert_allclose(totals, totals[0], rtol=1e-4)


@pytest.mark.slow
def test_grasp_is_the_weight_times_the_hessian_times_the_gradient():
    def flat(vector):
        return loss((vector[:6].reshape(2, 3), vector[6:].reshape(3, 2)))

    vector = jnp.concatenate([FIRST.ravel(), SECOND.ravel()])
    expected = vector * (jax.hessian(flat)(vector) @ jax.grad(flat)(vector))
    check(scores.grasp_scores(Tiny(), batch()), expected[:6].reshape(2, 3), expected[6:].reshape(3, 2))


def test_grasp_keeps_what_the_gradients_norm_would_miss():
    """For a small step toward zero, the squared norm of the gradient falls by twice the score."""
    found = scores.grasp_scores(Tiny(), batch())["second",]

    def norm(kernels):
        return sum(jnp.square(g).sum() for g in jax.grad(loss)(kernels))

    step = 1e-6
    for place in ((0, 0), (1, 1), (2, 0)):
        nearer = SECOND.copy()
        nearer[place] *= 1 - step
        lost = norm((jnp.array(FIRST), jnp.array(SECOND))) - norm((jnp.array(FIRST), jnp.array(nearer)))
        np.testing.assert_allclose(lost / step, 2 * found[place], rtol=1e-3, atol=1e-6)


def test_force_scores_pruned_weights_at_the_pruned_network():
    model = Tiny()
    model.first.mask[...] = jnp.array([[1, 0, 1], [1, 1, 0]], bool)
    masked = (jnp.array(FIRST) * model.first.mask[...], jnp.array(SECOND))
    gradient = jax.grad(loss)(masked)
    check(scores.force_scores(model, batch()), *(np.abs(k * g) for k, g in zip((FIRST, SECOND), gradient, strict=True)))
    assert (scores.force_scores(model, batch())["first",] > 0)[0, 1]
    assert (scores.snip_scores(model, batch())["first",] == 0)[0, 1]


def test_px_by_hand():
    model = Tiny()
    model.first.mask[...] = jnp.array([[1, 1, 1], [1, 0, 1]], bool)
    first = FIRST * np.asarray(model.first.mask[...])
    active = IMAGES @ first + [0.1, -0.1, 0.2] > 0  # [images, hidden]
    # Squared inputs that reach hidden unit j through surviving weights, for the images for which it is on.
    reach = (active * (IMAGES**2 @ np.asarray(model.first.mask[...]))).sum(0)
    z2 = np.full(2, reach.sum()) / (2 * 3)  # each layer divides by its fan-in
    through = (SECOND**2 * z2).sum(1)
    expected = first**2 * through, SECOND**2 * z2 * (first**2).sum(0)[:, None]
    check(scores.px_scores(model, jnp.array(IMAGES)), *expected)


def test_ntk_sap_of_a_linear_network_by_hand(monkeypatch):
    monkeypatch.setattr(scores, "PERTURBED_BATCHES", 1)
    model = nnx.Sequential(nn.Linear(4, 3, rngs=nnx.Rngs(0), param_dtype=jnp.float64))
    model.layers[0].mask[...] = jnp.arange(12).reshape(4, 3) % 5 != 0
    (found,) = scores.ntk_sap_scores(model, (4,), jax.random.key(3)).values()
    inputs_key, _, noise_key = jax.random.split(jax.random.split(jax.random.key(3), 1)[0], 3)
    x = jax.random.normal(inputs_key, (scores.PERTURBED_INPUTS, 4))
    noise = jax.random.normal(jax.random.split(noise_key, 1)[0], (4, 3), jnp.float64)
    # Outputs move by eps x (noise * m), whatever the weights: Q = eps^2 |x (noise * m)|^2.
    moved = x @ (noise * model.layers[0].mask[...])
    np.testing.assert_allclose(found, np.abs(2 * scores.PERTURBATION**2 * noise * (x.T @ moved)), rtol=1e-6)


def test_rounds_by_hand():
    """SynFlow in three rounds, with one threshold over both layers, beside a loop in NumPy."""
    method = Method(scores.synflow_scores, needs="shape", rounds=3)
    model = prune(Tiny(), method, density=0.25, scheme="global", input_shape=(2,))
    kept = [np.ones_like(FIRST), np.ones_like(SECOND)]
    for done in (1, 2, 3):
        first, second = np.abs(FIRST) * kept[0], np.abs(SECOND) * kept[1]
        ranked = np.concatenate([(first * second.sum(1)).ravel(), (second * first.sum(0)[:, None]).ravel()])
        ranked[np.concatenate([k.ravel() for k in kept]) == 0] = -1
        best = np.argsort(-ranked, kind="stable")[: round(0.25 ** (done / 3) * 12)]
        together = np.isin(np.arange(12), best)
        kept = [together[:6].reshape(2, 3), together[6:].reshape(3, 2)]
    np.testing.assert_array_equal(model.first.mask[...], kept[0])
    np.testing.assert_array_equal(model.second.mask[...], kept[1])


@pytest.mark.parametrize("returning", [False, True])
def test_pruned_weights_return_only_where_the_method_lets_them(returning):
    masks_seen = []

    def turning(model, seen, key):
        """Ranks weights from the first on, and in the second round from the last on."""
        masks_seen.append(np.asarray(model.first.mask[...]).ravel())
        order = [6, 5, 4, 3, 2, 1] if len(masks_seen) == 1 else [1, 2, 3, 4, 5, 6]
        return {("first",): jnp.array(order, float).reshape(2, 3), ("second",): jnp.array(order, float).reshape(3, 2)}

    model = prune(Tiny(), Method(turning, needs="nothing", rounds=2, returning=returning), density=1 / 4)
    np.testing.assert_array_equal(masks_seen[1], [1, 1, 1, 0, 0, 0])
    expected = [0, 0, 0, 0, 1, 1] if returning else [0, 1, 1, 0, 0, 0]
    np.testing.assert_array_equal(np.asarray(model.first.mask[...]).ravel(), expected)


@pytest.mark.parametrize("scheme", schemes.SCHEMES)
@pytest.mark.parametrize("method", ["iterative_snip", "force", "grasp", "synflow", "ntk_sap", "px", "erk"])
def test_every_method_keeps_exactly_as_many_weights_as_the_scheme_says(method, scheme):
    model = architectures.create("lenet300", input_shape=(6, 6, 1), num_classes=4, rngs=0)
    images = jnp.asarray(np.random.default_rng(0).normal(size=(12, 6, 6, 1)), jnp.float32)
    asked = allocation.allocate(allocation.describe(model), 0.03, "erk" if method == "erk" else scheme)
    prune(model, method, density=0.03, scheme=scheme, batch=(images, jnp.arange(12) % 4), rngs=0)
    kept = {layer.name: layer.kept for layer in masks.density_report(model).layers}
    for group in asked:
        assert sum(kept[layer.name] for layer in group.layers) == group.kept


@pytest.mark.filterwarnings("ignore:no weight survived")
def test_synflow_keeps_a_path_where_snip_loses_a_layer():
    """The published relation: at extreme sparsity one-shot SNIP empties layers, SynFlow never does."""
    images = jnp.asarray(np.random.default_rng(0).normal(size=(32, 16, 16, 1)), jnp.float32)
    kept = {}
    for method in ("snip", "synflow"):
        model = architectures.create("lenet5", input_shape=(16, 16, 1), rngs=0)
        prune(model, method, density=2e-4, scheme="global", batch=(images, jnp.arange(32) % 10))
        kept[method] = [layer.kept for layer in masks.density_report(model).layers]
    assert min(kept["synflow"]) > 0
    assert min(kept["snip"]) == 0


def test_what_a_method_needs_is_asked_for():
    for method in ("synflow", "ntk_sap"):
        with pytest.raises(ShapeError, match="needs the shape of one input"):
            prune(Tiny(), method, density=0.5)
    with pytest.raises(OptionError, match="needs a batch of images"):
        prune(Tiny(), "px", density=0.5)
    for method in ("force", "grasp", "iterative_snip"):
        with pytest.raises(OptionError, match="needs labels"):
            prune(Tiny(), method, density=0.5, batch=jnp.array(IMAGES))
    assert {name for name, method in METHODS.items() if method.needs == "labels"} == {
        "snip", "iterative_snip", "force", "grasp"
    }  # fmt: skip
