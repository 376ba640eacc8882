"""Folders that earlier versions wrote, without manifests: they load, with one warning, and searches are resumed."""

import json
import shutil

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

import nttzoo
from nttzoo import architectures, checkpoint, search
from nttzoo._util import files
from nttzoo.errors import RunError
from nttzoo.search.recipes import Recipe

OLD_CONFIG = {  # as version 0.1 wrote it
    "model": "lenet300",
    "data": "mnist5k",
    "densities": [0.2],
    "schemes": ["layerwise"],
    "seed": 0,
    "recipe": {
        "kernel_weight": 1.0,
        "weight_decay": 0.0001,
        "name": "tiny",
        "epochs": 2,
        "batch_size": 8,
        "learning_rate": 0.002,
        "mask_every": 3,
        "tangents": "all",
        "outputs": None,
        "start_density": None,
        "fall": 0.6,
        "fall_shape": "geometric",
        "held_out": 0.2,
    },
}
CONFIG = search.SearchConfig(densities=(0.2,), recipe=Recipe(**OLD_CONFIG["recipe"]))
FEW = {"num_classes": 3, "input_shape": (4, 4, 1)}


def run(folder):
    teacher = architectures.create("lenet300", **FEW, rngs=0)
    images = np.random.default_rng(0).normal(size=(120, 4, 4, 1)).astype(np.float32)
    journal = search.Journal(folder)
    try:
        return search.transfer(teacher, images, CONFIG, journal=journal, progress=False, save_every=0)
    finally:
        journal.close()


def age(folder):
    """Turns a run's folder into what version 0.1 would have left: Orbax's own manager wrote the states."""
    whole = folder / "checkpoints"
    steps = sorted(int(path.name) for path in whole.iterdir())
    shutil.move(whole, folder / "new")
    manager = ocp.CheckpointManager(whole.absolute())
    with ocp.StandardCheckpointer() as reader:
        for step in steps:
            state = reader.restore((folder / "new" / str(step) / "default").absolute())
            manager.save(step, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
    manager.close()
    shutil.rmtree(folder / "new")
    (folder / ".lock").unlink(missing_ok=True)
    (folder / "config.json").write_text(json.dumps(OLD_CONFIG))


@pytest.mark.slow
def test_a_search_of_an_earlier_version_goes_on(tmp_path):
    expected = run(tmp_path / "run")
    last = max(int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir())
    shutil.rmtree(tmp_path / "run" / "checkpoints" / str(last))  # as if it had been killed before the end
    age(tmp_path / "run")
    with pytest.warns(UserWarning, match="by an earlier version of nttzoo, without a manifest") as seen:
        found = run(tmp_path / "run")
    assert len(seen) == 1
    for one, other in zip(found.students, expected.students, strict=True):
        mine, theirs = checkpoint.pack(one.model), checkpoint.pack(other.model)
        assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)
    run(tmp_path / "run")  # from a state of our own now: no warning


def test_a_field_that_the_old_config_lacks_must_have_its_default(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(OLD_CONFIG))
    journal = search.Journal(tmp_path)
    ours = {**CONFIG.to_dict(), "extra": 1}
    journal.check(ours, {**CONFIG.defaults(), "extra": 1})
    with pytest.raises(RunError, match="extra: 2 there, 1 now"):
        journal.check(ours, {**CONFIG.defaults(), "extra": 2})
    with pytest.raises(RunError, match="extra: None there, 1 now"):
        journal.check(ours, CONFIG.defaults())


def test_a_network_of_an_earlier_version_loads_with_one_warning(tmp_path):
    model = architectures.create("lenet300", **FEW, rngs=0)
    model.input_spec = nttzoo.data.InputSpec((4, 4, 1), (0.0,), (1.0,), ("a", "b", "c"))
    checkpoint.save_network(tmp_path / "student", model, {"architecture": "lenet300", "seed": 0})
    (tmp_path / "student" / "manifest.json").unlink()
    with pytest.warns(UserWarning, match="whether its files are whole cannot be checked") as seen:
        nttzoo.load(tmp_path / "student")
    assert len(seen) == 1
    files.seal(tmp_path / "student")
    nttzoo.load(tmp_path / "student")
    jax.clear_caches()
