import dataclasses
import json
import runpy
import subprocess
import sys
import warnings

import pytest

import nttzoo
from nttzoo import cli, training
from nttzoo.cli import parsing
from nttzoo.settings import SearchSettings, TrainSettings


def run(capsys, *arguments):
    """(exit code, stdout, stderr)"""
    try:
        cli.main(arguments)
        code = 0
    except SystemExit as exit:
        code = exit.code
    return code, *capsys.readouterr()


@pytest.fixture
def no_training(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("training began")

    monkeypatch.setattr(training, "fit", refuse)


@pytest.mark.slow
def test_train_writes_its_result_with_its_origin(tmp_path, capsys):
    out = tmp_path / "result.json"
    code, stdout, _ = run(
        capsys, "train", "--epochs", "1", "--prune", "magnitude", "--density", "0.1", "--seed", "5", "--out", str(out)
    )
    assert code == 0
    assert "lenet300 on mnist5k, magnitude, layerwise" in stdout
    result = json.loads(out.read_text())
    assert result["settings"].items() >= {"epochs": 1, "density": 0.1, "seed": 5, "data": "mnist5k"}.items()
    assert 0.5 < result["test_accuracy"] <= 1
    assert result["history"]["test_accuracy"] == [result["test_accuracy"]]
    assert result["density"] == {"name": "total", "size": 266_200, "kept": 26_620}
    assert result["speedup"]["theoretical"] == pytest.approx(10)
    assert result["versions"]["nttzoo"] == nttzoo.__version__
    assert {"command", "date", "machine", "python"} <= result.keys()


def test_speedup_prints_json_or_a_table(capsys):
    arguments = ["speedup", "--model", "lenet300", "--prune", "random", "--density", "0.01"]
    code, stdout, _ = run(capsys, *arguments, "--json")
    assert code == 0
    report = json.loads(stdout)
    assert [layer["name"] for layer in report["layers"]] == ["linear1", "linear2", "linear3"]
    assert report["total"]["dense"] == 266_200
    assert report["total"]["sparse"] == 2352 + 300 + 10
    code, stdout, _ = run(capsys, *arguments)
    assert code == 0
    assert stdout.splitlines()[-1].split()[:3] == ["total", "266,200", "2,662"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "--model", "lenet30"], "UnknownName: no architecture 'lenet30'. Did you mean 'lenet300'"),
        (["train", "--data", "mnist5"], "no data set 'mnist5'. Did you mean 'mnist5k'"),
        (["train", "--prune", "snipp"], "no pruning method 'snipp'. Did you mean 'snip'"),
        (["train", "--prune", "snip", "--scheme", "globl"], "no scheme 'globl'. Did you mean 'global'"),
        (["speedup", "--model", "conv5"], "no architecture 'conv5'. Did you mean 'conv4'"),
        (["train", "--prune", "random", "--density", "1.5"], "DensityError: density 1.5 is not in (0, 1]"),
        (["train", "--epochs", "-1"], "OptionError: epochs is -1"),
        (["train", "--learning-rate", "0"], "OptionError: learning_rate"),
        (["train", "--seed", "-1"], "OptionError: seed is -1"),
        (["speedup", "--prune", "snip"], "'snip' needs data"),
        (["speedup", "--density", "0.01"], "--density 0.01 needs a method: --prune"),
        (["train", "--density", "0.01"], "--density 0.01 needs a method: --prune"),
        (["train", "--start", "runs/x", "--prune", "snip"], "leave out --prune and --density"),
        (["train", "--start", "nowhere"], "RunError: there is no folder nowhere"),
        (["publish"], "OptionError: name a comparison to publish"),
        (["device", "lenet300-mnist-1pct-global", "--images", "0"], "images is 0; it must be the number"),
        (["export", "lenet300-mnist-1pct-global", "x.c", "--layout", "NCHW"], "--layout: of ONNX only"),
    ],
)
def test_mistakes_exit_with_2_and_one_line(capsys, no_training, arguments, says):
    code, stdout, stderr = run(capsys, *arguments)
    assert code == 2
    assert says in stderr
    assert stderr.startswith("nttzoo: ")
    assert len(stderr.splitlines()) == 1
    assert stdout == ""


