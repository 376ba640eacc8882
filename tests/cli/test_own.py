"""Networks and data of one's own, through every command."""

import json
import shutil

import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest
from flax import nnx
from own_files import NET, SEARCH, run, save_npz, stripes

import nttzoo
from nttzoo import architectures, zoo
from nttzoo.codegen import device
from nttzoo.errors import ModelError, OptionError, ShapeError
from nttzoo.experiments import comparison


def test_search_train_export_publish_and_load(folder, capsys, monkeypatch):
    own = ["--model", "net.py:tiny", "--data", "stripes.npz"]
    compare = ["compare", *own, "--methods", "ntt", "random", *SEARCH, "--train-epochs", 2]
    run(*compare, "--out", "compared.json", "--runs", "runs")
    (found,) = folder.glob("runs/*/students/30pct-erk")
    told = json.loads((found / "model.json").read_text())["factory"]
    assert told["reference"] == "net.py:tiny"
    run("train", "--start", found, *own, "--epochs", 2)
    trained = zoo.load(found, weights="trained")
    assert not np.array_equal(trained.head.bias[...], zoo.load(found).head.bias[...])
    run("export", found, "net.onnx", "--model", "net.py:tiny")
    images = np.asarray(trained.input_spec.standardize(stripes(5)[0]))
    (answers,) = onnxruntime.InferenceSession("net.onnx").run(None, {"images": images})
    np.testing.assert_allclose(answers, trained(jnp.asarray(images)), rtol=1e-4, atol=1e-5)
    run("speedup", *own, "--json")
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["total"]["dense"] == 9 * 9 * 4 + 36 * 3

    # A home of one's own, an entry with a card, and a reader without the code.
    run(*compare, "--out", "again.json", "--runs", "again")
    monkeypatch.setenv("NTTZOO_HOME", str(folder / "zoo"))
    run("publish", "again.json", "--runs", "again", *own)
    assert capsys.readouterr().out.splitlines()[-1] == "tiny-stripes-30pct-erk"
    architectures.ARCHITECTURES._entries.pop("tiny")
    assert nttzoo.list_models(dataset="stripes") == ["tiny-stripes-30pct-erk"]
    card = (folder / "zoo/models/tiny-stripes-30pct-erk/README.md").read_text()
    assert "factory() makes the network of net.py:tiny" in card
    with pytest.raises(ModelError, match=r"--model net\.py:tiny on the command line, factory="):
        nttzoo.load("tiny-stripes-30pct-erk")
    scope = {}
    exec(NET, scope)
    again = nttzoo.load("tiny-stripes-30pct-erk", weights="trained", factory=lambda: scope["tiny"](nnx.Rngs(7)))
    named = zoo.verify()
    assert "tiny-stripes-30pct-erk" in named
    run("info", "tiny-stripes-30pct-erk")
    run("load-check", "tiny-stripes-30pct-erk", "--model", "net.py:tiny")
    run("export", "tiny-stripes-30pct-erk", "hub", "--format", "hub")
    architectures.ARCHITECTURES._entries.pop("tiny")
    with pytest.raises(ModelError, match=r"--model net\.py:tiny on the command line, factory="):
        nttzoo.load(folder / "hub")
    hub = nttzoo.load(folder / "hub", weights="trained", factory=lambda: scope["tiny"](nnx.Rngs(7)))
    np.testing.assert_array_equal(hub.head.kernel[...], again.head.kernel[...])
    with pytest.raises(SystemExit):
        run("export", found, "hub2", "--format", "hub", "--model", "net.py:tiny")
    assert "--format hub takes a published network" in capsys.readouterr().err
    run("export", "tiny-stripes-30pct-erk", "entry.onnx", "--model", "net.py:tiny")
    (answers,) = onnxruntime.InferenceSession("entry.onnx").run(None, {"images": images})
    np.testing.assert_allclose(answers, again(jnp.asarray(images)), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_comparison_with_densities_of_layers_and_its_entry(folder, capsys, monkeypatch):
    own = ["--model", "net.py:tiny", "--data", "stripes.npz"]
    compare = ["compare", *own, "--methods", "ntt", "random", *SEARCH[4:], "--train-epochs", 1]
    run(*compare, "--density", "conv=0.5,*=0.25", 0.3, "--out", "by_layer.json", "--runs", "runs")
    shown = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    rows = {line[0]: [cell.strip() for cell in line[1:] if cell] for line in shown}
    # 36 weights in the convolution, 108 in the linear layer.
    assert rows["density per layer"] == ["conv", "head"]
    assert rows["conv=0.5,*=0.25 layerwise: ntt, random"] == ["50.00%", "25.00%"]
    assert rows["0.3 layerwise: ntt, random"] == ["30.56%", "29.63%"]
    assert rows["method"] == ["0.3", "conv=0.5,*=0.25", "cost, s"]
    cases = json.loads((folder / "by_layer.json").read_text())["cases"]
    assert [case["density"] for case in cases] == [{"conv": 0.5, "*": 0.25}, 0.3] * 2
    assert cases[0]["layers"] == [{"name": "conv", "size": 36, "kept": 18}, {"name": "head", "size": 108, "kept": 27}]
    assert comparison.kept_share(cases[0]) == (18 + 27) / (36 + 108)

    run("train", "--start", next(folder.glob("runs/*/students/conv*")), *own, "--epochs", 1)
    run(*compare, "--density", 0.25, "--dense-layers", "conv", "--out", "dense.json", "--runs", "runs")
    assert "100.00%  25.00%" in capsys.readouterr().out
    monkeypatch.setenv("NTTZOO_HOME", str(folder / "zoo"))
    run("publish", "by_layer.json", "dense.json", "--runs", "runs", *own)
    names = ["tiny-stripes-conv=50+all=25pct-layerwise", "tiny-stripes-30pct-layerwise"]
    names.append("tiny-stripes-25pct-layerwise-dense.conv")
    assert capsys.readouterr().out.splitlines() == names
    assert zoo.info(names[0]).density == zoo.load_check(names[0]).density == (18 + 27) / (36 + 108)
    assert "(scheme: layerwise; conv: 50 %; *: 25 %)" in " ".join(card_of(folder, names[0]).split())
    assert "43.75 % of its weights (scheme: layerwise; *: 25 %; dense: conv)" in " ".join(
        card_of(folder, names[2]).split()
    )


def card_of(folder, name):
    return (folder / "zoo/models" / name / "README.md").read_text()


def test_a_file_never_imports_and_a_changed_source_is_told(folder):
    run("search", "--model", "net.py:tiny", "--data", "stripes.npz", *SEARCH, "--out", "run")
    architectures.ARCHITECTURES._entries.pop("tiny")
    (folder / "net.py").write_text("raise SystemExit('imported')")
    with pytest.raises(ModelError, match=r"made by 'net\.py:tiny'"):
        zoo.load(folder / "run")
    (folder / "net.py").write_text(f"{NET}\n# another version")
    architectures.own.register("net.py:tiny")
    with pytest.warns(UserWarning, match="source of net.py:tiny has changed"):
        zoo.load(folder / "run")


@pytest.mark.filterwarnings("default:the source of")
def test_a_run_belongs_to_one_factory_and_one_data_set(folder, capsys):
    def again(model):
        run("search", "--model", model, "--data", "stripes.npz", *SEARCH, "--out", "run")
        return capsys.readouterr().err

    again("net.py:tiny")
    (folder / "net.py").write_text(f"{NET}\n# a comment")
    assert "warning: the source of net.py:tiny has changed since run was begun" in again("net.py:tiny")
    shutil.copy("net.py", "other.py")
    with pytest.raises(SystemExit):
        again("other.py:tiny")
    assert "factory.reference: 'net.py:tiny' there, 'other.py:tiny' now" in capsys.readouterr().err
    save_npz(folder / "stripes.npz", y_test=np.arange(60)[::-1] % 3)
    with pytest.raises(SystemExit):
        again("net.py:tiny")
    assert "data_sha256" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reference", "error", "says"),
    [
        ("nett.py:tiny", OptionError, "no file nett.py"),
        ("no.such.module:tiny", OptionError, "module 'no.such.module' cannot be imported: ModuleNotFoundError"),
        ("net.py:tinny", OptionError, "Did you mean 'tiny'"),
        ("net.py:", OptionError, "write package.module:name or file.py:name"),
        ("net.py:number", OptionError, "a function or class is needed"),
        ("net.py:no_rngs", OptionError, "takes rngs"),
        ("net.py:more", OptionError, "needs depth.*default values"),
        ("net.py:Deep", OptionError, "needs depth.*default values"),
        ("net.py:a_list", ModelError, "returned list; it must return an NNX module"),
        ("net.py:a_class", ModelError, "returned the class Tiny; it must return an NNX module"),
        ("net.py:raises", ModelError, r"net.py:raises raised KeyError: 'depth' \(net.py, line 22\)"),
        ("net.py:fails", ShapeError, r"\[2, 6, 6, 1\]: AssertionError: seven rows \(net.py, line 25\)"),
        ("script.py:tiny", OptionError, "script.py cannot be imported: SystemExit: 1"),
        ("net.py:lenet300", OptionError, "is a network of nttzoo"),
        ("net.py:wide", ShapeError, r"does not take inputs of shape \[2, 6, 6, 1\]"),
        ("net.py:no_layers", ModelError, "nothing to prune"),
        ("broken.py:tiny", OptionError, "broken.py cannot be imported: ZeroDivisionError"),
    ],
)
def test_factories_that_are_none_are_refused(folder, reference, error, says):
    (folder / "broken.py").write_text("1 / 0")
    (folder / "script.py").write_text("raise SystemExit(1)")
    with pytest.raises(error, match=says):
        architectures.own.check(architectures.own.register(reference), num_classes=3, input_shape=(6, 6, 1))


