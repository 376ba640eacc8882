import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_search import RECIPE, config, images, teacher, transfer, weights

from nttzoo import data, nn, search
from nttzoo.errors import (
    DensityError,
    ModelError,
    OptionError,
    TrainingError,
)
from nttzoo.search.config import Plan
from nttzoo.sparsity import masks, schemes
from nttzoo.sparsity.pruning import prune


def loss(found, student, line):
    """What the search makes small, mean over the batches before a report."""
    entry = found.reports[line]["students"][student.target.name]
    return entry["target"] + RECIPE.kernel_weight * entry["kernel"]


def test_a_density_that_need_not_fall_is_not_refused_for_it():
    (found,) = transfer(densities=(0.5,), start_density=0.5, mask_every=10).students
    assert masks.density_report(found.model).total.density == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("scheme", ["layerwise", "global"])
def test_where_the_density_falls_before_means_pruned_to_the_same_density(scheme):
    plain, falling = (transfer(schemes=(scheme,), **more).students[0] for more in ({}, {"start_density": 0.5}))
    assert falling.kernel_before == plain.kernel_before
    assert falling.target_before == plain.target_before
    assert falling.kernel_after != plain.kernel_after


# The search.


@pytest.mark.parametrize("change", [{}, {"outputs": 2}, {"tangents": "active"}], ids=str)
def test_students_come_nearer_and_stay_at_their_density(change):
    found = transfer(densities=(0.2, 0.4), schemes=("layerwise", "global"), epochs=12, **change)
    assert [s.target.name for s in found.students] == [
        "20pct-layerwise", "40pct-layerwise", "20pct-global", "40pct-global"
    ]  # fmt: skip
    for student in found.students:
        first, last = (loss(found, student, line) for line in (1, -1))
        assert last < 0.8 * first
        report = masks.density_report(student.model)
        assert report.total.kept == round(student.target.density * report.total.size)
        if student.target.scheme == "layerwise":
            assert all(x.kept == round(student.target.density * x.size) for x in report.layers)


def test_schemes_of_ones_own_densities_per_layer_and_dense_layers():
    def first_dense(layers, density):
        return schemes.each_alone(layers, [x.size if x.name == "linear1" else round(density * x.size) for x in layers])

    found = transfer(
        densities=({"linear1": 0.1, "*": 0.3}, 0.2), schemes=("erk", "budget", first_dense), exclude=("linear3",)
    )
    names = [f"{density}pct-{scheme}" for scheme in ("erk", "budget", "first_dense")
             for density in ("linear1=10+all=30", "20")]  # fmt: skip
    assert [student.target.name for student in found.students] == names
    sizes = {"linear1": 16 * 300, "linear2": 300 * 100}
    for student in found.students:
        kept = {layer.name: layer.kept for layer in masks.density_report(student.model).layers}
        assert kept["linear3"] == 100 * 3
        if isinstance(student.target.density, dict):
            first = sizes["linear1"] if student.target.scheme is first_dense else 0.1 * sizes["linear1"]
            assert kept == {"linear1": first, "linear2": 0.3 * sizes["linear2"], "linear3": 300}
        elif student.target.scheme == "erk":
            # 316 and 400: the sums of the dimensions; 6960 is a fifth of both layers.
            assert kept["linear1"] == round(6960 * 316 / 716)
            assert kept["linear1"] + kept["linear2"] == 6960
    written = config(schemes=(first_dense,), exclude=("linear3",)).to_dict()
    assert (written["schemes"], written["exclude"]) == (["first_dense"], ["linear3"])
    assert "exclude" not in config().to_dict()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["synflow", "random", "px"])
def test_a_search_can_start_from_any_label_free_method(method):
    first = transfer(start_method=method, mask_every=1000)  # the mask stays
    pruned = prune(teacher(), method, density=0.2, batch=jnp.asarray(images()[:1]), rngs=0)
    kept = {path: mask for path, (_, mask) in weights(first.students[0]).items()}
    if method != "px":  # which saw other images
        np.testing.assert_equal(kept, {p: np.asarray(x.mask[...]) for p, x in nn.masked_layers(pruned).items()})
    magnitude = transfer(mask_every=1000).students[0]
    assert any((mask != kept[path]).any() for path, (_, mask) in weights(magnitude).items())
    with pytest.raises(OptionError, match="start_method 'snip' needs labels, a search has none"):
        RECIPE.change(start_method="snip")


@pytest.mark.slow
def test_each_student_ends_as_if_searched_alone():
    together = transfer(densities=(0.2, 0.4), schemes=("layerwise", "global")).students
    for student in together:
        (alone,) = transfer(densities=(student.target.density,), schemes=(student.target.scheme,)).students
        for path, (kernel, mask) in weights(alone).items():
            np.testing.assert_array_equal(mask, weights(student)[path][1])
            np.testing.assert_allclose(kernel, weights(student)[path][0], atol=1e-6)


def test_the_first_step_by_hand():
    """Adam's first step moves every weight with a gradient by the learning rate; others and the teacher stay."""
    original = teacher()
    found = search.transfer(original, images(), config(epochs=1, batch_size=60, held_out=0.6), progress=False)
    assert found.plan.steps == 1
    for path, layer in nn.masked_layers(original).items():
        kernel, mask = weights(found.students[0])[path]
        moved = kernel - np.asarray(layer.kernel[...])
        assert np.all(moved[~mask] == 0), "pruned weights get no gradient, but stay in memory"
        changed = np.abs(moved[mask])
        # Adam divides a gradient by its own size plus 1e-8: only tiny gradients make smaller steps.
        assert np.median(changed) == pytest.approx(RECIPE.learning_rate, rel=1e-3)
        assert changed.max() < RECIPE.learning_rate * 1.001
        assert np.array_equal(mask, np.asarray(masks.keep_largest(jnp.abs(layer.kernel[...]), mask.sum())))


