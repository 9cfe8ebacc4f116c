"""Writing so that nothing a person had is lost, and telling whether what is there is what was written.

A folder or file is written under another name beside its place, forced to the disk, and renamed when it is whole.
Whatever happens before that moment (an error, a full disk, a killed process), what stood there still stands.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO
from uuid import uuid4

from regard.errors import UserError

_MARK = ".unfinished-"


@contextmanager
def new_folder(place: Path, *, replace: bool = False) -> Iterator[Path]:
    """An empty folder to fill, which takes its `place` when the block ends well and vanishes if it does not.

    A folder that stands there already is an error unless `replace` is given; it goes when the new one is in its place.
    """
    if _stands(place) and not replace:
        raise _already(place)
    beside = _beside(place)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        beside.mkdir()
    except OSError as error:
        raise UserError(f"{place}: cannot write there ({error.strerror}).") from None
    try:
        yield beside
        for path in beside.iterdir():
            _force_to_disk(path)
        _force_to_disk(beside)
        _take_place(beside, place, replace)
        _force_to_disk(place.parent)
    except OSError as error:
        raise UserError(f"{place}: could not be written ({error.strerror or error}); nothing was changed.") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def new_file(place: Path) -> Iterator[Path]:
    """A name to write a file under, which takes its `place` when the block ends well; until then the old one stands."""
    beside = _beside(place)
    try:
        yield beside
        _force_to_disk(beside)
        os.replace(beside, place)
    except OSError as error:
        raise UserError(f"{place} could not be written ({error.strerror or error}); nothing was changed.") from None
    finally:
        with suppress(OSError):  # a disk that cannot be written cannot be tidied either
            beside.unlink(missing_ok=True)


@contextmanager
def growing_file(place: Path) -> Iterator[TextIO]:
    """A text file to write bit by bit under PLACE.partial, which takes its `place` when the block ends well.

    If it does not, what was written stays under that name: it may be hours of work. A file without a line is removed.
    """
    beside = place.with_name(f"{place.name}.partial")
    try:
        file = beside.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"{place} could not be written ({error.strerror or error}); nothing was changed.") from None
    try:
        with file:
            yield file
        _force_to_disk(beside)
        os.replace(beside, place)
    except OSError as error:
        raise UserError(
            f"{place} could not be written ({error.strerror or error}); what was done so far is in {beside}."
        ) from None
    finally:
        with suppress(OSError):
            if beside.stat().st_size == 0:
                beside.unlink()


def write_text(place: Path, text: str) -> None:
    """Write a file, or write it anew; until the new one is whole the old one stands."""
    with new_file(place) as beside:
        beside.write_text(text, encoding="utf-8")


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sweep(folder: Path) -> list[str]:
    """Remove what killed processes left unfinished in a folder; gives the names."""
    left = sorted(folder.glob(f".*{_MARK}*"))
    for path in left:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return [path.name for path in left]


def _stands(place: Path) -> bool:
    return place.exists() or place.is_symlink()


def _already(place: Path) -> UserError:
    return UserError(f"{place} exists already; choose another folder, or remove it first.")


def _beside(place: Path) -> Path:
    """A name in the same folder, and so on the same disk, that nothing has yet."""
    return place.parent / f".{place.name}{_MARK}{uuid4().hex}"


def _take_place(beside: Path, place: Path, replace: bool) -> None:
    """Rename, putting aside what stood there until the new folder is in its place."""
    if not _stands(place):
        os.rename(beside, place)
        return
    if not replace:  # it came while the new one was being written
        raise _already(place)
    old = _beside(place)
    os.rename(place, old)
    try:
        os.rename(beside, place)
    except OSError:
        os.rename(old, place)
        raise
    if old.is_dir() and not old.is_symlink():
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.unlink(missing_ok=True)


def _force_to_disk(path: Path) -> None:
    """A name that survives a power cut must not point at bytes that did not."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        if path.is_file():  # some file systems cannot do this for folders
            raise
    finally:
        os.close(handle)
