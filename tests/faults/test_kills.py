"""Whatever is killed at whatever moment, what is on disk afterwards is the old or the new, whole."""

import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from kills import events_of, killed_at

from nttzoo import architectures, checkpoint, data, zoo
from nttzoo._util import files
from nttzoo.experiments import publish
from nttzoo.sparsity import pruning
from nttzoo.training import TrainConfig
from nttzoo.training.checkpoint import Checkpoint
from nttzoo.training.history import SERIES, History
from nttzoo.zoo import changes

NAMES = ("lenet300-mnist-1pct-global", "lenet300-mnist-2pct-global")
SPEC = data.InputSpec((4, 4, 1), (0.5,), (0.25,), ("no", "yes"))


def network(seed):
    model = architectures.create("lenet300", input_shape=(4, 4, 1), num_classes=2, rngs=seed)
    model.input_spec = data.InputSpec(SPEC.shape, (float(seed),), SPEC.std, SPEC.classes)
    return pruning.prune(model, "magnitude", density=0.1)


def saved(folder, seed):
    checkpoint.save_network(folder, network(seed), {"architecture": "lenet300", "seed": seed})


def loaded(folder):
    """Which of the networks it is, after checking that arrays and description belong together."""
    model, about = checkpoint.load_network(folder)
    expected = checkpoint.pack(network(about["seed"]))
    assert all(np.array_equal(array, expected[name]) for name, array in checkpoint.pack(model).items())
    assert model.input_spec.mean == (float(about["seed"]),)
    return about["seed"]


@pytest.mark.slow
@pytest.mark.parametrize("can_swap", [True, False])
def test_training_over_older_weights(tmp_path, monkeypatch, can_swap):
    if not can_swap:
        monkeypatch.setattr(files.folders, "_swap", lambda one, other: False)
    saved(tmp_path / "count", 1)
    total = events_of(lambda: saved(tmp_path / "count", 2), tmp_path)
    assert total >= 8
    seen = set()
    for k in range(total + 1):
        folder = tmp_path / str(k)
        shutil.copytree(tmp_path / "first", folder) if (tmp_path / "first").exists() else saved(folder, 1)
        if not (tmp_path / "first").exists():
            shutil.copytree(folder, tmp_path / "first")
        with killed_at(k, tmp_path):
            saved(folder, 2)
        seen.add(loaded(folder))
        saved(folder, 3)  # what the kill left does not stand in the way
        assert loaded(folder) == 3
    assert seen == {1, 2}


def test_saving_a_state(tmp_path):
    def state(value):
        return {"a": jnp.full(50, value), "b": jnp.full((), value)}

    def save(folder, step):
        checkpoint.Checkpoints(folder).save(step, state(step), {"reports.jsonl": f"{step}\n"})

    save(tmp_path / "count", 1)
    total = events_of(lambda: save(tmp_path / "count", 2), tmp_path)
    for k in range(total + 1):
        folder = tmp_path / str(k)
        save(folder, 1)
        with killed_at(k, tmp_path):
            save(folder, 2)
        kept = checkpoint.Checkpoints(folder)
        step = kept.latest_whole()
        assert step in (1, 2)
        found = kept.restore(step, state(0))
        assert (np.asarray(found["a"]) == step).all()
        assert int(found["b"]) == step
        assert kept.text(step, "reports.jsonl") == f"{step}\n"
        save(folder, 2)
        assert kept.latest_whole() == 2


def test_saving_a_training(tmp_path):
    part = data.Labeled(np.zeros((2, 4, 4, 1), np.uint8), np.zeros(2, np.int32))
    dataset = data.Dataset("zeros", part, part, ("no", "yes"))

    def checkpoint_of(folder):
        return Checkpoint(folder, TrainConfig(), dataset, np.zeros(3))

    def save(folder, epochs):
        history = History(**{name: [0.5] * epochs for name in SERIES})
        checkpoint_of(folder).write(history, {"weights": np.full(9, epochs)}, now=True)

    save(tmp_path / "count", 1)
    total = events_of(lambda: save(tmp_path / "count", 2), tmp_path)
    seen = set()
    for k in range(total + 1):
        folder = tmp_path / str(k)
        save(folder, 1)
        with killed_at(k, tmp_path):
            save(folder, 2)
        found = checkpoint_of(folder).read()
        assert (found.arrays["weights"] == found.history.epochs).all()
        seen.add(found.history.epochs)
        save(folder, 3)
        assert checkpoint_of(folder).read().history.epochs == 3
    assert seen == {1, 2}


