import shutil

import pytest
from zoo_entry import ASKED

from nttzoo import data
from nttzoo.experiments import comparison, publish


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """(home of a small zoo, its runs): made by a real search and training."""
    folder = tmp_path_factory.mktemp("zoo")
    dataset = data.load("mnist5k")
    comparison.run(ASKED, dataset, out=folder / "c.json", runs=folder / "runs")
    publish.publish(folder / "c.json", dataset, runs=folder / "runs", home=folder / "home")
    return folder / "home", folder / "runs"


@pytest.fixture
def home(made, tmp_path, monkeypatch):
    """A copy that may be damaged."""
    shutil.copytree(made[0], tmp_path / "home")
    monkeypatch.setenv("NTTZOO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"
