"""What the gallery does with zoos that lack something."""

import shutil

import browser
import numpy as np
import pytest
from test_gallery import FIRST, needs_compiler

from nttzoo import gallery, zoo
from nttzoo._util import files
from nttzoo.architectures import ARCHITECTURES
from nttzoo.errors import ExportError, FileError, OptionError, RunError
from nttzoo.experiments import publish
from nttzoo.gallery import builder, page


@pytest.mark.slow
@browser.needed
@needs_compiler
def test_an_empty_zoo_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "list_models", list)
    gallery.build(tmp_path)
    with browser.started() as chromium, browser.opened(chromium, tmp_path / "index.html") as tab:
        assert "no networks yet" in tab.page.inner_text("#zoo")
        assert tab.page.locator("#draw").count() == 0


@pytest.mark.slow
@browser.needed
@needs_compiler
def test_what_is_not_known_of_an_entry_is_said(tmp_path, monkeypatch):
    """A zoo of one's own: an architecture that is not registered, and an entry without trained weights."""
    home = tmp_path / "home"
    for old, new, architecture in (("lenet300-mnist-2pct-global", "mine", "my_net"), (FIRST, "untrained", "lenet300")):
        for kind in ("models", "checkpoints"):
            shutil.copytree(zoo.homes()[0] / kind / old, home / kind / new)
        metrics = files.read_json(home / "models" / new / "metrics.json")
        metrics |= {"name": new, "architecture": architecture}
        files.write_text(home / "models" / new / "metrics.json", files.to_json(metrics))
    (home / "models/untrained/model.onnx").unlink()
    shutil.rmtree(home / "checkpoints/untrained/trained")
    shutil.rmtree(home / "checkpoints/untrained/random")
    with monkeypatch.context() as patch:  # whoever published it had its architecture
        patch.setitem(ARCHITECTURES._entries, "my_net", ARCHITECTURES["lenet300"])
        publish.regenerate(home)
    monkeypatch.setenv("NTTZOO_HOME", str(home))
    monkeypatch.setattr(zoo, "list_models", lambda: ["mine", "untrained"])
    gallery.build(tmp_path / "site")
    with browser.started() as chromium, browser.opened(chromium, tmp_path / "site/index.html") as tab:
        tab.page.evaluate("location.hash = '#/mine'")
        tab.page.wait_for_selector("[data-network=mine][data-ready]")
        assert "my_net is not registered here" in tab.page.inner_text(".note")
        assert tab.page.locator("text=It says").count() == 1  # the published ONNX file is enough to run it
        tab.page.evaluate("location.hash = '#/untrained'")
        tab.page.wait_for_selector("[data-network=untrained][data-ready]")
        notes = " ".join(tab.page.locator(".note").all_inner_texts())
        assert "“trained” cannot be loaded" in notes
        assert "cannot be run in this page" in notes
        assert "before training" in tab.page.inner_text(".panels")


def test_modules_with_the_same_name_twice_are_refused(monkeypatch):
    texts = {"main.js": 'import { a } from "./a.js";\nconst b = a;\n', "a.js": "export const a = 1;\nconst b = 2;\n"}
    monkeypatch.setattr(page, "source", texts.__getitem__)
    with pytest.raises(ExportError, match=r"main\.js and a\.js of the gallery both define 'b'"):
        page.bundle("main.js")


def test_what_would_make_the_page_too_large_is_left_out():
    content = {name: np.random.default_rng(0).bytes(size) for name, size in (("a", 900), ("b", 300), ("c", 300))}
    assert builder._fit(content, first=[], limit=1000)[1] == ["a"]
    assert builder._fit(content, first=["c"], limit=1000) == ({"b": content["b"], "c": content["c"]}, ["a"])
    assert builder._fit(content, first=["a"], limit=1400)[1] == ["b", "c"]


def test_folders_that_cannot_be_written_are_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(builder.toolchain, "find", lambda: ("clang",))
    monkeypatch.setattr(builder, "_collect", lambda names: pytest.fail("worked in vain"))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OptionError, match="is a file; the gallery needs a folder"):
        gallery.build(tmp_path / "file")
    with pytest.raises(OptionError, match=r"has no test images to show; expected one of .*cifar10\.npz"):
        gallery.build(tmp_path / "other", data_dir=tmp_path)
    with pytest.raises(RunError, match=r"cannot write .*/file/site: .*/file is not a folder"):
        gallery.build(tmp_path / "file/site")
    (tmp_path / "site/index.html").mkdir(parents=True)
    with pytest.raises(OptionError, match=r"index\.html: it is a folder"):
        gallery.build(tmp_path / "site")


@needs_compiler
def test_a_damaged_entry_is_named(tmp_path, monkeypatch):
    home = tmp_path / "home"
    for kind in ("models", "checkpoints"):
        shutil.copytree(zoo.homes()[0] / kind / FIRST, home / kind / "mine")
    metrics = files.read_json(home / "models/mine/metrics.json")
    files.write_text(home / "models/mine/metrics.json", files.to_json({**metrics, "name": "mine"}))
    publish.regenerate(home)
    (home / "models/mine/metrics.json").write_text("{")
    monkeypatch.setenv("NTTZOO_HOME", str(home))
    monkeypatch.setattr(zoo, "list_models", lambda: ["mine"])
    with pytest.raises(FileError, match=r"metrics\.json of 'mine' was changed or cut short"):
        gallery.build(tmp_path / "site")