@pytest.mark.parametrize(
    ("option", "says"),
    [(["--optimizer", "adm"], "Did you mean 'adam'"), (["--loss", "square"], "Did you mean 'squared'")],
)
def test_unknown_optimizers_and_losses_list_the_near_misses(capsys, option, says):
    code, _, stderr = run(capsys, "train", *option)
    assert code == 2
    assert says in stderr


def test_missing_data_says_where_to_put_it(capsys, no_training, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    code, _, stderr = run(capsys, "train", "--data", "cifar10", "--data-dir", str(tmp_path))
    assert code == 2
    assert str(tmp_path) in stderr
    assert "--download" in stderr


@pytest.mark.parametrize("out", ["nowhere/result.json", "."])
def test_a_place_that_cannot_be_written_is_refused_before_training(capsys, no_training, tmp_path, out):
    code, _, stderr = run(capsys, "train", "--out", str(tmp_path / out))
    assert code == 2
    assert "cannot write" in stderr


@pytest.mark.parametrize("arguments", [[], ["fly"], ["train", "--epochs", "many"]])
def test_usage_errors_exit_with_2(capsys, arguments):
    code, _, stderr = run(capsys, *arguments)
    assert code == 2
    assert "usage: nttzoo" in stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["trian"], "Did you mean 'train'"),
        (["train", "--epcohs", "3"], "unrecognized arguments: --epcohs 3. Did you mean --epochs?"),
        (["train", "--epochs", "many"], "argument --epochs: invalid int value: 'many'"),
        (["train", "--epochs"], "argument --epochs: expected one argument"),
        (["train", "--density", "a=b"], "argument --density: invalid density value: 'a=b'"),
        (["search", "--density"], "argument --density: expected at least one argument"),
        (["publish", "--only"], "argument --only: expected at least one argument"),
        (["compare"], "the following arguments are required: --out"),
        (["info"], "the following arguments are required: NAME"),
        (["export", "lenet300-mnist-1pct-global", "x.c", "--weights", "best"], "argument --weights: invalid choice"),
    ],
)
def test_wrong_options_are_named_with_what_was_meant(capsys, arguments, says):
    code, stdout, stderr = run(capsys, *arguments)
    assert code == 2
    assert says in stderr
    assert "usage: nttzoo" in stderr
    assert "Traceback" not in stderr
    assert stdout == ""


@pytest.mark.parametrize("command", [*cli.COMMANDS, "visualise"])
def test_every_command_has_help(capsys, command):
    code, stdout, _ = run(capsys, command, "--help")
    assert code == 0
    assert stdout.startswith(f"usage: nttzoo {command.replace('visualise', 'visualize')} [-h]")
    assert "(default: None)" not in stdout


def parsed(command, *arguments):
    return parsing.parse(cli.COMMANDS[command], f"nttzoo {command}", arguments)


def test_options_as_they_are_documented():
    search = parsed(
        "search", "--density", "0.01", "conv*=0.02,*=0.1", "--dense-layers", "a", "b", "--normalize-kernels"
    )
    assert search.densities == (0.01, {"conv*": 0.02, "*": 0.1})
    assert search.exclude == ("a", "b")
    assert search.recipe_values.given() == {"normalize_kernels": True}
    train = parsed("train", "--density=conv*=0.02,*=0.1", "--no-dropout", "--seed", "-1")
    assert (train.density, train.dropout, train.seed, train.epochs) == ({"conv*": 0.02, "*": 0.1}, False, -1, 50)
    listed = parsed("list", "--json", "conv4", "svhn", "--density", "0.01")
    assert (listed.words, listed.json, listed.density) == (("conv4", "svhn"), True, 0.01)
    assert parsed("publish", "a.json", "b.json", "--only", "x*", "y*").comparison == ("a.json", "b.json")
    assert parsed("export", "a", "b.c", "--format", "c").format == "c"


