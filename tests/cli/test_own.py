"""Networks and data of one's own, through every command."""

import json
import shutil
import sys

import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest
from flax import nnx
from PIL import Image

import nttzoo
from nttzoo import architectures, cli, data, zoo
from nttzoo.codegen import device
from nttzoo.errors import DataError, ModelError, NttzooError, OptionError, ShapeError
from nttzoo.experiments import comparison

NET = """
from flax import nnx

class Tiny(nnx.Module):
    def __init__(self, num_classes, rngs):
        self.conv = nnx.Conv(1, 4, (3, 3), strides=2, rngs=rngs)
        self.head = nnx.Linear(36, num_classes, rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.relu(self.conv(x)).reshape(x.shape[0], -1))

def tiny(rngs, num_classes=3):
    return Tiny(num_classes, rngs)

def no_rngs(): ...
def more(rngs, depth): ...
def a_class(rngs): return Tiny
class OnlyRngs(Tiny):
    def __init__(self, rngs): super().__init__(3, rngs)
class Deep(Tiny):
    def __init__(self, depth, rngs): super().__init__(3, rngs)
def raises(rngs): return {}["depth"]
class Fails(Tiny):
    def __call__(self, x):
        assert x.shape[1] == 7, "seven rows"
def fails(rngs): return Fails(3, rngs)
def a_list(rngs): return [1, 2]
def lenet300(rngs): ...
def wide(rngs): return nnx.Linear(7, 3, rngs=rngs)
def no_layers(rngs): return nnx.LayerNorm(6, rngs=rngs)
number = 5

def arrays():
    import numpy as np
    rng = np.random.default_rng(0)
    return rng.random((9, 6, 6)), rng.integers(0, 3, 9), rng.random((6, 6, 6)), rng.integers(0, 3, 6)

def a_set(): return {1, 2}
def lost(): return open("lost.csv")
def none(): return arrays(1)
def wants_more(path): ...
"""


