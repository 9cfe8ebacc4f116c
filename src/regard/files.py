"""Atomic writes: a file or folder is either written completely or not at all.

It is written under a temporary name next to its destination, flushed to disk, and renamed once it is complete. Whatever
happens before that (an error, a full disk, a killed process), what was there before is still there. If the destination
is a link, the file that it points to is replaced. Pipes and devices cannot be replaced, so they are written directly.

While a process writes, it holds a lock on what is unfinished. So a second writer of an output is refused, and the next
one deletes what killed processes left behind, but nothing that is still being written.
"""

import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO
from uuid import uuid4

from regard.errors import UserError
from regard.locks import lock_path, unlock
from regard.progress import phase

_UNFINISHED, _REPLACED = ".unfinished-", ".replaced-"
_MAX_NAME = 64
"""Characters of a file's name that its temporary name repeats; names are limited to 255 bytes."""


def check_output(path: Path, inputs: Iterable[Path | int] = ()) -> None:
    """Refuse a file that cannot be written, before any work is done for it.

    `inputs` are the files (or open file descriptors) that it is made from: it must not replace one of them.
    """
    is_stream = _is_stream(path)
    target, partial = path if is_stream else _target(path), partial_path(path)
    for given in inputs:
        for name in (target, partial):
            if _is_same_file(name, given):
                source = "standard input" if isinstance(given, int) else f"the input {given}"
                raise UserError(f"{path}: {name} is {source}, which would be overwritten; choose another output.")
    if not target.parent.is_dir():
        raise _write_error(path, os.strerror(errno.ENOENT))
    needed = [target] if target.exists() else []
    needed += [] if is_stream else [target.parent]
    if not all(os.access(one, os.W_OK) for one in needed):
        raise _write_error(path, os.strerror(errno.EACCES))
    if not is_stream:
        _check_partial(path, partial)


def partial_path(path: Path) -> Path:
    """The name that `growing_file` writes a file under until it is complete; a pipe or device is written directly."""
    if _is_stream(path):
        return path
    target = _target(path)
    return target.with_name(f"{target.name}.partial")


def check_new_folder(path: Path, *, replace: bool = False) -> None:
    """Refuse a folder that exists already (unless `replace`) or cannot be created, before any work is done for it."""
    try:
        if _exists(path) and not replace:
            raise _exists_error(path)
    except OSError as error:
        raise UserError(f"{path}: cannot write there ({error.strerror}).") from None
    above = path.parent
    while not _exists(above) and above != above.parent:
        above = above.parent
    if not above.is_dir():
        raise UserError(f"{path}: cannot write there ({os.strerror(errno.ENOTDIR)}).")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UserError(f"{path}: cannot write there ({os.strerror(errno.EACCES)}).")


@contextmanager
def new_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Gives an empty temporary folder, which becomes `path` when the block succeeds and is deleted if it fails.

    A folder that exists already is an error unless `replace` is given; it is deleted once the new one has its name.
    """
    check_new_folder(path, replace=replace)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _restore_replaced(path)
        unfinished, lock = _make_unfinished(path)
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
        unlock(lock)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Gives a temporary name to write a file under, which becomes `path` when the block succeeds."""
    if _is_stream(path):
        with tempfile.TemporaryDirectory(prefix="regard-") as folder:
            yield Path(folder) / "content"
            _copy_to_stream(Path(folder) / "content", path)
        return
    target = _target(path)
    try:
        unfinished, lock = _make_unfinished(target)
    except OSError as error:
        raise _write_error(path, error) from None
    try:
        yield unfinished / target.name
        _fsync(unfinished / target.name)
        os.replace(unfinished / target.name, target)
    except OSError as error:
        raise _write_error(path, error) from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)  # a disk that cannot be written cannot be cleaned up either
        unlock(lock)


@contextmanager
def growing_file(path: Path) -> Iterator[TextIO]:
    """Gives a text file to write bit by bit as PATH.partial, which becomes `path` when the block succeeds.

    If it fails, what was written stays under that name: it may be hours of work. An empty file is deleted.
    """
    if _is_stream(path):
        with _stream_errors(path), path.open("w", encoding="utf-8", newline="\n") as stream:
            yield stream
        return
    target, partial = _target(path), partial_path(path)
    _check_partial(path, partial)
    lock = None
    try:
        lock = _lock_partial(path, partial)
        file = partial.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        unlock(lock)
        raise _write_error(path, error) from None
    try:
        with file:
            yield file
        _fsync(partial)
        os.replace(partial, target)
    except OSError as error:
        raise UserError(
            f"{path} could not be written ({error.strerror or error}); the output so far is in {partial}."
        ) from None
    finally:
        with suppress(OSError):
            if partial.stat().st_size == 0 and (lock is None or _is_same_file(partial, lock)):
                partial.unlink()
        unlock(lock)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, replacing the old one."""
    with new_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    check_plain_file(path)
    with phase(f"Computing the checksum of {path.name}"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_plain_file(path: Path) -> None:
    """Refuse a pipe or a device where a file is read more than once, or as a whole."""
    if _is_stream(path):
        raise UserError(f"{path} is a pipe or a device, which can be read only once; save its content as a file first.")


def remove_unfinished(folder: Path) -> list[str]:
    """Delete what killed processes left unfinished in a folder; returns the names."""
    paths = sorted(folder.glob(f".*{_UNFINISHED}*"))
    return [path.name for path in paths if _remove_leftover(path, if_unsure=True)]


def check_encodable(path: Path) -> None:
    """Refuse a name that is not UTF-8: JSON, TOML and safetensors could not hold it, which would show at the end."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"The name {str(path)!a} is not UTF-8; choose another one.") from None


