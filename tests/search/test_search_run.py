"""`python scripts/search.py` as people use it."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from nttzoo import checkpoint, cli, data, search
from nttzoo.sparsity import masks

SCRIPT = Path(__file__).parents[2] / "scripts" / "search.py"
SHORT = ["--epochs", "1", "--batch-size", "16", "--mask-every", "50", "--density", "0.02", "0.1"]


def run(capsys, *arguments):
    """(exit code, stdout, stderr)"""
    try:
        cli.main(["search", *arguments])
        code = 0
    except SystemExit as exit:
        code = exit.code
    return code, *capsys.readouterr()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run of SHORT, in a process of its own."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    done = subprocess.run([sys.executable, SCRIPT, *SHORT, "--out", folder], capture_output=True, text=True, check=True)
    return folder, done.stdout


@pytest.mark.slow
def test_a_run_ends_with_students_summary_picture_and_the_next_command(whole):
    folder, stdout = whole
    assert {p.name for p in folder.iterdir()} >= {"config.json", "metrics.jsonl", "summary.json", "report.png"}
    summary = json.loads((folder / "summary.json").read_text())
    assert list(summary["students"]) == ["2pct-layerwise", "10pct-layerwise"]
    for name, entry in summary["students"].items():
        model, about = search.load_student(folder / "students" / name)
        assert about["recipe"] == "ntt"
        assert masks.density_report(model).total.kept == sum(layer["kept"] for layer in entry["density"])
        assert entry["kernel_after"] < entry["kernel_before"]
        assert name in stdout
    assert "nttzoo train --start" in stdout
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines][:3] == [0, 50, 100]
    assert {"kernel", "target", "decay", "churn", "density"} <= lines[1]["students"]["2pct-layerwise"].keys()


def test_from_search_over_training_to_export(whole, tmp_path, capsys):
    student = tmp_path / "student"
    shutil.copytree(whole[0] / "students" / "2pct-layerwise", student)
    cli.main(["train", "--start", str(student), "--data", "mnist5k", "--epochs", "1"])
    printed = capsys.readouterr().out
    assert f"nttzoo export {student} model.onnx" in printed
    cli.main(["export", str(student), str(tmp_path / "model.onnx")])
    digits = data.load("mnist5k")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"images": np.asarray(digits.standardize(digits.test.images))})
    accuracy = (logits.argmax(1) == digits.test.labels).mean()
    assert accuracy == pytest.approx(json.loads((student / "trained" / "model.json").read_text())["test_accuracy"])
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == list("0123456789")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_goes_on_and_ends_bit_for_bit_the_same(whole, tmp_path, how):
    folder = tmp_path / "run"
    command = [sys.executable, SCRIPT, *SHORT, "--out", folder, "--save-every", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not any(p.name.isdigit() for p in (folder / "checkpoints").glob("*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(how)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == (-9 if how == signal.SIGKILL else 143)
    assert not (folder / "summary.json").exists()
    if how == signal.SIGTERM:
        assert "the same command resumes from there" in stderr
    subprocess.run(command, capture_output=True, check=True)
    for name in ("2pct-layerwise", "10pct-layerwise"):
        ours, theirs = (checkpoint.load_arrays(f / "students" / name / "arrays") for f in (folder, whole[0]))
        assert all(np.array_equal(ours[key], theirs[key]) for key in theirs)
    assert (folder / "metrics.jsonl").read_text() == (whole[0] / "metrics.jsonl").read_text()


def test_a_finished_run_is_not_repeated_and_another_config_is_refused(whole, capsys, monkeypatch):
    folder, stdout = whole
    monkeypatch.setattr("nttzoo.search.runner.transfer", None)
    assert run(capsys, *SHORT, "--out", str(folder))[:2] == (0, stdout)
    code, _, stderr = run(capsys, *SHORT, "--seed", "3", "--out", str(folder))
    assert code == 2
    assert "seed: 0 there, 3 now" in stderr
    (folder.parent / "thesis").mkdir()
    (folder.parent / "thesis" / "thesis.tex").touch()
    assert "not the folder of a run" in run(capsys, *SHORT, "--out", str(folder.parent / "thesis"))[2]
    assert "--fresh" in stderr


def test_a_dry_run_prints_plan_memory_and_time_and_writes_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, stdout, _ = run(capsys, *SHORT, "--dry-run")
    assert code == 0
    assert "309 (1 epochs, batch 16)" in stdout
    assert "MiB per device" in stdout
    assert "ms per step" in stdout
    assert "4,936 to search on, 64 held out" in stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--recipe", "gradul"], "Did you mean 'gradual'"),
        (["--batch-size", "63"], "for example 62 or 64"),
        (["--density", "3"], "0.03 keeps 3 %"),
        (["--density", "0.0001"], "needs a density of at least"),
        (["--devices", "9"], "choose 1 to 1"),
        (["--data", "cifar10", "--model", "conv4", "--data-dir", "nowhere"], "Two ways to get it"),
    ],
)
def test_bad_input_is_explained_before_a_folder_is_made(capsys, tmp_path, arguments, says):
    code, _, stderr = run(capsys, *arguments, "--out", str(tmp_path / "run"))
    assert code == 2
    assert says in stderr
    assert not (tmp_path / "run").exists()
