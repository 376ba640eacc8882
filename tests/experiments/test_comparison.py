import json
import time

import pytest

from nttzoo import cli, data, training
from nttzoo.errors import NttzooError, OptionError, RunError, UnknownName
from nttzoo.experiments import baselines, comparison, plots
from nttzoo.sparsity import masks

VALUES = {
    "model": "lenet300",
    "data": "mnist5k",
    "methods": ("ntt", "gradual", "random", "snip", "dense"),
    "densities": (0.02, 0.05),
    "schemes": ("layerwise", "global"),
    "seeds": (0, 1),
    "train_epochs": 1,
    "change": {"start_density": 0.2, "epochs": 3},
}


def test_the_cases_are_all_that_differ():
    cases = list(comparison.Comparison(**VALUES).cases())
    # Per seed: two searches and SNIP in 2 x 2 ways, random masks in 2 (schemes are alike), the dense network in one.
    assert len(cases) == 2 * (3 * 4 + 2 + 1)
    assert {"method": "dense", "seed": 1} in cases


def test_random_masks_differ_where_schemes_fix_other_counts():
    asked = comparison.Comparison(**{**VALUES, "schemes": ("global", "erk", "layerwise"), "methods": ("random",)})
    assert {case["scheme"] for case in asked.cases()} == {"global", "erk"}


def test_only_gradual_starts_at_another_density():
    asked = comparison.Comparison(**VALUES)
    assert asked.config("ntt", 0).recipe.start_density is None
    assert asked.config("gradual", 0).recipe.start_density == 0.2
    assert asked.config("ntt", 0).recipe.epochs == asked.config("gradual", 0).recipe.epochs == 3


def test_other_values_of_the_recipe_get_another_folder():
    asked = comparison.Comparison(**VALUES)
    other = comparison.Comparison(**{**VALUES, "change": {"epochs": 4}})
    assert asked.folder(asked.config("ntt", 0)) != other.folder(other.config("ntt", 0))


def test_an_unknown_method_lists_the_near_misses():
    with pytest.raises(UnknownName, match="Did you mean 'magnitude'"):
        comparison.Comparison(**{**VALUES, "methods": ("magnitudes",)})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"train_epochs": 0}, "train_epochs is 0"),
        ({"densities": (0.1, 1.5)}, r"not in \(0, 1\]"),
        ({"schemes": ("layers",)}, "Did you mean 'layerwise'"),
    ],
)
def test_bad_values_are_refused_before_any_work(change, says):
    with pytest.raises(NttzooError, match=says):
        comparison.Comparison(**{**VALUES, **change})


def test_another_file_is_not_taken_for_a_comparison(tmp_path):
    (tmp_path / "c.json").write_text('{"loads": []}')
    with pytest.raises(RunError, match=r"c\.json is not a comparison"):
        comparison.run(comparison.Comparison(**VALUES), data.load("mnist5k"), out=tmp_path / "c.json", runs=tmp_path)


@pytest.mark.slow
def test_one_process_at_a_time_writes_a_comparison(tmp_path, monkeypatch):
    asked = comparison.Comparison(**{**VALUES, "methods": ("random",), "densities": (0.05,), "seeds": (0,)})
    where = {"out": tmp_path / "c.json", "runs": tmp_path}
    real = baselines.make_network

    def meanwhile(*args, **kwargs):
        with pytest.raises(RunError, match=r"another process is using .*c\.json"):
            comparison.run(asked, data.load("mnist5k"), **where)
        return real(*args, **kwargs)

    monkeypatch.setattr(baselines, "make_network", meanwhile)
    comparison.run(asked, data.load("mnist5k"), **where)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".c.json.lock", "c.json"]


