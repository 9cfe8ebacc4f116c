"""Nothing a person had is lost while something new is written."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TextIO

import pytest

from regard import UserError
from regard.files import growing_file, new_folder, sweep, write_text


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def test_a_folder_is_there_only_when_it_is_whole(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "folder"
    with new_folder(place) as beside:
        (beside / "file").write_text("new", encoding="utf-8")
        assert not place.exists()
    assert contents(place) == {"file": "new"}
    assert list(place.parent.iterdir()) == [place]


def test_an_error_inside_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "folder"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def old(tmp_path: Path) -> Path:
    place = tmp_path / "folder"
    place.mkdir()
    (place / "file").write_text("old", encoding="utf-8")
    return place


def test_what_stands_there_is_left_alone_unless_it_may_be_replaced(old: Path) -> None:
    with pytest.raises(UserError, match="exists already"), new_folder(old):
        pass
    assert contents(old) == {"file": "old"}


def test_an_error_inside_leaves_what_stood_there(old: Path) -> None:
    with pytest.raises(UserError, match="No space left"), new_folder(old, replace=True):
        raise OSError(28, "No space left on device")
    assert contents(old) == {"file": "old"}
    assert list(old.parent.iterdir()) == [old]


def test_what_came_while_the_new_one_was_written_is_not_replaced(tmp_path: Path) -> None:
    place = tmp_path / "folder"
    another = tmp_path / "another"
    another.mkdir()
    (another / "file").write_text("another's", encoding="utf-8")
    with pytest.raises(UserError, match="exists already"), new_folder(place):
        another.rename(place)
    assert contents(place) == {"file": "another's"}
    assert list(tmp_path.iterdir()) == [place]


def test_a_file_is_written_anew_whole(tmp_path: Path) -> None:
    place = tmp_path / "file"
    for text in ("old", "new ü"):
        write_text(place, text)
        assert contents(tmp_path) == {"file": text}


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path / "file", "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(UserError, match="No space left on device"):
        write_text(tmp_path / "file", "new")
    assert contents(tmp_path) == {"file": "old"}


def test_replacing_leaves_nothing_of_the_old(old: Path) -> None:
    with new_folder(old, replace=True) as beside:
        (beside / "other").write_text("new", encoding="utf-8")
    assert contents(old) == {"other": "new"}
    assert list(old.parent.iterdir()) == [old]


def test_a_rename_that_fails_puts_the_old_back(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def fails_once(source: Path, target: Path) -> None:
        if target == old and source.joinpath("other").exists():
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr("os.rename", fails_once)
    with pytest.raises(UserError, match="Input/output error"), new_folder(old, replace=True) as beside:
        (beside / "other").write_text("new", encoding="utf-8")
    assert contents(old) == {"file": "old"}


def test_a_place_that_cannot_be_written_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(UserError, match="cannot write there"), new_folder(tmp_path / "file" / "folder"):
        pass


def test_a_killed_writer_leaves_the_old_and_what_it_left_can_be_swept_up(old: Path) -> None:
    code = (
        "import os, signal; from pathlib import Path; from regard.files import new_folder\n"
        f"with new_folder(Path({str(old)!r}), replace=True) as beside:\n"
        "    (beside / 'other').write_text('half'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code])
    assert done.returncode == -signal.SIGKILL
    assert contents(old) == {"file": "old"}
    assert len(sweep(old.parent)) == 1
    assert list(old.parent.iterdir()) == [old]


def test_sweeping_leaves_other_hidden_folders_alone(tmp_path: Path) -> None:
    (tmp_path / ".mine").mkdir()
    assert sweep(tmp_path) == []
    assert (tmp_path / ".mine").is_dir()


# Files that grow line by line.


def write_and_fail(file: TextIO, error: BaseException) -> None:
    file.write("one line\n")
    raise error


def test_a_growing_file_takes_its_place_when_it_is_whole(tmp_path: Path) -> None:
    with growing_file(tmp_path / "out.txt") as file:
        file.write("ğ\n")
        file.flush()
        assert contents(tmp_path) == {"out.txt.partial": "ğ\n"}
    assert contents(tmp_path) == {"out.txt": "ğ\n"}


def test_an_old_file_stands_until_the_growing_one_is_whole(tmp_path: Path) -> None:
    write_text(tmp_path / "out.txt", "old")
    with growing_file(tmp_path / "out.txt") as file:
        file.write("new")
        assert (tmp_path / "out.txt").read_text(encoding="utf-8") == "old"
    assert contents(tmp_path) == {"out.txt": "new"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError, UserError])
def test_what_was_written_before_an_error_stays_beside_the_old_file(error: type[BaseException], tmp_path: Path) -> None:
    write_text(tmp_path / "out.txt", "old")
    with pytest.raises(error), growing_file(tmp_path / "out.txt") as file:
        write_and_fail(file, error())
    assert contents(tmp_path) == {"out.txt": "old", "out.txt.partial": "one line\n"}


def test_a_growing_file_without_a_line_leaves_nothing_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), growing_file(tmp_path / "out.txt"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_growing_file_that_ends_well_without_a_line_is_an_empty_file(tmp_path: Path) -> None:
    with growing_file(tmp_path / "out.txt"):
        pass
    assert contents(tmp_path) == {"out.txt": ""}


def test_lines_of_a_growing_file_end_the_same_on_every_system(tmp_path: Path) -> None:
    with growing_file(tmp_path / "out.txt") as file:
        file.write("a\nb\n")
    assert (tmp_path / "out.txt").read_bytes() == b"a\nb\n"


def test_what_an_earlier_attempt_left_is_written_over(tmp_path: Path) -> None:
    write_text(tmp_path / "out.txt.partial", "a long attempt")
    with growing_file(tmp_path / "out.txt") as file:
        file.write("new")
    assert contents(tmp_path) == {"out.txt": "new"}


def test_a_growing_file_where_nothing_can_be_written_gets_a_sentence(tmp_path: Path) -> None:
    place = tmp_path / "nowhere" / "out.txt"
    with pytest.raises(UserError) as refused, growing_file(place):
        pass
    assert str(refused.value) == f"{place} could not be written (No such file or directory); nothing was changed."


def test_a_disk_that_is_full_gets_a_sentence_that_names_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused, growing_file(tmp_path / "out.txt") as file:
        write_and_fail(file, OSError(28, "No space left on device"))
    assert "No space left on device" in str(refused.value)
    assert str(tmp_path / "out.txt.partial") in str(refused.value)
    assert contents(tmp_path) == {"out.txt.partial": "one line\n"}


def test_a_folder_in_the_place_of_a_growing_file_is_left_alone_and_nothing_is_lost(tmp_path: Path) -> None:
    (tmp_path / "out.txt").mkdir()
    with pytest.raises(UserError, match=r"out\.txt could not be written"), growing_file(tmp_path / "out.txt") as file:
        file.write("one line\n")
    assert (tmp_path / "out.txt").is_dir()
    assert (tmp_path / "out.txt.partial").read_text(encoding="utf-8") == "one line\n"