def content(home):
    """All files of a zoo but what only writers look at."""
    paths = (path.relative_to(home) for path in home.rglob("*") if path.is_file())
    return {
        str(path): (home / path).read_bytes() for path in paths if path.parts[0] not in (changes.STAGE, changes.LOCK)
    }


@pytest.fixture(scope="module")
def homes(tmp_path_factory):
    """(a small zoo, the same with one entry republished and one added, a function that publishes)."""
    package, folder = zoo.homes()[0], tmp_path_factory.mktemp("homes")
    old, fresh = folder / "old", folder / "fresh"
    for home, names in ((old, NAMES[:1]), (fresh, NAMES)):
        for name in names:
            for kind in ("models", "checkpoints"):
                shutil.copytree(package / kind / name, home / kind / name)
    for name in NAMES:
        path = fresh / "models" / name / "metrics.json"
        metrics = json.loads(path.read_text())
        metrics["command"] = "republished"
        path.write_text(json.dumps(metrics))
    publish.regenerate(old)

    def publish_both(home):
        with changes.changing(home) as stage:
            others = zoo.verify(home, leave_out=NAMES)
            for name in NAMES:
                for kind in ("models", "checkpoints"):
                    shutil.copytree(fresh / kind / name, stage / kind / name)
                (stage / "checkpoints" / name / "manifest.json").unlink(missing_ok=True)
            publish.stage_index(home, stage, new=NAMES, names={*others, *NAMES})

    return old, publish_both


@pytest.mark.slow
def test_publishing(homes, tmp_path, monkeypatch):
    old, publish_both = homes
    shutil.copytree(old, tmp_path / "count")
    total = events_of(lambda: publish_both(tmp_path / "count"), tmp_path)
    before, after = content(old), content(tmp_path / "count")
    assert total > 40
    assert before != after
    seen = set()
    for k in range(total + 1):
        home = tmp_path / "home"
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(old, home)
        with killed_at(k, tmp_path):
            publish_both(home)
        names = zoo.verify(home)  # a reader comes next; all entries are whole
        assert content(home) in (before, after), f"killed at event {k}"
        seen.add(len(names))
        if k % 10 == 0:
            publish_both(home)  # what the kill left does not stand in the way
            assert content(home) == after
    assert seen == {1, 2}


@pytest.mark.slow
def test_a_reader_that_is_killed_while_it_completes_a_change(homes, tmp_path, monkeypatch):
    old, publish_both = homes
    home = tmp_path / "home"
    shutil.copytree(old, home)
    with monkeypatch.context() as patch:
        patch.setattr(
            changes, "_settle", lambda home: (home / changes.STAGE).exists() and (_ for _ in ()).throw(SystemExit)
        )
        with pytest.raises(SystemExit):
            publish_both(home)
    shutil.copytree(home, tmp_path / "cut")
    total = events_of(lambda: zoo.verify(home), tmp_path)
    after = content(home)
    assert after != content(old)
    for k in range(total):
        shutil.rmtree(home)
        shutil.copytree(tmp_path / "cut", home)
        with killed_at(k, tmp_path):
            zoo.verify(home)
        assert zoo.verify(home) == sorted(NAMES)
        assert content(home) == after


def test_two_publishers_take_turns(homes, tmp_path, monkeypatch):
    old, publish_both = homes
    home = tmp_path / "home"
    shutil.copytree(old, home)
    monkeypatch.setattr(changes, "WAIT_SECONDS", 0.0)
    with changes.changing(home), pytest.raises(Exception, match="another process is using"):
        publish_both(home)
    publish_both(home)
    assert zoo.verify(home) == sorted(NAMES)