@pytest.mark.slow
def test_a_comparison_grows_case_by_case_and_goes_on(tmp_path, monkeypatch, capsys):
    out = tmp_path / "c.json"
    arguments = ["compare", "--methods", "ntt", "random", "--density", "0.05", "--epochs", "1", "--mask-every", "20"]
    arguments += ["--train-epochs", "1", "--runs", str(tmp_path / "runs"), "--out", str(out)]
    real = baselines.make_network

    def broken(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(baselines, "make_network", broken)
    with pytest.raises(SystemExit):
        cli.main(arguments)
    (first,) = json.loads(out.read_text())["cases"]
    assert first["method"] == "ntt"
    assert first["kernel_after"] < first["kernel_before"]

    monkeypatch.setattr(baselines, "make_network", real)
    monkeypatch.setattr(
        "nttzoo.experiments.comparison.running.search.run", None
    )  # the search is done and not done again
    cli.main(arguments)
    content = json.loads(out.read_text())
    assert content["cases"][0] == first
    assert [case["method"] for case in content["cases"]] == ["ntt", "random"]
    assert "command" in comparison.origin_of(content, content["cases"][1])
    shown = capsys.readouterr().out
    assert f"{100 * first['test_accuracy']:.2f}" in shown

    other = comparison.Comparison(**VALUES)
    with pytest.raises(RunError, match="holds another comparison"):
        comparison.run(other, data.load("mnist5k"), out=out, runs=tmp_path)


@pytest.mark.slow
def test_methods_and_seeds_may_be_added_and_networks_trained_side_by_side(tmp_path, monkeypatch):
    dataset = data.load("mnist5k")
    values = {**VALUES, "methods": ("random",), "densities": (0.05,), "seeds": (1,), "change": {}}
    where = {"out": tmp_path / "c.json", "runs": tmp_path}
    monkeypatch.setattr("sys.argv", ["first"])
    (alone,) = comparison.run(comparison.Comparison(**values), dataset, **where)["cases"]
    grown = comparison.Comparison(**{**values, "methods": ("magnitude", "random"), "seeds": (0, 1)})
    monkeypatch.setattr("sys.argv", ["second"])
    content = comparison.run(grown, dataset, jobs=2, **where)
    assert json.loads(where["out"].read_text()) == content
    # The first case still says what made it.
    commands = [comparison.origin_of(content, case)["command"] for case in content["cases"]]
    assert commands == [*5 * ["second"], "first"]
    assert [{key: case[key] for key in measured} for case, measured in zip(content["cases"], grown.cases(), strict=True)
            ] == list(grown.cases())  # fmt: skip
    assert alone in content["cases"]
    # Side by side each network ends as it would alone.
    again = comparison.Comparison(**{**values, "seeds": (0,)})
    (one,) = comparison.run(again, dataset, out=tmp_path / "again.json", runs=tmp_path)["cases"]
    found = {(case["method"], case["seed"]): case["test_accuracy"] for case in content["cases"]}
    assert one["test_accuracy"] == found["random", 0]
    for change in ({"seeds": (0,)}, {"methods": ("random",)}, {"train_epochs": 2}):
        with pytest.raises(RunError, match="Methods and seeds may be added"):
            comparison.run(comparison.Comparison(**{**grown.to_dict(), **change}), dataset, **where)
    with pytest.raises(OptionError, match="seeds has duplicates: 0, 0"):
        comparison.Comparison(**{**values, "seeds": (0, 0)})
    with pytest.raises(OptionError, match="jobs is 0"):
        comparison.run(grown, dataset, jobs=0, **where)


def test_a_failure_side_by_side_stops_the_rest_and_keeps_what_is_done(tmp_path, monkeypatch):
    values = {**VALUES, "methods": ("random",), "densities": (0.05,), "seeds": tuple(range(30)), "change": {}}
    ended = []

    def fails_at_two(network, dataset, config, settings):
        if config.seed == 2:
            raise KeyboardInterrupt
        time.sleep(0.05)
        ended.append(config.seed)
        history = training.History(*([0.5] for _ in range(5)))
        return baselines.Trained(None, {}, history, masks.DensityReport(()), None)

    for name in ("make_network", "prune_network"):
        monkeypatch.setattr(baselines, name, lambda *args, **kwargs: None)
    monkeypatch.setattr(baselines, "train_network", fails_at_two)
    out = tmp_path / "c.json"
    with pytest.raises(KeyboardInterrupt):
        comparison.run(comparison.Comparison(**values), data.load("mnist5k"), out=out, runs=tmp_path, jobs=2)
    assert [case["seed"] for case in json.loads(out.read_text())["cases"]] == sorted(ended)
    assert len(ended) < 29


def test_the_table_shows_mean_and_range_over_seeds():
    cases = [{"method": "ntt", "seed": s, "scheme": "global", "density": 0.01, "test_accuracy": a} for s, a in
             enumerate((0.5, 0.75))]  # fmt: skip
    text = comparison.table({"cases": cases})
    assert text.splitlines()[-1].split() == ["ntt", "global", "62.50", "(50.00", "to", "75.00)", "-"]
    text = comparison.table({"cases": [{**case, "control": "shuffled", "method_seconds": 3.0} for case in cases]})
    assert text.splitlines()[-1].split()[:3] == ["ntt", "global", "shuffled"]
    assert text.splitlines()[-1].split()[-1] == "3.0"


@pytest.mark.slow
def test_controls_follow_every_sparse_method_and_may_be_added(tmp_path):
    values = {
        **VALUES,
        "methods": ("magnitude", "dense"),
        "densities": (0.05,),
        "schemes": ("layerwise",),
        "seeds": (0,),
    }
    plain, controlled = (
        comparison.Comparison(**values, controls=names) for names in ((), ("shuffled", "reinitialized"))
    )
    assert controlled.extends(plain)
    assert not plain.extends(controlled)
    where = {"out": tmp_path / "c.json", "runs": tmp_path}
    comparison.run(plain, data.load("mnist5k"), **where)
    content = comparison.run(controlled, data.load("mnist5k"), **where)
    found = [(case["method"], case.get("control")) for case in content["cases"]]
    assert found == [("magnitude", None), ("magnitude", "shuffled"), ("magnitude", "reinitialized"), ("dense", None)]
    assert len({case["test_accuracy"] for case in content["cases"]}) == 4
    assert all(case["method_seconds"] >= 0 for case in content["cases"])
    plots.comparison(content, tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_a_method_with_a_scheme_of_its_own_is_one_case():
    asked = comparison.Comparison(**{**VALUES, "methods": ("erk",), "seeds": (0,)})
    assert [case["scheme"] for case in asked.cases()] == ["erk", "erk"]
    assert {"erk", "synflow", "px", "ntk_sap", "force", "grasp", "ntt", "dense"} <= set(comparison.every_method())
