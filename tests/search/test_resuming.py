"""Interrupted runs, and the folders of runs."""

import json
import re

import numpy as np
import pytest
from tiny_search import config, images, teacher, weights

from nttzoo import search
from nttzoo._util import files
from nttzoo.errors import (
    RunError,
)
from nttzoo.search import loop

# Going on.


def finished(folder, **change):
    journal = search.Journal(folder)
    try:
        return search.transfer(teacher(), images(), config(**change), journal=journal, progress=False)
    finally:
        journal.close()


SEVERAL = {"densities": (0.2, 0.3), "schemes": ("layerwise", "global"), "outputs": 2, "start_density": 0.5}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A search that was not interrupted, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    return finished(folder, **SEVERAL), folder


@pytest.mark.slow
@pytest.mark.parametrize("stop", [3, 7])
def test_an_interrupted_run_ends_bit_for_bit_like_a_whole_one(tmp_path, monkeypatch, whole, stop):
    whole, folder = whole
    calls = iter(range(10**6))
    monkeypatch.setattr(loop, "agreed", lambda asked, chunk, save: (next(calls) == stop, 1, save))
    with pytest.raises(search.Interrupted, match="the same command resumes"):
        finished(tmp_path / "cut", **SEVERAL)
    monkeypatch.undo()
    again = finished(tmp_path / "cut", **SEVERAL)
    for one, other in zip(whole.students, again.students, strict=True):
        for path, (kernel, mask) in weights(one).items():
            np.testing.assert_array_equal(kernel, weights(other)[path][0])
            np.testing.assert_array_equal(mask, weights(other)[path][1])
        assert one.kernel_after == other.kernel_after
    metrics = [(place / "metrics.jsonl").read_text() for place in (folder, tmp_path / "cut")]
    assert metrics[0] == metrics[1]
    assert [json.loads(line) for line in metrics[0].splitlines()] == whole.reports


def test_reports_after_the_last_state_are_forgotten(tmp_path):
    finished(tmp_path / "run")
    path = tmp_path / "run" / "metrics.jsonl"
    whole = path.read_text()
    # As a kill in the middle of a line leaves it, here after an inner brace.
    path.write_text(whole + '{"step": 99, "students": {}}\n{"step": 1, "students": {"a": {}')
    finished(tmp_path / "run")
    assert path.read_text() == whole


def claim(folder, description, **options):
    journal = search.Journal(folder, **options)
    journal.claim(description)
    journal.close()


def test_a_folder_belongs_to_one_config(tmp_path):
    claim(tmp_path / "run", {"seed": 0, "recipe": {"epochs": 2}})
    with pytest.raises(RunError, match=r"belongs to another run:\n  recipe.epochs: 2 there, 3 now\nChoose"):
        claim(tmp_path / "run", {"seed": 0, "recipe": {"epochs": 3}})
    claim(tmp_path / "run", {"seed": 1}, fresh=True)
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == {"seed": 1}


def test_a_folder_is_one_process_at_a_time(tmp_path):
    journal = search.Journal(tmp_path / "run")
    journal.claim({"seed": 0})
    for fresh in (False, True):
        with pytest.raises(RunError, match="another process is using"):
            claim(tmp_path / "run", {"seed": 0}, fresh=fresh)
    journal.close()
    claim(tmp_path / "run", {"seed": 0})


def test_a_fresh_start_that_is_killed_leaves_no_run_that_looks_finished(tmp_path, monkeypatch):
    claim(tmp_path, {"seed": 0})
    (tmp_path / "students").mkdir()
    (tmp_path / "summary.json").write_text("{}")

    def killed(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        claim(tmp_path, {"seed": 0}, fresh=True)
    assert not (tmp_path / "summary.json").exists()
    assert (tmp_path / "config.json").exists()


def test_a_transfer_does_not_go_on_with_another_recipe(tmp_path):
    finished(tmp_path / "run")
    with pytest.raises(RunError, match=r"recipe.learning_rate: 0.002 there, 0.001 now"):
        finished(tmp_path / "run", learning_rate=1e-3)


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for fresh in (False, True):
        with pytest.raises(RunError, match="not empty and not the folder of a run"):
            claim(tmp_path, {"seed": 1}, fresh=fresh)
    assert (tmp_path / "thesis.tex").exists()


def test_going_on_with_other_devices_or_other_code_is_said(tmp_path):
    def resume():
        journal = search.Journal(tmp_path)
        search.transfer(teacher(), images(), config(mask_every=100), journal=journal, progress=False)
        journal.close()

    resume()
    resume()
    (path,) = (tmp_path / "checkpoints").glob("*/reports.jsonl")
    lines = path.read_text()
    assert '"devices": 1' in lines
    path.write_text(lines.replace('"devices": 1', '"devices": 8'))
    files.seal(path.parent)
    with pytest.warns(UserWarning, match="had 8 device.* continues with 1"):
        resume()
    path.write_text(re.sub('"code": "[^"]*"', '"code": "0123456789ab"', lines))
    files.seal(path.parent)
    with pytest.warns(UserWarning, match=r"another version of nttzoo's code \(0123456789ab, now "):
        resume()


def test_what_a_kill_leaves_of_the_first_file_does_not_lock_the_folder(tmp_path):
    (tmp_path / ".config.json.part").write_text("{")
    claim(tmp_path, {"seed": 1})


def test_a_report_that_cannot_be_written_is_explained(tmp_path, monkeypatch):
    def full(self, mode="r", *args, **kwargs):
        raise OSError(28, "No space left on device")

    journal = search.Journal(tmp_path / "run")
    journal.claim({})
    monkeypatch.setattr("pathlib.Path.open", full)
    with pytest.raises(RunError, match=r"cannot write in .*No space left on device.*Saved states are intact"):
        journal.report({"step": 1})


def test_a_disk_without_room_is_noticed_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10})())
    with pytest.raises(RunError, match=r"has space for 0 MiB"):
        finished(tmp_path / "run")
