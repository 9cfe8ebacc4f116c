"""Locks on files and folders, which a process holds while it writes them.

The kernel releases a lock when its process ends, even by SIGKILL, so what is not locked is not being written.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def lock_path(path: Path) -> int | None:
    """Lock a file or folder that exists, without waiting, until `unlock`; None where there are no locks.

    `BlockingIOError` if another process has locked it, `FileNotFoundError` if it was renamed or deleted by then.
    """
    if sys.platform == "win32":
        return None
    descriptor = os.open(path, (os.O_RDONLY if path.is_dir() else os.O_RDWR) | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _lock(descriptor, path)
    except (BlockingIOError, FileNotFoundError):
        os.close(descriptor)
        raise
    except OSError:  # some network file systems have no locks
        os.close(descriptor)
        return None
    return descriptor


def unlock(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)


@contextmanager
def file_lock(path: Path) -> Iterator[int | None]:
    """Holds the lock of a file, which is created for it and removed afterwards; gives None if another process has it.

    The descriptor of the open file is given. An `OSError` means that the file system has no locks.
    """
    descriptor = _open_locked(path)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            with suppress(OSError):
                os.unlink(path)  # while it is locked: a process that waits for it notices that this file is gone
            os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file."""
    try:
        unlock(lock_path(path))
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _open_locked(path: Path) -> int | None:
    """The descriptor of a file that this process has locked; None if another one has."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(descriptor, path)
            return descriptor
        except FileNotFoundError:  # its last holder removed it after we had opened it
            os.close(descriptor)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise


def _lock(descriptor: int, path: Path) -> None:
    """Lock an open file without waiting, and check that it is still the one at its path."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if not os.path.samestat(os.fstat(descriptor), os.stat(path)):
        raise FileNotFoundError
