import json

import jax.numpy as jnp
import numpy as np
import pytest

from nttzoo import architectures, cli, data, search
from nttzoo.errors import BusyError, OptionError, RunError, UnknownName
from nttzoo.experiments import controls, entries, paper, plans, report, reproduce, results, students
from nttzoo.experiments.cases import Case
from nttzoo.nn import masked_layers
from nttzoo.sparsity import pruning
from nttzoo.training import TrainConfig
from nttzoo.training.checkpoint import Checkpoint

SMOKE = {"model": "lenet300", "data": "mnist5k", "training": TrainConfig(epochs=1)}


def sparse(seed=0):
    model = architectures.create("lenet300", input_shape=(4, 4, 1), num_classes=3, rngs=seed)
    return pruning.prune(model, "random", density=0.2, rngs=1)


def arrays(model):
    return {p: (np.asarray(x.mask[...]), np.asarray(x.masked_kernel())) for p, x in masked_layers(model).items()}


def test_shuffling_moves_weights_within_their_layer():
    before, after = arrays(sparse()), arrays(controls.apply(sparse(), "shuffled", dense=None, rngs=0))
    for path, (mask, kernel) in before.items():
        assert (after[path][0] != mask).any()
        np.testing.assert_array_equal(np.sort(after[path][1][after[path][0]]), np.sort(kernel[mask]))


def test_reinitializing_keeps_the_mask_and_draws_at_kaimings_scale():
    before, after = arrays(sparse()), arrays(controls.apply(sparse(), "reinitialized", dense=None, rngs=0))
    for path, (mask, kernel) in before.items():
        np.testing.assert_array_equal(after[path][0], mask)
        assert not np.isin(after[path][1][mask], kernel[mask]).any()
    first = after["linear1",]
    assert first[1][first[0]].std() == pytest.approx((2 / (16 * 0.2)) ** 0.5, rel=0.1)


def test_the_magnitude_mask_takes_the_dense_networks_largest_and_the_found_values():
    dense = architectures.create("lenet300", input_shape=(4, 4, 1), num_classes=3, rngs=0)
    found = sparse()
    for layer in masked_layers(found).values():
        layer.kernel[...] = jnp.where(layer.mask[...], 7.0, 0.0)  # a packed student has no other weights
    before, original = arrays(found), arrays(dense)
    for path, (mask, kernel) in arrays(controls.apply(found, "magnitude_mask", dense=dense, rngs=0)).items():
        whole = original[path][1]
        assert mask.sum() == before[path][0].sum()
        assert np.abs(whole[mask]).min() >= np.abs(whole[~mask]).max()
        np.testing.assert_array_equal(kernel[mask], np.where(before[path][0], 7.0, whole)[mask])


def test_every_plan_is_made_of_different_cases_and_has_the_papers():
    for budget in plans.BUDGETS:
        names = [case.name for case in plans.plan("all", budget)]
        assert len(set(names)) == len(names) > 20
    told = {(c.data, c.method, c.density) for c in plans.plan("table1", "paper")}
    assert told == {(d, m, p) for d, rows in paper.LAYERWISE.items() for m, row in rows.items() for p in row}
    assert {c.training.epochs for c in plans.plan("table2", "paper")} == {600}
    with pytest.raises(UnknownName, match="Did you mean 'table1'"):
        plans.plan("tabel1", "cpu")
    with pytest.raises(UnknownName, match="budget"):
        plans.plan("all", "gpu")


def test_trainings_that_differ_have_different_folders():
    changes = [{"epochs": 2}, {"dropout": False}, {"learning_rate": 0.1}, {"batch_size": 32}, {"seed": 3}]
    cases = [Case(**{**SMOKE, "training": TrainConfig(**change)}, method="dense") for change in changes]
    # The seed is the case's own.
    assert len({case.training_name for case in cases}) == len(changes)
    assert cases[-1].training.seed == 0
    assert (
        Case(**SMOKE, method="snip", density=0.03, seed=2).name == "lenet300-mnist5k-3pct-layerwise-snip/1epochs/seed2"
    )


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """The controls, run once, then killed before the last case, and run again."""
    folder = tmp_path_factory.mktemp("reproduce")
    place = reproduce.Workplace(folder / "results", (folder / "runs",))
    cases = plans.plan("controls", "smoke")
    said = []
    assert reproduce.run(cases[:-1], place, say=said.append) == []
    return place, cases, said


