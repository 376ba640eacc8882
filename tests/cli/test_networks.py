"""Networks by name, and folders of one's own, where a command takes a NAME."""

import json

import numpy as np
import pytest
from flax import nnx

import nttzoo
from nttzoo import architectures, cli, data
from nttzoo.sparsity import cost

NAME = "lenet300-mnist-1pct-global"
NET = """
from flax import nnx

class Head(nnx.Module):
    def __init__(self, num_classes, rngs):
        self.head = nnx.Linear(784, num_classes, rngs=rngs)
        self.last = nnx.Linear(num_classes, num_classes, rngs=rngs)

    def __call__(self, x):
        return self.last(self.head(x.reshape(x.shape[0], -1)))

def head(rngs, num_classes=10):
    return Head(num_classes, rngs)
"""


def run(capsys, *arguments):
    """(exit code, stdout, stderr)"""
    try:
        cli.main([str(argument) for argument in arguments])
        code = 0
    except SystemExit as exit:
        code = exit.code
    return code, *capsys.readouterr()


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with a saved model of one's own, of which one layer has a mask, in a working folder with its code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(architectures.ARCHITECTURES, "_entries", dict(architectures.ARCHITECTURES._entries))
    (tmp_path / "net.py").write_text(NET)
    scope = {}
    exec(NET, scope)
    model = nttzoo.sparsify(scope["head"](nnx.Rngs(0)), exclude=["last"])
    nttzoo.prune(model, "magnitude", density=0.1)
    nttzoo.save(model, "saved", input_spec=data.load("mnist5k").input_spec)
    nttzoo.save(model, "bare")
    return tmp_path


@pytest.mark.parametrize("weights", ["init", "trained"])
def test_speedup_counts_a_published_network_and_says_which(capsys, weights):
    code, stdout, _ = run(capsys, "speedup", NAME, "--weights", weights, "--json")
    assert code == 0
    report = json.loads(stdout)
    assert report.pop("network") == f'the weights "{weights}" of the published network {NAME}'
    assert report == cost.speedup(nttzoo.load(NAME, weights=weights)).to_dict()
    assert NAME in run(capsys, "speedup", NAME)[1].splitlines()[0]


def test_speedup_says_what_it_made(capsys):
    _, stdout, _ = run(capsys, "speedup", "--prune", "random", "--density", "0.1", "--seed", "3")
    assert stdout.splitlines()[0] == "a new lenet300, pruned: random, layerwise, seed 3"


def test_speedup_and_training_of_a_saved_model_of_ones_own(capsys, own):
    factory = ["--model", "net.py:head"]
    code, stdout, _ = run(capsys, "speedup", "saved", *factory, "--json")
    assert code == 0
    assert json.loads(stdout)["total"] == {"name": "total", "dense": 7840, "sparse": 784, "alive": 784}
    assert run(capsys, "speedup", "bare", *factory, "--data", "mnist5k")[0] == 0
    code, stdout, _ = run(capsys, "train", "--start", "saved", *factory, "--epochs", 1)
    assert code == 0
    assert "Head on mnist5k, from saved, masks as saved" in stdout
    make = architectures.ARCHITECTURES["head"].make
    start, trained = (
        nttzoo.load(own / "saved", weights=weights, factory=lambda: make(rngs=nnx.Rngs(1), num_classes=10))
        for weights in ("init", "trained")
    )
    np.testing.assert_array_equal(trained.head.mask[...], start.head.mask[...])
    assert not np.array_equal(trained.head.bias[...], start.head.bias[...])
    assert "folder saved" in run(capsys, "speedup", "saved", "--weights", "trained", *factory)[1]


def test_training_starts_from_a_published_network(capsys, tmp_path):
    out = tmp_path / "result.json"
    code, stdout, _ = run(capsys, "train", "--start", NAME, "--epochs", 1, "--out", out)
    assert code == 0
    assert "lenet300 on mnist5k" in stdout
    result = json.loads(out.read_text())
    assert result["settings"].items() >= {"start": NAME, "searched_on": "mnist", "scheme": "global"}.items()
    assert result["density"]["kept"] == sum(layer["kept"] for layer in nttzoo.info(NAME).layers)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["speedup", "lenet300-mnist-1pct-globl"], "no folder lenet300-mnist-1pct-globl, and no published network"),
        (["speedup", "lenet300-mnist-1pct-globl"], f"Did you mean '{NAME}'"),
        (["train", "--start", "lenet300-mnist-1pct-globl"], f"Did you mean '{NAME}'"),
        (["speedup", NAME, "--prune", "random"], "is pruned already: leave out --prune and --density"),
        (["speedup", "--weights", "init"], "--weights chooses those of a network with a NAME"),
        (["speedup", "saved"], "saved holds a Head (a custom model). Name its factory: --model"),
        (["speedup", "bare", "--model", "net.py:head"], "name a data set with --data"),
        (["speedup", "."], "holds 0 students"),
    ],
)
def test_mistakes_exit_with_2_and_one_line(capsys, own, arguments, says):
    code, stdout, stderr = run(capsys, *arguments)
    assert code == 2
    assert says in stderr
    assert len(stderr.splitlines()) == 1
    assert stdout == ""
