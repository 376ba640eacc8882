import dataclasses
import itertools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from nttzoo import architectures, data, nn, search
from nttzoo._util import files
from nttzoo.errors import (
    DataError,
    DensityError,
    ModelError,
    NttzooError,
    OptionError,
    RunError,
    ShapeError,
    TrainingError,
)
from nttzoo.search import loop
from nttzoo.search.batches import draw_batch
from nttzoo.search.config import Plan
from nttzoo.search.recipes import Recipe
from nttzoo.sparsity import masks, schemes
from nttzoo.sparsity.pruning import prune

SHAPE = (4, 4, 1)
RECIPE = Recipe(
    name="tiny",
    epochs=2,
    batch_size=8,
    learning_rate=2e-3,
    kernel_weight=1.0,
    weight_decay=1e-4,
    mask_every=3,
    held_out=0.2,
)


def teacher(seed=0):
    return architectures.create("lenet300", input_shape=SHAPE, num_classes=3, rngs=seed)


def images(count=120):
    return np.random.default_rng(0).normal(size=(count, *SHAPE)).astype(np.float32)


def config(**change):
    names = {field.name for field in dataclasses.fields(search.SearchConfig)}
    ours = {name: value for name, value in change.items() if name in names}
    recipe = RECIPE.change(**{name: value for name, value in change.items() if name not in names})
    return search.SearchConfig(**{"densities": (0.2,), "recipe": recipe, **ours})


FOUND = {}


def transfer(**change):
    """A search; one that several tests look at runs once."""
    if (key := repr(change)) not in FOUND:
        FOUND[key] = search.transfer(teacher(), images(), config(**change), progress=False)
    return FOUND[key]


def weights(student):
    return {p: (np.asarray(x.kernel[...]), np.asarray(x.mask[...])) for p, x in nn.masked_layers(student.model).items()}


def loss(found, student, line):
    """What the search makes small, mean over the batches before a report."""
    entry = found.reports[line]["students"][student.target.name]
    return entry["target"] + RECIPE.kernel_weight * entry["kernel"]


# The plan.


def test_the_papers_search_has_18720_steps():
    plan = Plan.of(search.SearchConfig(data="mnist").recipe, 60_000)
    assert (plan.images, plan.held_out, plan.steps) == (59_880, 120, 18_720)
    assert plan.last_refresh == 18_600
    assert [s for s in (0, 50, 100, 18_500, 18_600, 18_620, 18_700) if plan.refreshes_at(s)] == [100, 18_500, 18_600]


def test_in_the_last_steps_the_mask_stays():
    plan = Plan(RECIPE.change(mask_every=4), 100, 0, 12)
    assert [step for step in range(13) if plan.refreshes_at(step)] == [4, 8]


def test_the_density_falls_geometrically_and_then_stays():
    plan = Plan(RECIPE.change(start_density=0.04, fall=0.5), 100, 0, 40)
    assert plan.density(0.01, 0) == pytest.approx(0.04)
    assert plan.density(0.01, 10) == pytest.approx(0.02)
    assert [plan.density(0.01, step) for step in (20, 30, 40)] == [0.01] * 3
    assert plan.density(0.2, 0) == 0.2, "a target above the start is not approached from below"


def test_a_density_that_need_not_fall_is_not_refused_for_it():
    (found,) = transfer(densities=(0.5,), start_density=0.5, mask_every=10).students
    assert masks.density_report(found.model).total.density == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("scheme", ["layerwise", "global"])
def test_where_the_density_falls_before_means_pruned_to_the_same_density(scheme):
    plain, falling = (transfer(schemes=(scheme,), **more).students[0] for more in ({}, {"start_density": 0.5}))
    assert falling.kernel_before == plain.kernel_before
    assert falling.target_before == plain.target_before
    assert falling.kernel_after != plain.kernel_after


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"batch_size": 98}, r"batch_size 98 does not fit 60 images \(60 of 120 are held out\): choose at most 60"),
        ({"start_density": 0.5, "mask_every": 10}, r"refreshed for the last time at step 0 of 16"),
        ({"densities": ()}, "at least one density"),
        ({"densities": (0.1, 0.1)}, "each student once"),
        ({"densities": (1.5,)}, r"not in \(0, 1\]"),
        ({"schemes": ("layer",)}, "Did you mean 'layerwise'"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "from 0 to 4294967295"),
        ({"outputs": 4}, "cannot sample 4 of 3 outputs"),
        ({"densities": (1e-4,)}, "would leave layer 'linear3'"),
        ({"recipe": "nt"}, "no recipe 'nt'. Did you mean 'ntt'"),
    ],
)
def test_what_cannot_be_searched_for_is_refused(change, says):
    with pytest.raises(NttzooError, match=says):
        transfer(**change)