def is_leftover(path: Path) -> bool:
    """Whether a file or folder has the temporary name of one that was never finished."""
    return path.name.startswith(".") and _UNFINISHED in path.name


# Where to write


def _is_stream(path: Path) -> bool:
    """Whether a path is a pipe or a character device."""
    try:
        mode = os.stat(path).st_mode
    except OSError:  # there is no such file, or the error will be reported when it is opened
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _target(path: Path) -> Path:
    """The file to replace: the one that a link points to, which need not exist."""
    try:
        target = Path(os.path.realpath(path)) if path.is_symlink() else path
        if target.is_dir():
            raise UserError(f"{path} could not be written (it is a folder); give the name of a file.")
        if _exists(target) and not target.is_file():
            raise UserError(f"{path} could not be written (it is not a file); give the name of another.")
    except OSError as error:
        raise _write_error(path, error) from None
    return target


def _is_same_file(path: Path, other: Path | int) -> bool:
    """Whether two names lead to the same file or pipe; a device such as a terminal is often read and written."""
    try:
        found = os.stat(path)
        return not stat.S_ISCHR(found.st_mode) and os.path.samestat(found, os.stat(other))
    except (OSError, ValueError):  # ValueError: a text with a NUL is no path
        return False


def _exists(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _exists_error(path: Path) -> UserError:
    return UserError(f"{path} exists already; choose another folder, or remove it first.")


def _write_error(path: Path, error: OSError | str) -> UserError:
    reason = error if isinstance(error, str) else error.strerror or str(error)
    return UserError(f"{path} could not be written ({reason}); nothing was changed.")


def _busy_error(path: Path, partial: Path) -> UserError:
    return UserError(
        f"{path} could not be written: another command is writing {partial}; wait for it, or choose another output."
    )


# Pipes and devices


@contextmanager
def _stream_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} could not be written ({error.strerror or error}).") from None


def _copy_to_stream(source: Path, path: Path) -> None:
    with _stream_errors(path), source.open("rb") as file, path.open("wb") as stream:
        shutil.copyfileobj(file, stream)


# What is unfinished


def _make_unfinished(path: Path) -> tuple[Path, int | None]:
    """A new folder next to `path`, and so on the same file system, with a lock; deletes what others left there."""
    beginning = f".{path.name[:_MAX_NAME]}{_UNFINISHED}"
    for other in path.parent.iterdir():
        if other.name.startswith(beginning):
            _remove_leftover(other, if_unsure=False)
    while True:
        folder = path.parent / f"{beginning}{uuid4().hex}"
        folder.mkdir()
        with suppress(BlockingIOError, FileNotFoundError):  # another process took it for a leftover before the lock
            return folder, lock_path(folder)


def _remove_leftover(path: Path, *, if_unsure: bool) -> bool:
    """Delete what a process left unfinished, unless it is still writing; returns whether it was deleted.

    `if_unsure`: also where there are no locks that would tell.
    """
    try:
        lock = lock_path(path)
    except OSError:
        return False
    try:
        if lock is None and not if_unsure:
            return False
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        return True
    finally:
        unlock(lock)


def _check_partial(path: Path, partial: Path) -> None:
    """Refuse a partial file that is something else, or that another process is writing."""
    try:
        if not _exists(partial):
            return
        if partial.is_symlink() or not partial.is_file():
            raise UserError(f"{path} is first written to {partial}, which is not a plain file; remove that first.")
        unlock(lock_path(partial))
    except BlockingIOError:
        raise _busy_error(path, partial) from None
    except FileNotFoundError:  # its writer has just renamed it
        return
    except OSError as error:
        raise _write_error(partial, error) from None


def _lock_partial(path: Path, partial: Path) -> int | None:
    """A lock on a partial file, which is created if there is none; an error if another process is writing it."""
    while True:
        partial.touch()
        with suppress(FileNotFoundError):  # its writer has just renamed it
            try:
                return lock_path(partial)
            except BlockingIOError:
                raise _busy_error(path, partial) from None


def _rename_folder(unfinished: Path, path: Path, replace: bool) -> None:
    """Rename a folder to its final name, moving aside what is there until the new one has its place."""
    if not _exists(path):
        os.rename(unfinished, path)
        return
    if not replace:  # it was created while the new one was being written
        raise _exists_error(path)
    old = path.parent / f".{path.name[:_MAX_NAME]}{_REPLACED}{uuid4().hex}"
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


def _restore_replaced(path: Path) -> None:
    """Give a folder its name back if a process was killed while it replaced it; delete it if it was replaced."""
    for old in path.parent.iterdir():
        if old.name.startswith(f".{path.name[:_MAX_NAME]}{_REPLACED}"):
            if _exists(path):
                _remove_leftover(old, if_unsure=True)
            else:
                os.rename(old, path)


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
