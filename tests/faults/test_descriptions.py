"""Every JSON file that describes something of ours, wrong at every key: refused by an error that names the file.

The manifests agree with the files, as they would if a stranger had made both.
"""

import json
import os
import shutil
import warnings
import zipfile

import numpy as np
import pytest
from wrong_json import mutations, nested

import nttzoo
from nttzoo import architectures, checkpoint, data, search, zoo
from nttzoo._util import files
from nttzoo.errors import DataError, FileError, NttzooError
from nttzoo.experiments import estimates, results
from nttzoo.search import run_folder
from nttzoo.sparsity import pruning
from nttzoo.training import TrainConfig
from nttzoo.training.checkpoint import Checkpoint
from nttzoo.training.history import SERIES, History
from nttzoo.zoo import changes

pytestmark = pytest.mark.filterwarnings("ignore:.*without a manifest")
SHAPE = (4, 4, 1)


def network():
    model = architectures.create("lenet300", input_shape=SHAPE, num_classes=3, rngs=0)
    model.input_spec = data.InputSpec(SHAPE, (0.5,), (1.0,), ("a", "b", "c"))
    return pruning.prune(model, "magnitude", density=0.1)


def student(folder):
    about = {"architecture": "lenet300", "seed": 0, "data": "d", "density": 0.1, "scheme": "layerwise", "recipe": "r"}
    checkpoint.save_network(folder, network(), about)
    return folder / "model.json", lambda: nttzoo.load(folder, weights="init")(np.ones((1, *SHAPE), np.float32))


def saved(folder):
    nttzoo.save(network(), folder)
    return folder / "model.json", lambda: nttzoo.load(folder)(np.ones((1, *SHAPE), np.float32))


def summary(folder):
    folder.mkdir()
    layer = {"name": "linear1", "size": 10, "kept": 1}
    found = {"kernel_before": 2.0, "kernel_after": 1.0, "target_after": 1.0, "density": [layer]}
    config = {"model": "lenet300", "data": "mnist"}
    content = {"config": config, "steps": 3, "students": {"1pct": {**found, "speedup": {"theoretical": 2.0}}}}
    files.write_text(folder / "config.json", "{}")
    run_folder.write_summary(folder, content)
    return folder / "summary.json", lambda: str(search.Summary(folder, run_folder.read_summary(folder)))


def run(folder):
    """A run that is to be resumed."""
    search.Journal(folder).claim({"model": "lenet300", "recipe": {"epochs": 1}})
    return folder / "config.json", lambda: search.Journal(folder).check({"model": "lenet300", "recipe": {"epochs": 1}})


def checkpointed(folder):
    part = data.Labeled(np.zeros((2, *SHAPE), np.uint8), np.zeros(2, np.int32))
    kept = Checkpoint(folder, TrainConfig(), data.Dataset("zeros", part, part, ("a", "b", "c")), np.zeros(3))
    kept.write(History(*([0.5],) * 5), {"weights": np.ones(3)}, now=True)
    return folder / "training.json", lambda: kept.read().history.to_dict()


def result(folder):
    file = folder / "lenet300-mnist-1pct" / "30epochs" / "seed0.json"
    training = {"epochs": 1, "dropout": True}
    case = {"model": "lenet300", "data": "mnist", "method": "ntt", "density": 0.01, "scheme": "layerwise", "seed": 0}
    series = {key: [0.5] for key in SERIES}
    content = {
        "case": {**case, "control": "", "change": {}, "training": training},
        "test_accuracy": 0.5,
        "student": {"steps": 3, "kernel_before": 2.0, "kernel_after": 1.0},
        "layers": [{"name": "linear1", "size": 10, "kept": 1}],
        "speedup": {"total": {"dense": 10, "sparse": 1}, "theoretical": 10.0},
        "history": {**series, "engine": "c", "engine_note": ""},
        "date": "2026-01-01",
        "machine": {"processor": "abacus", "cores": 1, "memory_gib": 1},
    }
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(content))

    def use():
        (found,) = results.read(folder)
        estimates.Estimates(folder)
        return found.test, found.train, found.epochs, found.multiply_adds, found.dropout, found.variant

    return file, use