def test_a_wrong_number_of_outputs_is_refused(folder, capsys):
    (folder / "three.py").write_text(f"{NET}\ndef three(rngs): return tiny(rngs, 4)")
    with pytest.raises(SystemExit):
        run("search", "--model", "three.py:three", "--data", "stripes.npz")
    assert "gives [2, 4] for inputs of shape [2, 6, 6, 1]; 3 classes need [2, 3]" in capsys.readouterr().err


def test_modules_are_found_from_the_working_folder(folder):
    (folder / "mine").mkdir()
    shutil.copy("net.py", folder / "mine" / "nets.py")
    assert architectures.own.register("mine.nets:tiny") == "tiny"
    assert architectures.create("tiny", num_classes=3, input_shape=(6, 6, 1), rngs=0).head.kernel.shape == (36, 3)
    # A class is a factory too.
    architectures.own.check(architectures.own.register("mine.nets:OnlyRngs"), num_classes=3, input_shape=(6, 6, 1))
    with pytest.raises(ShapeError, match="has no default input shape"):
        architectures.create("tiny", rngs=0)


@pytest.mark.slow
@pytest.mark.skipif(bool(device.missing_tools()), reason="needs a compiler for microcontrollers and QEMU")
@pytest.mark.parametrize(
    ("model", "shape"), [("net.py:tiny", (6, 6, 1)), ("gru", (6, 5, 1)), ("ds_cnn", (8, 8, 1)), ("resnet20", (8, 8, 3))]
)
def test_from_search_to_device(folder, capsys, model, shape):
    save_npz(folder / "small.npz", shape)
    own = ["--model", model] if ":" in model else []
    run("search", "--model", model, "--data", "small.npz", *SEARCH, "--out", "run")
    run("train", "--start", "run", "--data", "small.npz", *own, "--epochs", 1)
    run("speedup", "--model", model, "--data", "small.npz", "--prune", "random", "--density", 0.3)
    trained = zoo.load(folder / "run", weights="trained")
    images = np.asarray(trained.input_spec.standardize(stripes(4, shape)[0]))
    expected = np.asarray(trained(jnp.asarray(images)))
    run("export", "run", "net.onnx", *own)
    (answers,) = onnxruntime.InferenceSession("net.onnx").run(None, {"images": images})
    np.testing.assert_allclose(answers, expected, rtol=1e-3, atol=1e-4)
    run("export", "run", "net.c", *own)
    np.testing.assert_allclose(nttzoo.compile(folder / "net.onnx")(images), expected, rtol=1e-3, atol=1e-4)
    capsys.readouterr()
    run("device", "run", *own, "--data", "small.npz", "--images", 3, "--json")
    (seen,) = json.loads(capsys.readouterr().out)
    assert seen["inputs"] == "test images of small"
    # It compared itself with JAX; a third of the weights takes less flash than all of them.
    assert seen["flash_bytes"] > 0
    assert len(seen["predictions"]) == 3