@pytest.mark.slow
def test_a_plan_goes_on_where_it_stopped_with_one_search(workplace, monkeypatch):
    place, cases, said = workplace
    assert len(list(place.runs[0].glob("*/summary.json"))) == 1
    assert "about 0 s left" in said[-1]
    before = {case.name: case.file(place.results).read_bytes() for case in cases[:-1]}
    monkeypatch.setattr(search, "run", None)  # the student is there
    said.clear()
    assert reproduce.run(cases, place, say=said.append) == []
    assert said[0] == "4 cases, 3 done."
    assert {name: (place.results / f"{name}.json").read_bytes() for name in before} == before
    content = json.loads(cases[0].file(place.results).read_text())
    assert content["case"]["training"]["epochs"] == len(content["history"]["test_accuracy"]) == 1
    assert content["student"]["kernel_after"] < content["student"]["kernel_before"]
    assert {"machine", "versions", "command", "layers", "speedup"} <= content.keys()
    assert [x["kept"] for x in content["layers"]] == [round(0.05 * s) for s in (235200, 30000, 1000)]
    start, trained = (
        search.load_student(place.runs[0] / "trained" / cases[0].name / part)[0] for part in ("", "trained")
    )
    found = students.find(cases[0].search(), place.runs).model
    np.testing.assert_array_equal(start.linear1.masked_kernel(), found.linear1.masked_kernel())
    np.testing.assert_array_equal(trained.linear1.mask[...], found.linear1.mask[...])
    assert (trained.linear1.masked_kernel() != start.linear1.masked_kernel()).any()


def test_a_killed_training_goes_on(workplace, monkeypatch, tmp_path):
    place, _, _ = workplace
    case = Case(**{**SMOKE, "training": TrainConfig(epochs=3)}, method="magnitude", density=0.04)
    whole = reproduce.Workplace(tmp_path / "whole", (tmp_path,))
    reproduce.run([case], whole, say=list)
    real, epochs = Checkpoint.write, []

    def killed(self, history, arrays, *, now):
        real(self, history, arrays, now=True)
        epochs.append(1)
        if len(epochs) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        reproduce.run([case], place, say=list)
    assert not case.file(place.results).exists()
    reproduce.run([case], place, say=list)
    assert len(epochs) == 3, "the first two epochs are not trained again"
    again, once = (json.loads(case.file(p.results).read_text()) for p in (place, whole))
    assert again["history"]["test_accuracy"] == once["history"]["test_accuracy"]
    assert again["engine"] in ("jax", "c")
    assert not (place.runs[0] / "training" / case.name).exists()


def test_a_student_is_taken_only_from_the_same_search(workplace):
    place, cases, _ = workplace
    (folder,) = (file.parent for file in place.runs[0].glob("*/summary.json"))
    for runs in ([place.runs[0]], [folder], [folder.parent.parent, folder]):
        assert students.find(cases[0].search(), runs).about["run"] == folder.name
    for other in ({"seed": 1}, {"density": 0.04}, {"scheme": "erk"}, {"change": {"epochs": 1}}):
        case = Case(**{**SMOKE, "method": "ntt", "density": 0.05, "change": plans.SMOKE_SEARCH, **other})
        assert students.find(case.search(), place.runs) is None
        assert reproduce.run([case], reproduce.Workplace(place.results, place.runs, search=False), say=list) == [case]


def test_published_students_need_no_search():
    case = Case(model="lenet300", data="mnist", method="ntt", density=0.1)
    found = students.find(case.search(), [])
    assert found.about["published"] == "lenet300-mnist-10pct-layerwise"
    assert students.find(Case(model="lenet300", data="mnist", method="ntt", density=0.1, seed=5).search(), []) is None


def test_what_another_process_does_is_left_to_it(workplace, monkeypatch):
    place, _, _ = workplace
    case = Case(**SMOKE, method="magnitude", density=0.5)
    with reproduce.lock.alone_with(case.file(place.results)):
        said = []
        assert reproduce.run([case], place, say=said.append) == [case]
        assert "another process" in said[-1]

    def busy(*args, **kwargs):
        raise BusyError("another process is using it")

    monkeypatch.setattr(search, "run", busy)
    assert reproduce.run([Case(**SMOKE, method="ntt", density=0.5)], place, say=said.append)


def test_the_report_holds_the_measured_numbers_and_says_what_the_controls_cost(workplace, tmp_path):
    place, cases, _ = workplace
    reproduce.run([*cases, Case(**SMOKE, method="random", density=0.05)], place, say=list)
    written = report.write(place.results, tmp_path / "REPORT.md")
    text = written[0].read_text()
    found = {case.control: json.loads(case.file(place.results).read_text())["test_accuracy"] for case in cases}
    for control, accuracy in found.items():
        assert f"{100 * accuracy:.2f}" in text
        if control:
            assert f"[{100 * (accuracy - found['']):+.2f}]" in text
    assert "## Is NTT ahead?" in text


def test_searches_are_compared_on_the_seeds_that_both_have():
    def result(method, seed, accuracy):
        case = {"model": "lenet300", "data": "mnist", "method": method, "seed": seed, "control": "", "change": {}}
        content = {
            "case": {**case, "density": 0.01, "scheme": "layerwise", "training": {"epochs": 3}},
            "test_accuracy": accuracy,
            "student": {"kernel_after": 1.0},
        }
        return results.Result(f"lenet300-mnist-1pct-layerwise-{method}/3epochs/seed{seed}", content)

    found = [result("ntt", 0, 0.8), result("ntt", 1, 0.5), result("ntt+", 0, 0.9)]
    (row,) = [line for line in report._ablation(found).splitlines() if "NTT+" in line]
    assert "| 90.00 | +10.00 |" in row  # not +25: seed 1 of ntt+ is missing