def journal(folder):
    (folder / changes.STAGE / "models").mkdir(parents=True)
    (folder / changes.STAGE / "models" / "index.json").write_text("{}")
    file = folder / changes.STAGE / changes.JOURNAL
    file.write_text(json.dumps({"format": 1, "paths": ["models/index.json"]}))
    return file, lambda: changes.settle(folder)


def content_of(file, text, folder):
    """Writes a file, and the manifest that goes with it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    if (folder / files.MANIFEST).exists():
        files.seal(folder)


KINDS = [student, saved, summary, run, checkpointed, result, journal]


@pytest.mark.parametrize("make", KINDS)
def test_any_change_of_a_description_is_refused_or_harmless(tmp_path, make):
    folder = tmp_path / "folder"
    file, use = make(folder)
    whole = json.loads(file.read_text())
    if make is not journal:  # which is completed, and then gone
        use()
    shutil.copytree(folder, tmp_path / "whole", dirs_exist_ok=True)
    refused = 0
    texts = [json.dumps(wrong) for wrong in mutations(whole)]
    step = max(len(texts) // 25, 1)  # all of them would take minutes
    odd = [nested(100), nested(200_000), "", "{", "[NaN]", '{"a": Infinity}', '{"a": 1e999}', "\ufeff{}", '"\\ud800"']
    for text in [*odd, *texts[:10], *texts[10::step]]:
        content_of(file, text, folder)
        try:
            use()
        except NttzooError as error:
            refused += 1
            assert str(folder) in str(error) or "lenet300" in str(error)  # noqa: PT017
        if not file.parent.exists():  # a journal that was harmless
            shutil.copytree(tmp_path / "whole", folder, dirs_exist_ok=True)
    assert refused > 15
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "whole"}


@pytest.mark.parametrize("make", [student, summary, checkpointed, result])
@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "dangling"])
def test_a_description_that_is_no_file_is_refused_at_once(tmp_path, make, kind):
    file, use = make(tmp_path / "folder")
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to("/dev/zero" if kind == "device" else tmp_path / "nowhere")
    with pytest.raises(NttzooError, match=f"{file.name}|folder"):
        use()


def test_a_change_never_writes_through_a_symbolic_link(tmp_path):
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (home / changes.STAGE / "models").mkdir(parents=True)
    (home / changes.STAGE / "models" / "authorized_keys").write_text("mine")
    (home / changes.STAGE / changes.JOURNAL).write_text('{"format": 1, "paths": ["models/authorized_keys"]}')
    (home / "models").symlink_to(elsewhere)
    with pytest.raises(FileError, match="symbolic link"):
        zoo.verify(home)
    assert not list(elsewhere.iterdir())


def test_arrays_of_a_training_are_those_that_were_written(tmp_path):
    file, use = checkpointed(tmp_path / "folder")
    arrays = file.with_name("arrays.npz")
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }"
    for member, packing in ((header.ljust(127) + b"\n", zipfile.ZIP_STORED), (bytes(2**20), zipfile.ZIP_DEFLATED)):
        with zipfile.ZipFile(arrays, "w", packing) as archive:
            archive.writestr("weights.npy", member)
        files.seal(tmp_path / "folder")
        with pytest.raises(FileError, match=r"arrays\.npz"):
            use()


def test_a_data_set_that_is_no_file_is_refused_at_once(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "mnist.npz")
    monkeypatch.setenv("NTTZOO_DATA", str(tmp_path))
    with warnings.catch_warnings(), pytest.raises(DataError, match=r"mnist\.npz"):
        data.load("mnist")


def test_a_report_of_damaged_metrics_is_not_taken(tmp_path):
    kept = search.Journal(tmp_path / "run")
    lines = ['{"step": 1, "students": {}}', "[1]", '{"step": "x", "students": {}}']
    assert [line["step"] for line in kept._read("\n".join(lines), 5)] == [1]
