import sys

import pytest
from own_files import NET, save_npz

from nttzoo import architectures, data


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a network and data, as a user would have it; registries and imports are put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for registry in (architectures.ARCHITECTURES, data.SOURCES):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    (tmp_path / "net.py").write_text(NET)
    save_npz(tmp_path / "stripes.npz")
    return tmp_path