@pytest.mark.parametrize(
    ("bad", "error", "says"),
    [
        (np.zeros((0, *SHAPE), np.float32), ShapeError, "n > 0"),
        (np.full((120, *SHAPE), np.nan, np.float32), DataError, "NaN"),
        (np.zeros((120, 5, 5, 1), np.float32), ShapeError, r"takes images of shape \[n, 4, 4, 1\]"),
        (np.zeros((120, *SHAPE), np.uint8), ShapeError, "floating-point"),
    ],
)
def test_images_that_do_not_fit_are_refused(bad, error, says):
    with pytest.raises(error, match=says):
        search.transfer(teacher(), bad, config(), progress=False)


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_times_between_saved_states_that_make_no_sense_are_refused(seconds):
    with pytest.raises(OptionError, match="save_every is"):
        search.transfer(teacher(), images(), config(), save_every=seconds, progress=False)


# Batches.


@given(st.integers(2, 40), st.data())
def test_a_batch_holds_different_images(count, draw):
    size = draw.draw(st.integers(1, count))
    chosen = np.asarray(draw_batch(jax.random.key(draw.draw(st.integers(0, 99))), count, size))
    assert len(set(chosen.tolist())) == size
    assert chosen.min() >= 0
    assert chosen.max() < count


def test_every_ordered_choice_is_equally_likely():
    draws = jax.vmap(lambda key: draw_batch(key, 5, 2))(jax.random.split(jax.random.key(0), 20_000))
    _, counts = np.unique(np.asarray(draws), axis=0, return_counts=True)
    assert len(counts) == 20
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000)


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


# Going on.


def finished(folder, **change):
    journal = search.Journal(folder)
    try:
        return search.transfer(teacher(), images(), config(**change), journal=journal, progress=False)
    finally:
        journal.close()


SEVERAL = {"densities": (0.2, 0.3), "schemes": ("layerwise", "global"), "outputs": 2, "start_density": 0.5}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A search that was not interrupted, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    return finished(folder, **SEVERAL), folder


@pytest.mark.parametrize("stop", [3, 7])
def test_an_interrupted_run_ends_bit_for_bit_like_a_whole_one(tmp_path, monkeypatch, whole, stop):
    whole, folder = whole
    calls = iter(range(10**6))
    monkeypatch.setattr(loop, "agreed", lambda asked, chunk, save: (next(calls) == stop, 1, save))
    with pytest.raises(search.Interrupted, match="the same command resumes"):
        finished(tmp_path / "cut", **SEVERAL)
    monkeypatch.undo()
    again = finished(tmp_path / "cut", **SEVERAL)
    for one, other in zip(whole.students, again.students, strict=True):
        for path, (kernel, mask) in weights(one).items():
            np.testing.assert_array_equal(kernel, weights(other)[path][0])
            np.testing.assert_array_equal(mask, weights(other)[path][1])
        assert one.kernel_after == other.kernel_after
    metrics = [(place / "metrics.jsonl").read_text() for place in (folder, tmp_path / "cut")]
    assert metrics[0] == metrics[1]
    assert [json.loads(line) for line in metrics[0].splitlines()] == whole.reports


def test_reports_after_the_last_state_are_forgotten(tmp_path):
    finished(tmp_path / "run")
    path = tmp_path / "run" / "metrics.jsonl"
    whole = path.read_text()
    # As a kill in the middle of a line leaves it, here after an inner brace.
    path.write_text(whole + '{"step": 99, "students": {}}\n{"step": 1, "students": {"a": {}')
    finished(tmp_path / "run")
    assert path.read_text() == whole


def claim(folder, description, **options):
    journal = search.Journal(folder, **options)
    journal.claim(description)
    journal.close()


