"""Writes are atomic: a failed write leaves the previous content intact."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TextIO

import pytest

from regard import UserError
from regard.files import growing_file, new_folder, remove_unfinished, write_text


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def test_folder_appears_only_when_complete(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder"
    with new_folder(path) as unfinished:
        (unfinished / "file").write_text("new", encoding="utf-8")
        assert not path.exists()
    assert contents(path) == {"file": "new"}
    assert list(path.parent.iterdir()) == [path]


def test_failed_folder_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "folder"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "file").write_text("old", encoding="utf-8")
    return path


def test_existing_folder_is_refused_without_replace(old: Path) -> None:
    with pytest.raises(UserError, match="exists already"), new_folder(old):
        pass
    assert contents(old) == {"file": "old"}


def test_failed_replacement_keeps_the_old_folder(old: Path) -> None:
    with pytest.raises(UserError, match="No space left"), new_folder(old, replace=True):
        raise OSError(28, "No space left on device")
    assert contents(old) == {"file": "old"}
    assert list(old.parent.iterdir()) == [old]


def test_folder_created_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    another = tmp_path / "another"
    another.mkdir()
    (another / "file").write_text("another's", encoding="utf-8")
    with pytest.raises(UserError, match="exists already"), new_folder(path):
        another.rename(path)
    assert contents(path) == {"file": "another's"}
    assert list(tmp_path.iterdir()) == [path]


def test_write_text_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for text in ("old", "new ü"):
        write_text(path, text)
        assert contents(tmp_path) == {"file": text}


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path / "file", "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(UserError, match="No space left on device"):
        write_text(tmp_path / "file", "new")
    assert contents(tmp_path) == {"file": "old"}


def test_replacement_leaves_nothing_of_the_old_folder(old: Path) -> None:
    with new_folder(old, replace=True) as unfinished:
        (unfinished / "other").write_text("new", encoding="utf-8")
    assert contents(old) == {"other": "new"}
    assert list(old.parent.iterdir()) == [old]


def test_failed_rename_restores_the_old_folder(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def fails_once(source: Path, target: Path) -> None:
        if target == old and source.joinpath("other").exists():
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr("os.rename", fails_once)
    with pytest.raises(UserError, match="Input/output error"), new_folder(old, replace=True) as unfinished:
        (unfinished / "other").write_text("new", encoding="utf-8")
    assert contents(old) == {"file": "old"}


def test_unwritable_path_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(UserError, match="cannot write there"), new_folder(tmp_path / "file" / "folder"):
        pass


def test_killed_writer_keeps_the_old_folder_and_its_leftovers_can_be_removed(old: Path) -> None:
    code = (
        "import os, signal; from pathlib import Path; from regard.files import new_folder\n"
        f"with new_folder(Path({str(old)!r}), replace=True) as unfinished:\n"
        "    (unfinished / 'other').write_text('half'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code])
    assert done.returncode == -signal.SIGKILL
    assert contents(old) == {"file": "old"}
    assert len(remove_unfinished(old.parent)) == 1
    assert list(old.parent.iterdir()) == [old]


def test_folder_that_was_moved_aside_by_a_killed_writer_gets_its_name_back(old: Path) -> None:
    old.rename(old.with_name(f".{old.name}.replaced-1"))
    remove_unfinished(old.parent)
    with pytest.raises(ZeroDivisionError), new_folder(old, replace=True):
        raise ZeroDivisionError
    assert contents(old) == {"file": "old"}
    assert list(old.parent.iterdir()) == [old]


def test_remove_unfinished_ignores_other_hidden_folders(tmp_path: Path) -> None:
    (tmp_path / ".mine").mkdir()
    assert remove_unfinished(tmp_path) == []
    assert (tmp_path / ".mine").is_dir()


# Files that grow line by line


def write_and_fail(file: TextIO, error: BaseException) -> None:
    file.write("one line\n")
    raise error


def test_growing_file_is_renamed_when_complete(tmp_path: Path) -> None:
    with growing_file(tmp_path / "out.txt") as file:
        file.write("ğ\n")
        file.flush()
        assert contents(tmp_path) == {"out.txt.partial": "ğ\n"}
    assert contents(tmp_path) == {"out.txt": "ğ\n"}


def test_old_file_is_kept_until_the_growing_one_is_complete(tmp_path: Path) -> None:
    write_text(tmp_path / "out.txt", "old")
    with growing_file(tmp_path / "out.txt") as file:
        file.write("new")
        assert (tmp_path / "out.txt").read_text(encoding="utf-8") == "old"
    assert contents(tmp_path) == {"out.txt": "new"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError, UserError])
def test_output_before_an_error_is_kept_as_partial(error: type[BaseException], tmp_path: Path) -> None:
    write_text(tmp_path / "out.txt", "old")
    with pytest.raises(error), growing_file(tmp_path / "out.txt") as file:
        write_and_fail(file, error())
    assert contents(tmp_path) == {"out.txt": "old", "out.txt.partial": "one line\n"}


def test_empty_growing_file_is_removed_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), growing_file(tmp_path / "out.txt"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_growing_file_may_be_empty(tmp_path: Path) -> None:
    with growing_file(tmp_path / "out.txt"):
        pass
    assert contents(tmp_path) == {"out.txt": ""}


def test_growing_file_has_unix_line_ends(tmp_path: Path) -> None:
    with growing_file(tmp_path / "out.txt") as file:
        file.write("a\nb\n")
    assert (tmp_path / "out.txt").read_bytes() == b"a\nb\n"


def test_partial_file_of_an_earlier_attempt_is_overwritten(tmp_path: Path) -> None:
    write_text(tmp_path / "out.txt.partial", "a long attempt")
    with growing_file(tmp_path / "out.txt") as file:
        file.write("new")
    assert contents(tmp_path) == {"out.txt": "new"}


def test_growing_file_in_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "out.txt"
    with pytest.raises(UserError) as refused, growing_file(path):
        pass
    assert str(refused.value) == f"{path} could not be written (No such file or directory); nothing was changed."


def test_full_disk_error_names_the_partial_file(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused, growing_file(tmp_path / "out.txt") as file:
        write_and_fail(file, OSError(28, "No space left on device"))
    assert "No space left on device" in str(refused.value)
    assert str(tmp_path / "out.txt.partial") in str(refused.value)
    assert contents(tmp_path) == {"out.txt.partial": "one line\n"}


def test_growing_file_does_not_replace_a_folder(tmp_path: Path) -> None:
    def write_and_meet_a_folder(file: TextIO) -> None:
        file.write("one line\n")
        (tmp_path / "out.txt").mkdir()

    with pytest.raises(UserError, match=r"out\.txt could not be written"), growing_file(tmp_path / "out.txt") as file:
        write_and_meet_a_folder(file)
    assert (tmp_path / "out.txt").is_dir()
    assert (tmp_path / "out.txt.partial").read_text(encoding="utf-8") == "one line\n"
