"""Locks on files and folders, which a process holds while it writes them.

The kernel releases a lock when its process ends, even by SIGKILL, so what is not locked is not being written.
"""

import os
import sys
from pathlib import Path


def lock_path(path: Path) -> int | None:
    """Lock a file or folder, without waiting, until `unlock`; None where there are no locks.

    `BlockingIOError` if another process has locked it, `FileNotFoundError` if it was renamed or deleted by then.
    """
    if sys.platform == "win32":
        return None
    import fcntl

    access = os.O_RDONLY if path.is_dir() else os.O_RDWR
    descriptor = os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), os.stat(path)):
            raise FileNotFoundError
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
