"""The same search on one device, on eight, and on two hosts; devices and hosts are pretended."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nttzoo import search
from nttzoo.sparsity import masks

QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # most of the time is compilation
PROGRAM = Path(__file__).parents[1] / "search_on_devices.py"


def launch(out, *arguments, devices, **environment):
    flags = f"--xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(out), *map(str, arguments)],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", **QUICK, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(*processes, expected=0):
    errors = [process.communicate(timeout=240)[1] for process in processes]
    for process, text in zip(processes, errors, strict=True):
        assert bool(process.returncode) == bool(expected), text[-3000:]
    return errors


def assert_same(one, other):
    with np.load(one) as a, np.load(other) as b:
        assert a.files == b.files
        for name in a.files:
            if name.endswith(".mask"):
                np.testing.assert_array_equal(a[name], b[name])
            else:
                np.testing.assert_allclose(a[name], b[name], rtol=1e-3, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(("model", "tangents", "outputs"), [("lenet300", "active", 0), ("lenet5", "all", 2)])
def test_eight_devices_find_what_one_finds(tmp_path, model, tangents, outputs):
    arguments = (model, tangents, outputs)
    finish(
        launch(tmp_path / "one.npz", *arguments, 1, devices=8),
        launch(tmp_path / "eight.npz", *arguments, 8, devices=8),
    )
    assert_same(tmp_path / "one.npz", tmp_path / "eight.npz")


def on_two_hosts(out, *arguments, expected=0):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    common = {"JAX_COORDINATOR_ADDRESS": f"localhost:{port}", "JAX_NUM_PROCESSES": "2"}
    hosts = (launch(out, *arguments, devices=2, JAX_PROCESS_ID=str(i), **common) for i in range(2))
    return finish(*hosts, expected=expected)


def test_two_hosts_run_a_search_to_its_report(tmp_path):
    on_two_hosts(tmp_path / "run", "run")
    assert {"summary.json", "report.png"} <= {path.name for path in (tmp_path / "run").iterdir()}
    model, _ = search.load_student(tmp_path / "run" / "students" / "3pct-layerwise")
    assert masks.density_report(model).total.density == pytest.approx(0.03, abs=1e-4)


def test_a_refusal_on_the_first_host_stops_both(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    errors = on_two_hosts(tmp_path / "run", "run", expected=1)
    assert "not the folder of a run" in errors[0]
    assert "another host failed" in errors[1]


def test_two_hosts_save_go_on_and_find_what_one_device_finds(tmp_path):
    arguments = ("lenet300", "all", 2)
    finish(launch(tmp_path / "one.npz", *arguments, 1, devices=1))
    on_two_hosts(tmp_path / "two.npz", *arguments, "distributed", 3)
    assert not (tmp_path / "two.npz").exists(), "stopped on the way"
    on_two_hosts(tmp_path / "two.npz", *arguments, "distributed", 0)
    assert_same(tmp_path / "one.npz", tmp_path / "two.npz")
    on_two_hosts(tmp_path / "whole.npz", *arguments, "distributed")
    with np.load(tmp_path / "two.npz") as cut, np.load(tmp_path / "whole.npz") as whole:
        assert all(np.array_equal(cut[name], whole[name]) for name in whole.files), "bit for bit"
