import psutil
import pytest

from nttzoo._util import memory


@pytest.fixture
def system(tmp_path):
    """(a folder of control groups, what the process belongs to), to be filled."""
    return tmp_path / "groups", tmp_path / "membership"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_the_limits_of_a_job_and_of_what_it_is_part_of(system):
    groups, membership = system
    write(membership, "0::/slurm/job_7")
    write(groups / "slurm" / "job_7" / "memory.max", "8000000")
    write(groups / "slurm" / "memory.max", "64000000")
    write(groups / "memory.max", "max")
    assert sorted(memory._limits(groups, membership)) == [8_000_000, 64_000_000]


def test_the_limit_of_a_container_that_sees_only_its_own_group(system):
    groups, membership = system
    write(membership, "5:devices:/\n4:memory:/docker/0123\n0::/")
    write(groups / "memory" / "memory.limit_in_bytes", "3000000")
    write(groups / "memory.max", "2000000")
    assert sorted(memory._limits(groups, membership)) == [2_000_000, 3_000_000]


def test_without_control_groups_there_is_no_limit(system):
    assert memory._limits(*system) == []


def test_the_memory_is_at_most_the_machines(monkeypatch):
    monkeypatch.setattr(memory, "_limits", lambda: [2**62])
    assert memory.device_memory() == psutil.virtual_memory().total
    monkeypatch.setattr(memory, "_limits", lambda: [5 * 2**20])
    assert memory.device_memory() == 5 * 2**20
