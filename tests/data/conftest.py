import socket
import sys

import pytest


@pytest.fixture
def no_network_and_no_folder(monkeypatch, tmp_path):
    def refuse(*args, **kwargs):
        raise AssertionError("a test reached for the network")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("NTTZOO_DATA", str(tmp_path / "empty"))
    # Whether or not tensorflow-datasets is installed: None in sys.modules means that it is not.
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