def test_a_folder_belongs_to_one_config(tmp_path):
    claim(tmp_path / "run", {"seed": 0, "recipe": {"epochs": 2}})
    with pytest.raises(RunError, match=r"belongs to another run:\n  recipe.epochs: 2 there, 3 now\nChoose"):
        claim(tmp_path / "run", {"seed": 0, "recipe": {"epochs": 3}})
    claim(tmp_path / "run", {"seed": 1}, fresh=True)
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == {"seed": 1}


def test_a_folder_is_one_process_at_a_time(tmp_path):
    journal = search.Journal(tmp_path / "run")
    journal.claim({"seed": 0})
    for fresh in (False, True):
        with pytest.raises(RunError, match="another process is using"):
            claim(tmp_path / "run", {"seed": 0}, fresh=fresh)
    journal.close()
    claim(tmp_path / "run", {"seed": 0})


def test_a_fresh_start_that_is_killed_leaves_no_run_that_looks_finished(tmp_path, monkeypatch):
    claim(tmp_path, {"seed": 0})
    (tmp_path / "students").mkdir()
    (tmp_path / "summary.json").write_text("{}")

    def killed(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        claim(tmp_path, {"seed": 0}, fresh=True)
    assert not (tmp_path / "summary.json").exists()
    assert (tmp_path / "config.json").exists()


def test_a_transfer_does_not_go_on_with_another_recipe(tmp_path):
    finished(tmp_path / "run")
    with pytest.raises(RunError, match=r"recipe.learning_rate: 0.002 there, 0.001 now"):
        finished(tmp_path / "run", learning_rate=1e-3)


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for fresh in (False, True):
        with pytest.raises(RunError, match="not empty and not the folder of a run"):
            claim(tmp_path, {"seed": 1}, fresh=fresh)
    assert (tmp_path / "thesis.tex").exists()


def test_going_on_with_other_devices_or_other_code_is_said(tmp_path):
    def resume():
        journal = search.Journal(tmp_path)
        search.transfer(teacher(), images(), config(mask_every=100), journal=journal, progress=False)
        journal.close()

    resume()
    resume()
    (path,) = (tmp_path / "checkpoints").glob("*/reports.jsonl")
    lines = path.read_text()
    assert '"devices": 1' in lines
    path.write_text(lines.replace('"devices": 1', '"devices": 8'))
    files.seal(path.parent)
    with pytest.warns(UserWarning, match="had 8 device.* continues with 1"):
        resume()
    path.write_text(re.sub('"code": "[^"]*"', '"code": "0123456789ab"', lines))
    files.seal(path.parent)
    with pytest.warns(UserWarning, match=r"another version of nttzoo's code \(0123456789ab, now "):
        resume()


def test_what_a_kill_leaves_of_the_first_file_does_not_lock_the_folder(tmp_path):
    (tmp_path / ".config.json.part").write_text("{")
    claim(tmp_path, {"seed": 1})


def test_a_report_that_cannot_be_written_is_explained(tmp_path, monkeypatch):
    def full(self, mode="r", *args, **kwargs):
        raise OSError(28, "No space left on device")

    journal = search.Journal(tmp_path / "run")
    journal.claim({})
    monkeypatch.setattr("pathlib.Path.open", full)
    with pytest.raises(RunError, match=r"cannot write in .*No space left on device.*Saved states are intact"):
        journal.report({"step": 1})


def test_a_sparse_teacher_is_refused():
    sparse = teacher()
    sparse.linear1.mask[...] = sparse.linear1.mask[...].at[0].set(False)
    with pytest.raises(ModelError, match="the teacher is sparse already"):
        search.transfer(sparse, images(), config())


def test_reports_say_the_density_of_the_mask_that_was_measured():
    plan = Plan(RECIPE.change(mask_every=4), 100, 0, 14)
    assert [plan.mask_before(step) for step in (0, 1, 4, 5, 8, 9, 12, 14)] == [0, 0, 0, 4, 4, 8, 8, 8]


def test_a_disk_without_room_is_noticed_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10})())
    with pytest.raises(RunError, match=r"has space for 0 MiB"):
        finished(tmp_path / "run")


def test_a_layer_without_room_for_one_weight_is_refused_before_the_search(tmp_path):
    with pytest.raises(DensityError, match="empty"):
        transfer(densities=(0.001,))


def test_more_devices_than_there_are(tmp_path):
    with pytest.raises(OptionError, match="this run has 1, so choose 1 to 1"):
        search.transfer(teacher(), images(), config(), devices=2)