def test_the_best_student_of_each_kind_is_published_with_its_curves(workplace, tmp_path):
    place, cases, _ = workplace
    reproduce.run([cases[0], Case(**SMOKE, method="random", density=0.05)], place, say=list)
    names = entries.publish(place.results, data.load, runs=place.runs, home=tmp_path)
    assert names == ["lenet300-mnist5k-5pct-layerwise"]
    told = json.loads((tmp_path / "models" / names[0] / "metrics.json").read_text())
    measured = json.loads(cases[0].file(place.results).read_text())
    assert told["chosen"]["test_accuracy"] == measured["test_accuracy"]
    assert [row["method"] for row in told["compared"]] == ["ntt", "random"]
    assert told["history"]["test_accuracy"] == [round(v, 5) for v in measured["history"]["test_accuracy"]]
    assert told["recipe"]["mask_every"] == 20
    with pytest.raises(RunError, match="no trained student"):
        entries.publish(place.results, data.load, runs=[tmp_path], home=tmp_path)


def test_the_command_lists_and_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["reproduce", "table1", "--budget", "smoke", "--only", "*-random/*"]
    cli.main([*arguments, "--dry-run"])
    assert "lenet300-mnist5k-5pct-layerwise-random/1epochs/seed0  train" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    cli.main(arguments)
    assert "1 cases, 0 done." in capsys.readouterr().out
    assert "1 trained networks" in (tmp_path / "results/REPORT.md").read_text()
    with pytest.raises(OptionError, match="no case matches nothing"):
        reproduce.select(plans.plan("table1", "smoke"), ["nothing"])


@pytest.mark.slow
def test_students_of_one_teacher_are_searched_for_in_one_run(tmp_path, monkeypatch):
    def case(density, **other):
        return Case(**{**SMOKE, "method": "ntt", "density": density, "change": plans.SMOKE_SEARCH, **other})

    place = reproduce.Workplace(tmp_path / "results", (tmp_path / "runs",))
    cases = [case(0.05), case(0.1), case(0.1, scheme="erk"), case(0.2, seed=1)]
    reproduce.run(cases[:1], reproduce.Workplace(place.results, place.runs, search=False), say=list)  # none is there
    runs, real = [], search.run

    def killed_once(config, **options):
        runs.append((config.densities, config.schemes, config.seed))
        if len(runs) == 1:
            options["out"].mkdir(parents=True)
            (options["out"] / "config.json").write_text(json.dumps(config.to_dict()))
            raise KeyboardInterrupt
        return real(config, **options)

    monkeypatch.setattr(search, "run", killed_once)
    with pytest.raises(KeyboardInterrupt):
        reproduce.run(cases, place, say=list)
    assert (
        reproduce.run([cases[1], *cases[2:]], place, say=list) == []
    )  # resumes the run, although cases[0] is left out
    assert reproduce.run(cases, place, say=list) == []
    both = ((0.05, 0.1), ("layerwise",), 0)
    assert runs == [both, both, ((0.1,), ("erk",), 0), ((0.2,), ("layerwise",), 1)]
    names = sorted(file.parent.name for file in place.runs[0].glob("*/summary.json"))
    assert names[0] == "lenet300-mnist5k-10pct-erk-ntt-epochs=1-mask_every=20-seed0"
    assert names[2] == "lenet300-mnist5k-5+10pct-layerwise-ntt-epochs=1-mask_every=20-seed0"


def test_a_longer_training_has_the_shorter_one_in_it(tmp_path):
    place = reproduce.Workplace(tmp_path / "results", (tmp_path / "runs",))
    short, long, other = (
        Case(model="lenet300", data="mnist5k", method=method, density=0.05, training=TrainConfig(epochs=epochs))
        for method, epochs in (("random", 1), ("random", 2), ("magnitude", 1))
    )
    reproduce.run([short], place, say=list)
    alone = results.read_one(short.file(place.results))
    short.file(place.results).unlink()
    reproduce.run([long, other], place, say=list)
    assert short.done(place.results)
    assert reproduce.run([short], place, say=list) == []
    assert not short.file(place.results).exists()
    found = results.with_shorter(results.read(place.results))
    assert [(r.name, r.stored) for r in found] == [(other.name, True), (short.name, False), (long.name, True)]
    for key in ("train_loss", "train_accuracy", "validation_accuracy", "test_accuracy"):
        assert found[1].content["history"][key] == alone["history"][key]
    assert found[1].content["test_accuracy"] == alone["test_accuracy"]
    assert found[1].epochs == 1
    without = Case(**{**SMOKE, "training": TrainConfig(epochs=1, dropout=False)}, method="random", density=0.05)
    assert not without.done(place.results)
