import json
import os

import pytest

from nttzoo._util import files
from nttzoo.errors import FileError, NttzooError, RunError


@pytest.fixture
def folder(tmp_path):
    with files.new_folder(tmp_path / "made") as part:
        (part / "a").write_text("first")
        (part / "deep").mkdir()
        (part / "deep" / "b").write_bytes(b"\0" * 10)
    return tmp_path / "made"


def test_a_folder_is_whole_and_nothing_else_is_left(folder):
    files.verify(folder)
    for name in (".lock", ".seed0.json.lock", ".b.1234.part"):  # of a process that uses the folder, or did
        (folder / name).touch()
    files.verify(folder)
    assert sorted(files.own_files(folder)) == ["a", "deep/b"]
    assert [path.name for path in folder.parent.iterdir()] == ["made"]


@pytest.mark.parametrize("can_swap", [True, False])
def test_a_folder_is_replaced_as_a_whole(folder, monkeypatch, can_swap):
    if not can_swap:
        monkeypatch.setattr(files.folders, "_swap", lambda one, other: False)
    with files.new_folder(folder) as part:
        (part / "c").write_text("second")
        assert (folder / "a").exists(), "the old one is there until the new one is whole"
    assert sorted(path.name for path in folder.iterdir()) == ["c", "manifest.json"]
    assert [path.name for path in folder.parent.iterdir()] == ["made"]
    files.verify(folder)


def test_an_error_leaves_the_old_folder(folder):
    def fail():
        with files.new_folder(folder) as part:
            (part / "c").write_text("second")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    files.verify(folder)
    assert [path.name for path in folder.parent.iterdir()] == ["made"]


def test_a_switch_in_two_steps_that_was_cut_off_is_undone(folder, monkeypatch):
    monkeypatch.setattr(files.folders, "_swap", lambda one, other: False)
    real = os.rename

    def killed(source, target):
        if source.name.endswith(".part"):
            raise SystemExit
        real(source, target)

    monkeypatch.setattr(os, "rename", killed)
    with pytest.raises(SystemExit), files.new_folder(folder) as part:
        (part / "c").write_text("second")
    assert not folder.exists()
    monkeypatch.undo()
    files.recover(folder)
    files.verify(folder)
    assert (folder / "a").read_text() == "first"


def refusal(folder):
    try:
        files.verify(folder)
    except FileError as error:
        return str(error)
    return ""


def test_every_bit_of_every_file_counts(folder):
    for path in [*files.own_files(folder).values(), folder / "manifest.json"]:
        whole = path.read_bytes()
        for place in range(len(whole)):
            for bit in range(8):
                path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
                said = refusal(folder)
                if path.name == "manifest.json":
                    # White space between its tokens may change, nothing else.
                    assert said or json.loads(path.read_bytes()) == json.loads(whole)
                else:
                    assert path.name in said
        path.write_bytes(whole)
    files.verify(folder)


def test_lost_and_added_files_are_named(folder):
    (folder / "deep" / "more").touch()
    with pytest.raises(FileError, match=r"deep/more does not belong to 'made'\. Remove it\."):
        files.verify(folder)
    (folder / "deep" / "more").unlink()
    (folder / "a").unlink()
    with pytest.raises(FileError, match=r"a of 'made' is missing"):
        files.verify(folder)


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/etc/passwd"), os.mkfifo])
def test_links_and_pipes_are_refused_at_once(folder, make):
    make(folder / "deep" / "odd")
    with pytest.raises(FileError, match=r"deep/odd is .*; only regular files"):
        files.verify(folder)


def test_a_folder_inside_has_its_own_manifest(folder):
    with files.new_folder(folder / "trained") as part:
        (part / "x").touch()
    files.verify(folder)
    files.verify(folder / "trained")
    (folder / "trained" / "y").touch()
    files.verify(folder)
    with pytest.raises(FileError, match="y does not belong"):
        files.verify(folder / "trained")


def test_a_folder_without_a_manifest_warns_once_and_gets_one(folder):
    (folder / "manifest.json").unlink()
    with pytest.warns(UserWarning, match="by an earlier version of nttzoo") as seen:
        files.verify(folder)
    assert len(seen) == 1
    files.seal(folder)
    files.verify(folder)


def test_what_somebody_else_wrote_is_not_replaced(folder, tmp_path):
    (folder / "thesis.tex").touch()
    with pytest.raises(RunError, match=r"thesis\.tex in it was not written by nttzoo"), files.new_folder(folder):
        pass
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "manifest.json").write_text('{"name": "a web application"}')
    with pytest.raises(NttzooError, match="is not a manifest of nttzoo"), files.new_folder(tmp_path / "site"):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="it is not a folder"), files.new_folder(tmp_path / "file"):
        pass
    assert (folder / "thesis.tex").exists()


def test_reading_takes_regular_files_of_bounded_size(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, says in [(tmp_path / "pipe", "not a regular file"), (tmp_path, "not a regular file")]:
        with pytest.raises(FileError, match=says):
            files.read_bytes(path)
    with pytest.raises(FileError, match="nowhere cannot be read: No such file"):
        files.read_bytes(tmp_path / "nowhere")
    (tmp_path / "large").write_bytes(bytes(11))
    with pytest.raises(FileError, match="large has 11 bytes; at most 10"):
        files.read_bytes(tmp_path / "large", limit=10)
    assert len(files.read_bytes(tmp_path / "large", limit=11)) == 11


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": NaN}', "[1", "\xff", "", "[-Infinity]"])
def test_what_is_not_json_is_refused_with_its_name(tmp_path, text):
    (tmp_path / "x.json").write_bytes(text.encode("latin1"))
    with pytest.raises(FileError, match=r"x\.json cannot be read"):
        files.read_json(tmp_path / "x.json")


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    files.write_text(tmp_path / "x", "old")

    def full(part):
        part.write_text("ne")
        raise OSError(28, "No space left on device")

    with pytest.raises(RunError, match=r"x: No space left on device"):
        files.write_file(tmp_path / "x", full)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