def test_options_and_configs_share_their_defaults():
    train, search = parsed("train"), parsed("search")
    for settings, options, config in (
        (TrainSettings, train, training.TrainConfig()),
        (SearchSettings, search, nttzoo.search.SearchConfig()),
    ):
        for entry in dataclasses.fields(settings):
            assert getattr(options, entry.name) == getattr(config, entry.name)
    assert {x.name for x in dataclasses.fields(nttzoo.recipes.Recipe)} - {"name", "held_out"} == {
        x.name for x in dataclasses.fields(search.recipe_values)
    }


def test_a_reader_that_has_seen_enough_is_no_error():
    code = "from nttzoo.cli import main; main(['info', 'lenet300-mnist-1pct-global'])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as done:
        done.stdout.close()
        assert done.stderr.read() == b""
        assert done.wait() == 1


def test_export_takes_a_published_network_before_a_folder_of_its_name(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lenet300-mnist-1pct-global").mkdir()
    code, _, _ = run(capsys, "export", "lenet300-mnist-1pct-global", "digits.c")
    assert code == 0
    assert (tmp_path / "digits.c").read_text().startswith('#include "digits.h"')


def test_the_way_warnings_are_shown_is_left_as_it_was(capsys):
    before = warnings.showwarning
    assert run(capsys, "list", "conv4")[0] == 0
    assert warnings.showwarning is before


def test_lists_take_plain_words_and_name_unknown_ones(capsys):
    code, stdout, _ = run(capsys, "list", "conv4", "1pct")
    assert code == 0
    listed = [line.split()[0] for line in stdout.splitlines() if "pct" in line]
    assert listed == [name for name in nttzoo.list_models() if name.startswith("conv4-") and "-1pct-" in name]
    assert {"conv4-cifar10-1pct-layerwise", "conv4-svhn-1pct-layerwise"} <= {*listed}
    code, _, stderr = run(capsys, "list", "conv5")
    assert code == 2
    assert "no part of a published network's name 'conv5'. Did you mean 'conv4'" in stderr
    code, _, stderr = run(capsys, "list", "--density", "1.5")
    assert code == 2
    assert "density 1.5 is not in (0, 1]" in stderr


def test_listing_nothing_says_so(capsys):
    code, stdout, _ = run(capsys, "list", "foo*")
    assert code == 0
    assert stdout.startswith("None of the ")


def test_version_and_help(capsys):
    assert run(capsys, "--version")[:2] == (0, f"{nttzoo.__version__}\n")
    code, stdout, _ = run(capsys, "--help")
    assert code == 0
    assert all(command in stdout for command in ("train", "speedup", "search"))


def test_ctrl_c_exits_with_130(capsys, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "fit", interrupted)
    code, _, stderr = run(capsys, "train", "--epochs", "1")
    assert code == 130
    assert stderr.splitlines()[-1] == "nttzoo: interrupted"


HEAVY = ["tensorflow", "tensorflow_datasets", "onnx", "matplotlib", "jax", "flax", "numpy"]


def test_importing_nttzoo_or_asking_for_help_imports_nothing_heavy():
    program = f"""
import sys, nttzoo, nttzoo.cli
try:
    nttzoo.cli.main(["train", "--help"])
except SystemExit:
    pass
print("heavy:", [name for name in {HEAVY} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_the_package_runs_as_a_module(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["nttzoo", "--version"])
    runpy.run_module("nttzoo", run_name="__main__")
    assert capsys.readouterr().out == f"{nttzoo.__version__}\n"


def test_every_public_name_can_be_imported_lazily():
    for name in nttzoo.__all__:
        assert getattr(nttzoo, name) is not None
    assert set(nttzoo.__all__) <= set(dir(nttzoo))
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        _ = nttzoo.fitt