def test_a_layer_that_a_refresh_empties_is_warned_of_by_name():
    weak = teacher()
    weak.linear1.kernel[...] = weak.linear1.kernel[...] * 1e-6
    with pytest.warns(UserWarning, match=r"no weight survived in: linear1\."):
        search.transfer(weak, images(), config(schemes=("global",)), progress=False)


def test_gradual_reaches_the_target():
    found = transfer(densities=(0.05,), start_density=0.5, epochs=6)
    densities = [line["students"]["5pct-layerwise"]["density"] for line in found.reports]
    assert densities[0] == 0.5
    assert densities[-1] == 0.05
    assert all(a >= b for a, b in itertools.pairwise(densities))
    assert masks.density_report(found.students[0].model).layers[0].kept == round(0.05 * 4800)


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [None, 2])
def test_a_small_set_seen_again_and_again_uses_the_teachers_kernel_once(monkeypatch, outputs):
    change = {"batch_size": 60, "held_out": 0.0, "epochs": 5, "outputs": outputs}
    slow = search.transfer(teacher(), images(60), config(**change), progress=False)
    monkeypatch.setattr("nttzoo.search.teacher_table.TABLE_BYTES", 0)
    fast = search.transfer(teacher(), images(60), config(**change), progress=False)
    for path, (kernel, mask) in weights(slow.students[0]).items():
        np.testing.assert_array_equal(mask, weights(fast.students[0])[path][1])
        np.testing.assert_allclose(kernel, weights(fast.students[0])[path][0], atol=1e-5)


def test_any_nnx_model_can_be_a_teacher_and_stays_as_it_was():
    class Small(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(1, 6, (3, 3), rngs=rngs)
            self.norm = nnx.LayerNorm(6, rngs=rngs)
            self.last = nnx.Linear(6, 3, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.last(self.dropout(jax.nn.relu(self.norm(self.conv(x)))).mean((1, 2)))

    mine = Small(nnx.Rngs(0))
    before = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(mine, nnx.Param)))
    found = search.transfer(mine, images(), config(epochs=8), progress=False).students[0]
    assert found.kernel_after < found.kernel_before
    jax.tree.map(np.testing.assert_array_equal, before, nnx.to_pure_dict(nnx.state(mine, nnx.Param)))
    assert type(mine.conv) is nnx.Conv


def test_layers_of_a_masked_teacher_that_have_no_mask_stay_dense():
    class Flat(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(16, 8, rngs=rngs)
            self.last = nnx.Linear(8, 3, rngs=rngs)

        def __call__(self, x):
            return self.last(nnx.relu(self.first(x.reshape(len(x), -1))))

    teacher = nn.sparsify(Flat(nnx.Rngs(0)), exclude=["last"])
    found = search.transfer(teacher, images(), config(epochs=1), progress=False).students[0]
    assert list(nn.masked_layers(found.model)) == [("first",)]
    assert type(found.model.last) is nnx.Linear


@pytest.mark.slow
def test_the_search_never_sees_a_label(monkeypatch, tmp_path):
    """The labels are replaced by something that cannot be looked at."""

    class Untouchable:
        def __getattr__(self, name):
            raise AssertionError("a label was looked at")

        __getitem__ = __len__ = __array__ = __iter__ = __getattr__

    real = data.load("mnist5k")
    blind = dataclasses.replace(real, train=data.Labeled(real.train.images, Untouchable()))
    monkeypatch.setattr(data, "load", lambda *args, **kwargs: blind)
    wanted = search.SearchConfig(schemes=("layerwise", "global"))
    wanted = dataclasses.replace(wanted, recipe=wanted.recipe.change(epochs=1, batch_size=400, held_out=0.02))
    assert search.run(wanted, out=tmp_path / "run", progress=False).content["steps"] == 13


def test_a_loss_that_breaks_names_step_and_term_and_keeps_the_last_good_state(tmp_path):
    journal = search.Journal(tmp_path / "run")
    with pytest.raises(TrainingError, match=r"broke at step 2: not finite: .*kernel.*is kept in"):
        search.transfer(
            teacher(), images(), config(learning_rate=1e20, mask_every=100), journal=journal, progress=False
        )
    saved = int(max(p.name for p in (tmp_path / "run" / "checkpoints").iterdir() if p.name.isdigit()))
    assert saved == 1, "the first step makes huge weights, the second shows it"


def test_a_sparse_teacher_is_refused():
    sparse = teacher()
    sparse.linear1.mask[...] = sparse.linear1.mask[...].at[0].set(False)
    with pytest.raises(ModelError, match="the teacher is sparse already"):
        search.transfer(sparse, images(), config())


def test_reports_say_the_density_of_the_mask_that_was_measured():
    plan = Plan(RECIPE.change(mask_every=4), 100, 0, 14)
    assert [plan.mask_before(step) for step in (0, 1, 4, 5, 8, 9, 12, 14)] == [0, 0, 0, 4, 4, 8, 8, 8]


def test_a_layer_without_room_for_one_weight_is_refused_before_the_search(tmp_path):
    with pytest.raises(DensityError, match="empty"):
        transfer(densities=(0.001,))


def test_more_devices_than_there_are(tmp_path):
    with pytest.raises(OptionError, match="this run has 1, so choose 1 to 1"):
        search.transfer(teacher(), images(), config(), devices=2)
