"""Files that somebody else made: refused with their name before they do harm, whatever is wrong with them."""

import copy
import hashlib
import json
import os
import shutil
import tracemalloc

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from wrong_json import mutations

import nttzoo
from nttzoo import checkpoint, cli, zoo
from nttzoo._util import files
from nttzoo.codegen import to_source
from nttzoo.errors import ExportError, FileError, NttzooError
from nttzoo.experiments import publish

NAME = "lenet300-mnist-1pct-global"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A zoo of one entry that may be damaged."""
    package = zoo.homes()[0]
    for kind in ("models", "checkpoints"):
        shutil.copytree(package / kind / NAME, tmp_path / "home" / kind / NAME)
    publish.regenerate(tmp_path / "home")
    monkeypatch.setenv("NTTZOO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def bless(home):
    """Makes manifest and index agree with the files, as a stranger would."""
    listed = {name: files.describe(path) for name, path in zoo.files_of(home, NAME).items()}
    manifest = home / "checkpoints" / NAME / "manifest.json"
    manifest.write_text(json.dumps({"format": 1, "name": NAME, "files": listed}))
    path = home / "models" / "index.json"
    index = json.loads(path.read_text())
    index["entries"][NAME]["manifest_sha256"] = hashlib.sha256(manifest.read_bytes()).hexdigest()
    path.write_text(json.dumps(index))


def everything(home):
    """What a user may call."""
    zoo.verify(home)
    nttzoo.info(NAME)
    nttzoo.load(NAME)
    nttzoo.load(NAME, weights="trained")
    cli.main(["info", NAME])
    cli.main(["list"])


@pytest.mark.parametrize("file", ["models/index.json", f"checkpoints/{NAME}/manifest.json"])
def test_any_change_of_index_and_manifest_is_refused_or_harmless(home, file):
    path = home / file
    whole = json.loads(path.read_text())
    if "files" in whole:
        whole["files"] = dict(list(whole["files"].items())[:2])  # they are all alike
    tried = 0
    for wrong in mutations(whole):
        path.write_text(json.dumps(wrong))
        tried += 1
        try:
            zoo.verify(home)
            nttzoo.list_models()
        except NttzooError as error:
            assert file.rsplit("/", 1)[-1] in str(error) or NAME in str(error)  # noqa: PT017
    assert tried > 50


@pytest.mark.slow
def test_any_change_of_the_metrics_is_refused_or_gives_the_same_network(home, capsys):
    path = home / "models" / NAME / "metrics.json"
    whole = json.loads(path.read_text())
    expected = nttzoo.load(NAME)
    images = np.ones((1, 28, 28, 1), np.float32)
    refused = 0
    for number, wrong in enumerate(mutations(whole)):
        if number % 13:
            continue  # every one of them takes minutes; the soak does
        path.write_text(json.dumps(wrong))
        bless(home)
        try:
            nttzoo.info(NAME)
            model = nttzoo.load(NAME)
            cli.main(["info", NAME])
        except FileError as error:
            refused += 1
            assert "metrics.json" in str(error) or NAME in str(error)  # noqa: PT017
        except (NttzooError, SystemExit):
            refused += 1  # another architecture, say
        else:
            np.testing.assert_array_equal(model(images), expected(images))
    assert refused > 20


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mean", [1e400]),
        ("std", [-0.1]),
        ("std", [0.1, 0.2]),
        ("mean", []),
        ("input_shape", [2**20, 2**20, 1]),
        ("input_shape", [60000, 60000, 1]),
        ("classes", []),
        ("name", "../../x"),
        ("architecture", "../lenet300"),
        ("seed", -1),
        ("density", 2.0),
    ],
)
def test_metrics_that_would_harm(home, key, value):
    path = home / "models" / NAME / "metrics.json"
    content = {**json.loads(path.read_text()), key: value}
    path.write_text(json.dumps(content))
    bless(home)
    for call in (zoo.verify, everything, publish.regenerate):
        with pytest.raises(NttzooError):
            call(home)
    assert not (home.parent / "x").exists()


def special(path, kind):
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "deep":
        path.write_text("[" * 200_000)
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(2**42)
    else:
        path.write_bytes(b"\xff\xfe\0")


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "deep", "huge", "bytes"])
@pytest.mark.parametrize(
    "file",
    [
        "models/index.json",
        f"checkpoints/{NAME}/manifest.json",
        f"models/{NAME}/metrics.json",
        f"models/{NAME}/model.onnx",
    ],
)
def test_what_is_not_a_file_of_ours_is_refused_at_once(home, file, kind):
    special(home / file, kind)
    for call in (lambda: zoo.verify(home), lambda: nttzoo.load(NAME), lambda: zoo.onnx_file(NAME)):
        with pytest.raises(NttzooError, match=r"index\.json|manifest\.json|metrics\.json|model\.onnx"):
            call()


def test_an_array_of_another_size_does_not_pass_for_the_networks(home):
    model = nttzoo.load(NAME)
    packed = checkpoint.pack(model)
    folder = home / "checkpoints" / NAME / "init"
    for name, wrong in {
        "linear1.bias": np.zeros(1, np.float32),
        "linear1.kernel": packed["linear1.kernel"][:1],
        "linear2.kernel": packed["linear2.kernel"].astype(np.float16),
        "linear2.bias": np.zeros(100, np.int8),
        "linear3.bias": np.full(10, np.nan, np.float32),
    }.items():
        checkpoint.save_arrays(folder, {**packed, name: wrong})
        bless(home)
        for call in (lambda: zoo.verify(home), lambda: nttzoo.load(NAME)):
            with pytest.raises(FileError, match=r"init"):
                call()


# ONNX files that are small and ask for much.


def sparse(dims, places=(0,), values=(1.0,)):
    weights = helper.make_tensor("w", TensorProto.FLOAT, [len(values)], list(values))
    indices = helper.make_tensor("i", TensorProto.INT64, [len(places)], list(places))
    return helper.make_sparse_tensor(weights, indices, dims)


def graph(nodes, initializers=(), sparse_initializers=(), shape=("B", 4)):
    proto = helper.make_graph(
        nodes,
        "bomb",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))],
        [helper.make_empty_tensor_value_info("y")],
        list(initializers),
    )
    proto.sparse_initializer.extend(sparse_initializers)
    return helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def shape_of(*sizes):
    return helper.make_tensor("s", TensorProto.INT64, [len(sizes)], list(sizes))


MUL = helper.make_node("MatMul", ["x", "w"], ["y"])
BOMBS = {
    "sparse": graph([MUL], sparse_initializers=[sparse([4, 2**31])]),
    "sparse of many axes": graph([MUL], sparse_initializers=[sparse([2**20] * 8)]),
    "many sparse": graph([MUL], sparse_initializers=[sparse([4, 2**26])] * 8),
    "sparse, negative": graph([MUL], sparse_initializers=[sparse([4, -1])]),
    "sparse, elsewhere": graph([MUL], sparse_initializers=[sparse([4, 2], places=(99,))]),
    "sparse, more places": graph([MUL], sparse_initializers=[sparse([4, 2], places=(1, 2), values=(1.0,))]),
    "constant of shape": graph([helper.make_node("ConstantOfShape", ["s"], ["w"]), MUL], [shape_of(4, 2**33)]),
    "expand": graph(
        [helper.make_node("Expand", ["one", "s"], ["w"]), MUL],
        [shape_of(4, 2**33), helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])],
    ),
    "tile": graph(
        [helper.make_node("Tile", ["one", "s"], ["w"]), MUL],
        [shape_of(4, 2**33), helper.make_tensor("one", TensorProto.FLOAT, [1, 1], [1.0])],
    ),
    "range": graph(
        [helper.make_node("Range", ["a", "b", "c"], ["w"]), helper.make_node("Add", ["x", "w"], ["y"])],
        [helper.make_tensor(n, TensorProto.FLOAT, [], [v]) for n, v in (("a", 0.0), ("b", 1e12), ("c", 1.0))],
    ),
    "input": graph([helper.make_node("Relu", ["x"], ["y"])], shape=("B", 2**40)),
}


@pytest.mark.parametrize("which", BOMBS)
def test_a_small_onnx_file_that_asks_for_gigabytes_is_refused(which, tmp_path):
    assert BOMBS[which].ByteSize() < 2000
    onnx.save(BOMBS[which], tmp_path / "bomb.onnx")
    tracemalloc.start()
    with pytest.raises(ExportError):
        to_source(tmp_path / "bomb.onnx")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**28


# On the command line.


def one_line(capsys, *arguments):
    with pytest.raises(SystemExit) as exit:
        cli.main([*map(str, arguments)])
    assert exit.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("nttzoo: ")
    assert "Traceback" not in said
    return said


COMPARISON = {
    "comparison": {
        "model": "lenet300",
        "data": "mnist5k",
        "methods": ["ntt"],
        "densities": [0.02],
        "schemes": ["global"],
        "seeds": [0],
        "train_epochs": 1,
        "change": {},
        "dropout": True,
    },
    "cases": [{"method": "ntt", "seed": 0, "scheme": "global", "density": 0.02, "test_accuracy": 0.5, "origin": 0}],
    "origins": [{}],
}
RUNTIMES = {
    "cases": [{"name": NAME, "architecture": "lenet300", "density": 0.01, "milliseconds": {"1": {"1": {"x": 1.0}}}}],
    "machine": {"processor": "abacus"},
    "runtimes": {},
}


@pytest.mark.parametrize(("kind", "whole"), [("comparison", COMPARISON), ("runtimes", RUNTIMES)])
def test_malformed_results_are_refused_in_one_line(home, tmp_path, capsys, kind, whole):
    path = tmp_path / f"{kind}.json"
    before = {file: file.read_bytes() for file in home.rglob("*") if file.is_file()}
    texts = [json.dumps(wrong) for wrong in mutations(copy.deepcopy(whole))][::3]
    for text in [*texts, "", "[" * 100_000, "NaN", json.dumps(whole)]:
        path.write_text(text)
        ways = {"comparison": [path, "--runs", tmp_path / "runs"], "runtimes": ["--runtimes", path]}
        said = one_line(capsys, "publish", *ways[kind], "--home", home)
        assert str(tmp_path) in said or "No data set" in said or "no data set" in said
    assert {file: file.read_bytes() for file in home.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize(
    "command",
    [
        ["train", "--data", "mnist5k", "--epochs", "1"],
        ["search", "--epochs", "1"],
        ["compare", "--model", "lenet300", "--data", "mnist5k", "--methods", "random", "--density", "0.1", "--scheme",
         "layerwise", "--seeds", "0", "--train-epochs", "1"],
        ["load-check"],
    ],
)  # fmt: skip
def test_a_place_that_cannot_be_written_is_refused_before_any_work(tmp_path, capsys, monkeypatch, command):
    monkeypatch.setattr("nttzoo.data.load", None)
    (tmp_path / "file").touch()
    said = one_line(capsys, *command, "--out", tmp_path / "file" / "inside")
    assert "file" in said


@pytest.mark.parametrize("option", ["--results", "--report", "--runs"])
def test_reproduce_looks_at_its_folders_before_any_work(tmp_path, capsys, monkeypatch, option):
    monkeypatch.setattr("nttzoo.data.load", None)
    (tmp_path / "file").touch()
    places = {name: tmp_path / name for name in ("--results", "--report", "--runs")}
    places[option] = tmp_path / "file" / "inside" / "more"
    said = one_line(capsys, "reproduce", "table1", *(part for place in places.items() for part in place))
    assert "is not a folder" in said
    assert {path.name for path in tmp_path.iterdir()} == {"file"}


def test_a_gallery_looks_at_its_folder_before_any_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("nttzoo.zoo.list_models", None)
    (tmp_path / "file").touch()
    assert "is not a folder" in one_line(capsys, "gallery", "--out", tmp_path / "file" / "inside")