def stripes(n, shape=(6, 6, 1), seed=0):
    """Images [n, *shape] of uint8 noise, brighter in the rows of their class: 0, 1 or 2."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    images = rng.integers(0, 100, (n, *shape))
    for image, label in zip(images, labels, strict=True):
        image[2 * label : 2 * label + 2] += 120
    return images.astype(np.uint8), labels


def save_npz(path, shape=(6, 6, 1), **change):
    x, y = stripes(240, shape)
    x_test, y_test = stripes(60, shape, seed=1)
    content = {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test} | change
    np.savez(path, **{key: value for key, value in content.items() if value is not None})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a network and data, as a user would have it; registries and imports are put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for registry in (architectures.ARCHITECTURES, data.SOURCES):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    (tmp_path / "net.py").write_text(NET)
    save_npz(tmp_path / "stripes.npz")
    return tmp_path


def run(*arguments):
    cli.main([str(argument) for argument in arguments])


SEARCH = ["--density", 0.3, "--scheme", "erk", "--epochs", 1, "--batch-size", 8, "--mask-every", 8]


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


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"x_test": None}, DataError, "lacks x_test; it must hold .* and has x_train, y_train, y_test"),
        ({"y_train": np.zeros(240)}, ShapeError, "y_train of 'bad' must be 240 integers"),
        ({"y_train": np.zeros(3, int)}, ShapeError, "one per image"),
        ({"x_train": np.zeros(240)}, ShapeError, r"must be images \[n, h, w, c\], sequences .* or features"),
        ({"x_train": np.zeros((240, 6, 6, 1), int)}, ShapeError, "uint8 or floating point"),
        ({"x_train": np.full((240, 6, 6, 1), np.nan)}, DataError, "NaN"),
        ({"x_test": np.zeros((60, 5, 6, 1), np.uint8)}, ShapeError, r"differ in shape: \[6, 6, 1\] and \[5, 6, 1\]"),
        ({"y_train": np.full(240, -1)}, DataError, "labels outside"),
        ({"classes": np.array(["a", "b"])}, DataError, r"labels outside 0 \.\.\. 1"),
        ({"x_train": np.array([None] * 240)}, DataError, "cannot be read: it holds pickled Python objects"),
        ({"x_train": np.zeros((0, 6, 6, 1)), "y_train": np.zeros(0, int)}, ShapeError, "n > 0"),
        ({"x_train": np.zeros((240, 0, 6, 1))}, ShapeError, "n > 0"),
        ({"y_train": np.zeros(240, int), "y_test": np.zeros(60, int)}, DataError, "all labels are 0"),
    ],
)
def test_files_that_hold_no_data_are_refused(folder, change, error, says):
    save_npz(folder / "bad.npz", **change)
    with pytest.raises(error, match=says):
        data.own.register("bad.npz")


def test_labels_that_do_not_count_from_0_are_told(folder):
    save_npz(folder / "from1.npz", y_train=np.arange(240) % 3 + 1, y_test=np.ones(60, int))
    with pytest.warns(UserWarning, match=r"from1.npz has no training image of class 0: labels count from 0"):
        data.own.register("from1.npz")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("none.npz", "no file none.npz"),
        ("net.py:a_set", r"returned set; it must return \(x_train"),
        ("net.py:wants_more", "called without arguments: missing a required argument: 'path'"),
        ("net.py:lost", r"raised FileNotFoundError: .*lost.csv' \(net.py, line \d+\)"),
        ("net.py:none", r"raised TypeError: arrays\(\) takes 0 positional arguments"),
        ("nowhere", "neither an .npz file nor a folder"),
        ("mnist.npz", "'mnist' is a data set of nttzoo"),
    ],
)
def test_data_that_is_none_is_refused(folder, text, says):
    save_npz(folder / "mnist.npz")
    with pytest.raises(NttzooError, match=says):
        data.own.register(text)


def test_functions_sequences_and_gray_images_without_a_channel_axis(folder):
    found = data.load(data.own.register("net.py:arrays"))
    assert (found.name, found.input_shape, len(found.train), len(found.test)) == ("arrays", (6, 6), 9, 6)
    images, labels = np.zeros((9, 6, 5), np.uint8), np.arange(9) % 3
    np.savez("gray.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    assert data.load(data.own.register("gray.npz")).input_shape == (6, 5, 1)


@pytest.mark.parametrize("shape", [(5,), (4, 5)])  # features; sequences
def test_data_of_other_shapes_through_search_training_and_export(folder, shape):
    (folder / "flat.py").write_text(
        "from flax import nnx\nimport math\n"
        "class Flat(nnx.Module):\n"
        "    def __init__(self, rngs, input_shape):\n"
        "        self.head = nnx.Linear(math.prod(input_shape), 3, rngs=rngs)\n"
        "    def __call__(self, x):\n"
        "        return self.head(x.reshape(x.shape[0], -1))\n"
    )
    rng = np.random.default_rng(0)
    x, y = rng.normal(7, [1, 2, 3, 4, 5], (120, *shape)).astype(np.float32), np.arange(120) % 3
    np.savez("floats.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    own = ["--model", "flat.py:Flat"]
    run("search", *own, "--data", "floats.npz", *SEARCH, "--out", "run")
    run("train", *own, "--data", "floats.npz", "--start", "run", "--epochs", 1)
    trained = zoo.load(folder / "run", weights="trained")
    channels = x.reshape(-1, 5)
    standardized = (x - channels.mean(0)) / channels.std(0)
    kernel = np.asarray(trained.head.masked_kernel())
    expected = standardized.reshape(120, -1) @ kernel + np.asarray(trained.head.bias[...])
    run("export", *own, "run", "net.onnx")
    (answers,) = onnxruntime.InferenceSession("net.onnx").run(
        None, {"images": np.asarray(trained.input_spec.standardize(x))}
    )
    np.testing.assert_allclose(answers, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(nttzoo.compile(folder / "net.onnx")(standardized), expected, rtol=1e-4, atol=1e-4)


def write_images(root, per_class, size=(5, 4), mode="L"):
    rng = np.random.default_rng(0)
    shape = (*size, 3) if mode == "RGB" else size
    for label in ("cat", "dog"):
        (root / label).mkdir(parents=True)
        for i in range(per_class):
            Image.fromarray(rng.integers(0, 256, shape).astype(np.uint8)).save(root / label / f"{i:02}.png")


def test_a_folder_of_images_per_class(folder):
    write_images(folder / "pets", 6)
    pets = data.load(data.own.register("pets/"))
    assert (pets.classes, pets.input_shape) == (("cat", "dog"), (5, 4, 1))
    assert pets.train.labels.tolist() == [0] * 5 + [1] * 5
    last = np.asarray(Image.open(folder / "pets/dog/05.png"))
    np.testing.assert_array_equal(pets.test.images[1, ..., 0], last)
    write_images(folder / "split/train", 2, mode="RGB")
    write_images(folder / "split/test", 1, mode="RGB")
    split = data.own.from_folder("split")
    assert (len(split.train), len(split.test), split.input_shape) == (4, 2, (5, 4, 3))


def test_folders_that_hold_no_data_are_refused(folder):
    write_images(folder / "few", 3)
    with pytest.raises(DataError, match="fewer than 6 images"):
        data.own.from_folder("few")
    write_images(folder / "mixed", 6)
    Image.new("L", (9, 9)).save(folder / "mixed/dog/03.png")
    with pytest.raises(DataError, match="9 x 9 pixels, the images before it are 5 x 4"):
        data.own.from_folder("mixed")
    (folder / "mixed/cat/00.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"00\.png cannot be read as an image"):
        data.own.from_folder("mixed")
    (folder / "empty/cat").mkdir(parents=True)
    with pytest.raises(DataError, match="no images in cat"):
        data.own.from_folder("empty")
    write_images(folder / "odd/train", 1)
    write_images(folder / "odd/test", 1)
    (folder / "odd/test/dog").rename(folder / "odd/test/fox")
    with pytest.raises(DataError, match="does not have: fox"):
        data.own.from_folder("odd")


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
