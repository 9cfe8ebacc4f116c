"""Atomic writes: a file or folder is either written completely or not at all.

It is written under a temporary name next to its destination, flushed to disk, and renamed once it is complete. Whatever
happens before that (an error, a full disk, a killed process), what was there before is still there.
"""

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO
from uuid import uuid4

from regard.errors import UserError

_UNFINISHED = ".unfinished-"


@contextmanager
def new_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Gives an empty temporary folder, which becomes `path` when the block succeeds and is deleted if it fails.

    A folder that exists already is an error unless `replace` is given; it is deleted once the new one has its name.
    """
    if _exists(path) and not replace:
        raise _exists_error(path)
    unfinished = _temporary_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.mkdir()
    except OSError as error:
        raise UserError(f"{path}: cannot write there ({error.strerror}).") from None
    try:
        yield unfinished
        for file in unfinished.iterdir():
            _fsync(file)
        _fsync(unfinished)
        _rename_folder(unfinished, path, replace)
        _fsync(path.parent)
    except OSError as error:
        raise UserError(f"{path}: could not be written ({error.strerror or error}); nothing was changed.") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Gives a temporary name to write a file under, which becomes `path` when the block succeeds."""
    unfinished = _temporary_name(path)
    try:
        yield unfinished
        _fsync(unfinished)
        os.replace(unfinished, path)
    except OSError as error:
        raise UserError(f"{path} could not be written ({error.strerror or error}); nothing was changed.") from None
    finally:
        with suppress(OSError):  # a disk that cannot be written cannot be cleaned up either
            unfinished.unlink(missing_ok=True)


@contextmanager
def growing_file(path: Path) -> Iterator[TextIO]:
    """Gives a text file to write bit by bit as PATH.partial, which becomes `path` when the block succeeds.

    If it fails, what was written stays under that name: it may be hours of work. An empty file is deleted.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        file = partial.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"{path} could not be written ({error.strerror or error}); nothing was changed.") from None
    try:
        with file:
            yield file
        _fsync(partial)
        os.replace(partial, path)
    except OSError as error:
        raise UserError(
            f"{path} could not be written ({error.strerror or error}); the output so far is in {partial}."
        ) from None
    finally:
        with suppress(OSError):
            if partial.stat().st_size == 0:
                partial.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, replacing the old one."""
    with new_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_unfinished(folder: Path) -> list[str]:
    """Delete what killed processes left unfinished in a folder; returns the names."""
    paths = sorted(folder.glob(f".*{_UNFINISHED}*"))
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return [path.name for path in paths]


def _exists(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _exists_error(path: Path) -> UserError:
    return UserError(f"{path} exists already; choose another folder, or remove it first.")


def _temporary_name(path: Path) -> Path:
    """An unused name in the same folder, and so on the same file system."""
    return path.parent / f".{path.name}{_UNFINISHED}{uuid4().hex}"


def _rename_folder(unfinished: Path, path: Path, replace: bool) -> None:
    """Rename a folder to its final name, moving aside what is there until the new one has its place."""
    if not _exists(path):
        os.rename(unfinished, path)
        return
    if not replace:  # it was created while the new one was being written
        raise _exists_error(path)
    old = _temporary_name(path)
    os.rename(path, old)
    try:
        os.rename(unfinished, path)
    except OSError:
        os.rename(old, path)
        raise
    if old.is_dir() and not old.is_symlink():
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.unlink(missing_ok=True)


def _fsync(path: Path) -> None:
    """Flush to disk: a name that survives a power cut must not point to data that did not."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if path.is_file():  # some file systems cannot do this for folders
            raise
    finally:
        os.close(descriptor)


def check_encodable(path: Path) -> None:
    """Refuse a name that is not UTF-8: JSON, TOML and safetensors could not hold it, which would show at the end."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"The name {str(path)!a} is not UTF-8; choose another one.") from None


def is_leftover(path: Path) -> bool:
    """Whether a file or folder has the temporary name of one that was never finished."""
    return path.name.startswith(".") and _UNFINISHED in path.name


@contextmanager
def file_lock(path: Path) -> Iterator[int | None]:
    """Holds the lock of a file, which is created for it and removed afterwards; gives None if another process has it.

    The lock belongs to the open file, which is given: the kernel releases it when the process ends, even by SIGKILL. An
    `OSError` means that the file system has no locks.
    """
    descriptor = _open_locked(path)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            with suppress(OSError):
                os.unlink(path)  # while it is locked: whoever waits for it notices that it has another file
            os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _lock(descriptor)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _open_locked(path: Path) -> int | None:
    """The descriptor of a file that this process has locked; None if another one has."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if not _lock(descriptor):
                os.close(descriptor)
                return None
            mine = os.fstat(descriptor)
            with suppress(FileNotFoundError):
                found = os.stat(path)
                if (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino):
                    return descriptor
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its last holder removed it after we had opened it


def _lock(descriptor: int) -> bool:
    """Lock an open file without waiting; False if it is locked already."""
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
