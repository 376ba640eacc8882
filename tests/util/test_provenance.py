import json
import platform
import shutil
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest

from nttzoo._util import provenance
from nttzoo.errors import OptionError


def test_the_origin_says_command_date_versions_and_machine(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somebody/checkout/scripts/train.py", "--out", "a b.json"])
    origin = provenance.origin()
    assert origin["command"] == "python scripts/train.py --out 'a b.json'"
    assert origin["date"] == time.strftime("%Y-%m-%d")
    assert origin["python"] == platform.python_version()
    assert origin["versions"]["jax"] == metadata.version("jax")
    assert origin["versions"].keys() >= {"nttzoo", "jax", "jaxlib", "flax", "optax", "numpy"}
    assert origin["machine"]["cores"] >= 1
    assert origin["machine"]["memory_gib"] >= 1
    assert origin["machine"]["processor"]
    json.dumps(origin, allow_nan=False)


def test_an_installed_command_is_told_by_its_name(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somebody/env/bin/nttzoo", "list"])
    assert provenance.origin()["command"] == "nttzoo list"


def test_the_origin_tells_states_of_the_code_apart(tmp_path, monkeypatch):
    now = provenance.origin()["code"]
    package = tmp_path / "nttzoo"
    shutil.copytree(Path(provenance.__file__).parents[1], package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(provenance, "__file__", str(package / "_util" / "provenance.py"))
    provenance.code_hash.cache_clear()
    assert provenance.code_hash() == now
    (package / "registry.py").write_text((package / "registry.py").read_text() + "\n")
    provenance.code_hash.cache_clear()
    assert provenance.code_hash() != now
    provenance.code_hash.cache_clear()


def test_a_command_can_be_given():
    assert provenance.origin("make results")["command"] == "make results"


def test_json_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "result.json"
    provenance.write_json(path, {"accuracy": [0.5, None]})
    assert json.loads(path.read_text()) == {"accuracy": [0.5, None]}
    with pytest.raises(ValueError, match="JSON"):
        provenance.write_json(path, {"accuracy": float("nan")})
    with pytest.raises(TypeError):
        provenance.write_json(path, {"accuracy": object()})
    assert json.loads(path.read_text()) == {"accuracy": [0.5, None]}
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_a_file_can_be_written_again(tmp_path):
    for content in (1, 2):
        provenance.write_json(tmp_path / "result.json", content)
    assert json.loads((tmp_path / "result.json").read_text()) == 2


def test_a_place_that_cannot_be_written_is_refused_beforehand(tmp_path):
    with pytest.raises(OptionError, match=r"there is no folder .*nowhere\. Make it first"):
        provenance.check_writable(tmp_path / "nowhere" / "result.json")
    with pytest.raises(OptionError, match="it is a folder"):
        provenance.check_writable(tmp_path)
    assert provenance.check_writable(tmp_path / "new.json") == tmp_path / "new.json"
    assert not (tmp_path / "new.json").exists()


def test_a_file_of_someone_elses_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance.os, "access", lambda *_: False)
    with pytest.raises(OptionError, match="not writable"):
        provenance.check_writable(tmp_path / "result.json")
