import json

import pytest

from nttzoo import baselines, cli, comparison, data
from nttzoo.errors import RunError, UnknownName

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


def test_a_comparison_grows_case_by_case_and_goes_on(tmp_path, monkeypatch, capsys):
    out = tmp_path / "c.json"
    arguments = ["compare", "--methods", "ntt", "random", "--density", "0.05", "--epochs", "1", "--mask-every", "20"]
    arguments += ["--train-epochs", "1", "--runs", str(tmp_path / "runs"), "--out", str(out)]
    real = baselines.train_baseline

    def broken(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(baselines, "train_baseline", broken)
    with pytest.raises(SystemExit):
        cli.main(arguments)
    (first,) = json.loads(out.read_text())["cases"]
    assert first["method"] == "ntt"
    assert first["kernel_after"] < first["kernel_before"]

    monkeypatch.setattr(baselines, "train_baseline", real)
    monkeypatch.setattr("nttzoo.comparison.search.run", None)  # the search is done and not done again
    cli.main(arguments)
    content = json.loads(out.read_text())
    assert content["cases"][0] == first
    assert [case["method"] for case in content["cases"]] == ["ntt", "random"]
    assert "command" in content
    shown = capsys.readouterr().out
    assert f"{100 * first['test_accuracy']:.2f}" in shown

    other = comparison.Comparison(**VALUES)
    with pytest.raises(RunError, match="holds another comparison"):
        comparison.run(other, data.load("mnist5k"), out=out, runs=tmp_path)


def test_the_table_shows_mean_and_range_over_seeds():
    cases = [{"method": "ntt", "seed": s, "scheme": "global", "density": 0.01, "test_accuracy": a} for s, a in
             enumerate((0.5, 0.75))]  # fmt: skip
    text = comparison.table({"cases": cases})
    assert text.splitlines()[-1].split(maxsplit=2) == ["ntt", "global", "62.50 (50.00 to 75.00)"]
