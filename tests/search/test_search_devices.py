"""The same search on one device, on eight, and in several processes; devices and hosts are simulated."""

import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import search_on_devices

from nttzoo import search
from nttzoo.sparsity import masks

TIMEOUT = 400  # seconds, on a machine that does other things too
SCRIPT = Path(__file__).parents[2] / "scripts" / "search.py"
PROGRAM = Path(__file__).parents[1] / "search_on_devices.py"


def with_devices(count, **environment):
    """The environment of a process with so many simulated devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    return {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", **environment}


def launch(out, *arguments, devices, **environment):
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(out), *map(str, arguments)],
        env=with_devices(devices, **environment),
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(*processes, expected=0):
    errors = [process.communicate(timeout=TIMEOUT)[1] for process in processes]
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


@pytest.mark.slow
@pytest.mark.parametrize(("model", "tangents", "outputs"), [("lenet300", "active", 0), ("lenet5", "all", 2)])
def test_eight_devices_find_what_one_finds(tmp_path, model, tangents, outputs):
    arguments = (model, tangents, outputs)
    finish(
        launch(tmp_path / "one.npz", *arguments, 1, devices=8),
        launch(tmp_path / "eight.npz", *arguments, 8, devices=8),
    )
    assert_same(tmp_path / "one.npz", tmp_path / "eight.npz")


def environments(processes):
    """The variables that make processes join each other, one dictionary each."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    common = {"JAX_COORDINATOR_ADDRESS": f"localhost:{port}", "JAX_NUM_PROCESSES": str(processes)}
    return [{**common, "JAX_PROCESS_ID": str(i)} for i in range(processes)]


def on_hosts(out, *arguments, processes=2, devices=2, expected=0):
    hosts = [launch(out, *arguments, devices=devices, **own) for own in environments(processes)]
    return finish(*hosts, expected=expected)


@pytest.mark.slow
def test_two_hosts_run_a_search_to_its_report(tmp_path):
    on_hosts(tmp_path / "run", "run", devices=1)  # one device each, as on SLURM
    assert {"summary.json", "report.png"} <= {path.name for path in (tmp_path / "run").iterdir()}
    model, _ = search.load_student(tmp_path / "run" / "students" / "3pct-layerwise")
    assert masks.density_report(model).total.density == pytest.approx(0.03, abs=1e-4)


def test_a_refusal_on_the_first_host_stops_both(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    errors = on_hosts(tmp_path / "run", "run", expected=1)
    assert "not the folder of a run" in errors[0]
    assert "another host failed" in errors[1]


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory):
    """What one device finds, as a file."""
    path = tmp_path_factory.mktemp("one") / "one.npz"
    search_on_devices.write(path, search_on_devices.find("lenet300", "all", 2, devices=1))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "devices"), [(2, 1), (2, 2), (3, 1)])
def test_hosts_save_resume_and_find_what_one_device_finds(tmp_path, on_one_device, processes, devices):
    arguments = ("lenet300", "all", 2, "distributed", tmp_path / "run", 3)
    cluster = {"processes": processes, "devices": devices}
    on_hosts(tmp_path / "whole.npz", *arguments, **cluster)
    assert states(tmp_path / "run") == {3}, "stopped on the way"
    on_hosts(tmp_path / "cut.npz", *arguments, **cluster)
    assert max(states(tmp_path / "run")) > 3
    assert_same(on_one_device, tmp_path / "whole.npz")
    with np.load(tmp_path / "cut.npz") as cut, np.load(tmp_path / "whole.npz") as whole:
        assert all(np.array_equal(cut[name], whole[name]) for name in whole.files), "bit for bit"


def states(folder):
    return {int(path.name) for path in (folder / "checkpoints").glob("*") if path.name.isdigit()}


@contextmanager
def search_in(folder, processes):
    """A long search on one device per process, by the command line, which has saved a new state."""
    before = max(states(folder), default=-1)
    options = ["--epochs", "500", "--batch-size", "96", "--save-every", "0", "--distributed", "--out", str(folder)]
    hosts = [
        subprocess.Popen(
            [sys.executable, SCRIPT, *options], env=with_devices(1, **own), stderr=subprocess.PIPE, text=True
        )
        for own in environments(processes)
    ]
    try:
        deadline = time.monotonic() + TIMEOUT
        while max(states(folder), default=-1) <= before:
            assert time.monotonic() < deadline
            assert all(host.poll() is None for host in hosts), [host.stderr.read() for host in hosts if host.poll()]
            time.sleep(0.1)
        yield hosts
    finally:
        for host in hosts:
            with host:  # closes its pipe and waits for it
                host.kill()


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "victim"), [(2, 0), (2, 1), (3, 1)])
def test_when_a_process_is_killed_the_others_end_soon_and_the_run_goes_on(tmp_path, processes, victim):
    folder = tmp_path / "run"
    with search_in(folder, processes) as hosts:
        hosts[victim].kill()
        died = time.monotonic()
        for host in hosts[:victim] + hosts[victim + 1 :]:
            _, text = host.communicate(timeout=60)
            assert host.returncode == 75, text
            assert "nttzoo: PeerError: another process of this run died" in text
            assert "stack trace" not in text
            assert time.monotonic() - died < 30
    with search_in(folder, processes) as hosts:  # resumes, further than before
        for host in hosts:
            host.terminate()
        for host in hosts:
            _, text = host.communicate(timeout=60)
            assert host.returncode == 143, text
