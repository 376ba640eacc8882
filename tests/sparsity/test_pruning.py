import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nttzoo import architectures, nn
from nttzoo.errors import DensityError, ModelError, OptionError, ShapeError, UnknownName
from nttzoo.sparsity import pruning
from nttzoo.sparsity.pruning import METHODS, Method, prune
from nttzoo.sparsity.schemes import Group

INIT = {
    "kernel_init": lambda key, shape, dtype: jax.random.normal(key, shape, dtype),
    "bias_init": nnx.initializers.ones,
}


class Mlp(nnx.Module):
    def __init__(self, rngs):
        self.first = nn.Linear(6, 5, rngs=rngs, **INIT)
        self.second = nn.Linear(5, 4, rngs=rngs, **INIT)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.second(self.dropout(jnp.tanh(self.first(x))))


def mlp():
    return Mlp(nnx.Rngs(0))


def normal(seed, shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


IMAGES, LABELS = normal(0, (8, 6)), jnp.arange(8) % 4


def masks_of(model):
    return {path[0]: np.asarray(layer.mask[...]) for path, layer in nn.masked_layers(model).items()}


def arrays_of(model):
    return jax.tree.map(np.array, nnx.to_pure_dict(nnx.state(model, (nnx.Param, nn.Mask))))


def best(scores, density):
    """The mask of the `density` largest scores, by sorting."""
    flat = np.asarray(scores).ravel()
    mask = np.zeros(flat.size, bool)
    mask[np.argsort(-flat, kind="stable")[: round(density * flat.size)]] = True
    return mask.reshape(np.shape(scores))


def forward(kernels, x):
    hidden = jnp.tanh(x @ kernels["first"] + 1)
    return hidden @ kernels["second"] + 1  # no dropout


def cross_entropy(kernels):
    logits = forward(kernels, IMAGES)
    chosen = logits[jnp.arange(8), LABELS]
    return (jnp.log(jnp.exp(logits).sum(1)) - chosen).sum()


def squared_logits(kernels):
    return (forward(kernels, IMAGES) ** 2).sum()


def sensitivity(quantity, kernels):
    return {name: np.abs(kernels[name] * g) for name, g in jax.grad(quantity)(kernels).items()}


SCORES = {
    "magnitude": lambda kernels: {name: np.abs(k) for name, k in kernels.items()},
    "snip": lambda kernels: sensitivity(cross_entropy, kernels),
    "logit_snip": lambda kernels: sensitivity(squared_logits, kernels),
}


@pytest.mark.parametrize("scheme", ["layerwise", "global"])
@pytest.mark.parametrize("method", SCORES)
def test_masks_are_the_best_scores_by_hand(method, scheme):
    model = mlp()
    kernels = {path[0]: layer.kernel[...] for path, layer in nn.masked_layers(model).items()}
    scores = SCORES[method](kernels)
    assert prune(model, method, density=0.4, scheme=scheme, batch=(IMAGES, LABELS)) is model
    if scheme == "layerwise":
        expected = {name: best(s, 0.4) for name, s in scores.items()}
    else:
        together = best(np.concatenate([s.ravel() for s in scores.values()]), 0.4)
        expected = {"first": together[:30].reshape(6, 5), "second": together[30:].reshape(5, 4)}
    np.testing.assert_equal(masks_of(model), expected)


@pytest.mark.parametrize("method", ["snip", "logit_snip"])
def test_sensitivities_are_the_gradient_times_the_weight(method):
    model = mlp()
    kernels = {path[0]: layer.kernel[...] for path, layer in nn.masked_layers(model).items()}
    batch = (IMAGES, LABELS) if method == "snip" else IMAGES
    scores = METHODS[method].score(model, batch, None)
    for name, expected in SCORES[method](kernels).items():
        np.testing.assert_allclose(scores[name,], expected, rtol=1e-4, atol=1e-5)


def test_scoring_leaves_weights_mode_and_random_streams_alone():
    model = mlp()
    before = jax.tree.map(np.array, jax.tree.leaves(nnx.state(model, nnx.Not(nnx.RngKey))))
    METHODS["snip"].score(model, (IMAGES, LABELS), None)
    after = jax.tree.leaves(nnx.state(model, nnx.Not(nnx.RngKey)))
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not model.dropout.deterministic


def test_already_pruned_weights_have_no_sensitivity():
    model = mlp()
    model.first.mask[...] = jnp.eye(6, 5, dtype=bool)
    scores = METHODS["logit_snip"].score(model, IMAGES, None)
    np.testing.assert_array_equal(np.asarray(scores["first",]) > 0, np.eye(6, 5, dtype=bool))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("density", [0.07, 0.5])
@pytest.mark.parametrize("scheme", ["layerwise", "global"])
@pytest.mark.filterwarnings("ignore:no weight survived")  # of 3 or 4 weights in all
def test_exactly_the_rounded_number_survives(method, density, scheme):
    made = masks_of(prune(mlp(), method, density=density, scheme=scheme, batch=(IMAGES, LABELS), rngs=0))
    if method != "erk" and (scheme == "layerwise" or "random" in method):
        assert {name: m.sum() for name, m in made.items()} == {
            "first": round(density * 30),
            "second": round(density * 20),
        }
    else:
        assert sum(m.sum() for m in made.values()) == round(density * 50)


@pytest.mark.parametrize("method", ["random", "scaled_random"])
def test_random_masks_are_decided_by_the_key(method):
    by_key = {}
    for name, key in {"0": 0, "numpy": np.int64(0), "jax": jax.random.key(0), "1": 1}.items():
        by_key[name] = masks_of(prune(mlp(), method, density=0.3, rngs=key))
    np.testing.assert_equal(by_key["0"], by_key["numpy"])
    np.testing.assert_equal(by_key["0"], by_key["jax"])
    assert any(np.any(by_key["0"][name] != by_key["1"][name]) for name in by_key["0"])


def test_random_masks_are_uniform_along_every_axis():
    shape = (3, 4, 20, 30)
    model = nn.Conv(20, 30, (3, 4), kernel_init=nnx.initializers.ones, rngs=nnx.Rngs(0))
    mask = np.asarray(prune(model, "random", density=0.3, rngs=0).mask[...])
    assert mask.shape == shape
    for axis, length in enumerate(shape):
        kept = mask.sum(tuple(a for a in range(4) if a != axis))
        slice_size = mask.size / length
        # Each slice's count has (at most) a binomial's spread about its mean.
        assert np.abs(kept - 0.3 * slice_size).max() < 5 * np.sqrt(slice_size * 0.3 * 0.7)
        assert length < 10 or kept.std() > 0.3 * np.sqrt(slice_size * 0.3 * 0.7), "nor is it suspiciously even"


def test_layers_of_one_shape_get_different_random_masks():
    model = nnx.Sequential(*(nn.Linear(20, 20, kernel_init=nnx.initializers.ones, rngs=nnx.Rngs(0)) for _ in range(2)))
    first, second = (np.asarray(layer.mask[...]) for layer in prune(model, "random", density=0.5, rngs=0).layers)
    assert 0.35 < (first == second).mean() < 0.65


def test_random_ignores_and_keeps_the_weights():
    model = mlp()
    before = arrays_of(model)
    after = arrays_of(prune(model, "random", density=0.3, rngs=0))
    np.testing.assert_array_equal(before["first"]["kernel"], after["first"]["kernel"])
    np.testing.assert_array_equal(before["second"]["kernel"], after["second"]["kernel"])


ONES = {"kernel_init": nnx.initializers.ones, "rngs": nnx.Rngs(0)}


@pytest.mark.parametrize(
    ("layer", "fan_in"),
    [
        (nn.Linear(100, 60, **ONES), 100),
        (nn.Conv(20, 30, (3, 3), **ONES), 180),
        (nn.Conv(40, 30, (3, 3), feature_group_count=2, **ONES), 180),
        (nn.LinearGeneral((10, 10), (6, 10), axis=(-2, -1), **ONES), 100),
    ],
    ids=["linear", "conv", "grouped conv", "linear_general"],
)
def test_scaled_random_weights_have_kaimings_variance_after_pruning(layer, fan_in):
    density = 0.25
    prune(layer, "scaled_random", density=density, rngs=3)
    kernel, mask = np.asarray(layer.kernel[...]), np.asarray(layer.mask[...])
    for chosen in (kernel, kernel[mask]):
        assert chosen.var() == pytest.approx(2 / (fan_in * density), rel=6 * np.sqrt(2 / chosen.size))
        assert abs(chosen.mean()) < 5 * np.sqrt(2 / (fan_in * density) / chosen.size)


class Untouchable:
    def __getattribute__(self, name):
        raise AssertionError(f"a label-free method touched the labels: {name}")

    def __len__(self):
        raise AssertionError("a label-free method counted the labels")


@pytest.mark.parametrize("method", ["random", "scaled_random", "magnitude", "logit_snip"])
def test_label_free_methods_never_see_labels(method):
    with_trap = arrays_of(prune(mlp(), method, density=0.3, batch=(IMAGES, Untouchable()), rngs=0))
    without = arrays_of(prune(mlp(), method, density=0.3, batch=IMAGES, rngs=0))
    np.testing.assert_equal(with_trap, without)


def test_snip_depends_on_the_labels():
    one, other = (masks_of(prune(mlp(), "snip", density=0.3, batch=(IMAGES, y))) for y in (LABELS, LABELS[::-1]))
    assert any(np.any(one[name] != other[name]) for name in one)


def test_a_method_of_ones_own():
    seen = []

    def later_is_better(model, batch, key):
        seen.append(batch)
        return {p: jnp.arange(x.kernel.size).reshape(x.kernel.shape) for p, x in nn.masked_layers(model).items()}

    def tens(model, densities, key):
        return {path: jnp.full(x.kernel.shape, 10 * densities[path]) for path, x in nn.masked_layers(model).items()}

    model = prune(mlp(), Method(later_is_better, needs="images", redraw=tens), density=0.5, batch=(IMAGES, LABELS))
    np.testing.assert_array_equal(model.first.mask[...].ravel(), np.arange(30) >= 15)
    np.testing.assert_array_equal(model.second.kernel[...], np.full((5, 4), 5))
    assert len(seen) == 1
    np.testing.assert_array_equal(seen[0], IMAGES)


def test_a_scheme_of_ones_own():
    ours = prune(mlp(), "magnitude", density=0.5, scheme=lambda layers, density: [Group(tuple(layers), 25)])
    named = prune(mlp(), "magnitude", density=0.5, scheme="global")
    np.testing.assert_array_equal(ours.first.mask[...], named.first.mask[...])


def test_an_emptied_layer_is_warned_of_by_name():
    model = mlp()
    model.first.kernel[...] = model.first.kernel[...] * 1e-6
    with pytest.warns(UserWarning, match="no weight survived in: first"):
        prune(model, "magnitude", density=0.2, scheme="global")
    assert not model.first.mask[...].any()
    assert model.second.mask[...].sum() == 10


SCORE = lambda model, batch, key: {("first",): jnp.ones((6, 5)), ("second",): jnp.ones((5, 4))}  # noqa: E731


@pytest.mark.parametrize(
    ("method", "options", "error"),
    [
        ("magnitudes", {}, UnknownName),
        ("magnitude", {"scheme": "locally"}, UnknownName),
        *(("magnitude", {"density": d}, DensityError) for d in (0, -1, 1.5, float("nan"), True, "a")),
        ("magnitude", {"density": 0.02}, DensityError),  # 0.4 of the second layer's weights
        ("random", {"scheme": "global", "density": 0.02, "rngs": 0}, DensityError),
        ("magnitude", {"density": 0.001, "scheme": "global"}, DensityError),
        ("random", {}, OptionError),
        ("scaled_random", {}, OptionError),
        ("snip", {}, OptionError),
        ("snip", {"batch": IMAGES}, OptionError),
        ("logit_snip", {}, OptionError),
        ("snip", {"batch": (IMAGES, LABELS[:-1])}, ShapeError),
        ("snip", {"batch": (IMAGES, LABELS * 1.0)}, ShapeError),
        ("snip", {"batch": (IMAGES, LABELS[:, None])}, ShapeError),
        ("snip", {"batch": (IMAGES[:0], LABELS[:0])}, ShapeError),
        ("logit_snip", {"batch": IMAGES[:0]}, ShapeError),
        ("logit_snip", {"batch": IMAGES.at[3, 2].set(jnp.nan)}, ShapeError),
        ("snip", {"batch": (IMAGES.at[3, 2].set(jnp.inf), LABELS)}, ShapeError),
        ("snip", {"batch": (IMAGES, LABELS.at[0].set(4))}, ShapeError),
        ("snip", {"batch": (IMAGES, LABELS.at[0].set(-1))}, ShapeError),
        (Method(lambda *_: {}, needs="nothing"), {}, ModelError),
        (Method(lambda *_: {("first",): jnp.ones((6, 5))}, needs="nothing"), {}, ModelError),
        (Method(lambda *a: SCORE(*a) | {("first",): jnp.ones((1, 5))}, needs="nothing"), {}, ModelError),
        (Method(lambda *a: SCORE(*a) | {("second",): jnp.full((5, 4), jnp.nan)}, needs="nothing"), {}, ModelError),
        (Method(SCORE, needs="images"), {}, OptionError),
        (Method(SCORE, needs="nothing", uniform=True), {}, OptionError),
    ],
)
def test_whatever_is_refused_leaves_the_model_as_it_was(method, options, error):
    model = mlp()
    before = arrays_of(model)
    with pytest.raises(error):
        prune(model, method, **{"density": 0.5, **options})
    np.testing.assert_equal(arrays_of(model), before)


def test_weights_that_are_not_finite_are_refused_by_the_layers_name():
    model = mlp()
    model.second.kernel[...] = model.second.kernel[...].at[0, 0].set(jnp.nan)
    with pytest.raises(ModelError, match=r"layer 'second' are not finite"):
        prune(model, "magnitude", density=0.5)
    assert all(m.all() for m in masks_of(model).values())


@pytest.mark.parametrize("images", [jnp.ones((2, 4, 5, 1)), jnp.ones((2, 4, 4, 1), jnp.uint8)])
def test_images_that_do_not_fit_the_model_are_refused(images):
    model = architectures.create("lenet300", input_shape=(4, 4, 1), rngs=0)
    with pytest.raises(ShapeError):
        prune(model, "logit_snip", density=0.5, batch=images)
    assert all(m.all() for m in masks_of(model).values())


@pytest.mark.parametrize("method", METHODS)
def test_a_model_without_masks_is_refused(method):
    with pytest.raises(ModelError, match="sparsify"):
        prune(nnx.Linear(6, 4, rngs=nnx.Rngs(0)), method, density=0.5, batch=(IMAGES, LABELS), rngs=0)


def test_the_papers_methods_and_those_of_the_field_are_there():
    papers = {"logit_snip", "magnitude", "random", "scaled_random", "snip"}
    fields = {"erk", "force", "grasp", "iterative_snip", "ntk_sap", "px", "synflow"}
    assert set(pruning.METHODS) == papers | fields
    with pytest.raises(UnknownName, match=r"Did you mean 'logit_snip'"):
        pruning.METHODS["logitsnip"]
