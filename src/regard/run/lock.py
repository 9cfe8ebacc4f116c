"""One run, one writer: the process that trains in a run folder holds a lock, and every other one is refused.

The lock is on the file .lock in the folder, which names its holder. The kernel releases it when that process ends,
however it ends, so a killed run can be resumed at once. Of several processes that train together, rank 0 holds it.
"""

import errno
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from regard.errors import UserError
from regard.files import is_leftover
from regard.locks import file_lock, is_locked

LOCK = ".lock"
RESTART_SECONDS = 120.0
"""How long processes that torchrun has restarted wait for the lock: a server of files may notice late that a machine is
gone, and with it the rank 0 that held it."""


@contextmanager
def lock_run(folder: Path, log: Callable[[str], None]) -> Iterator[None]:
    """Holds the lock of a run folder; an error that names the other process if it is taken."""
    with ExitStack() as stack:
        try:
            deadline = time.monotonic() + (RESTART_SECONDS if _was_restarted() else 0.0)
            while (descriptor := stack.enter_context(file_lock(folder / LOCK))) is None:
                if time.monotonic() >= deadline:
                    break
                time.sleep(0.2)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC):
                raise UserError(
                    f"{folder}: cannot write there ({error.strerror}); choose another folder with --out."
                ) from None
            log(f"{folder} cannot be locked ({error.strerror}); make sure that no other process trains in it.")
        else:
            if descriptor is None:
                raise UserError(_in_use(folder))
            holder = {"pid": os.getpid(), "host": platform.node(), "started": time.strftime("%Y-%m-%d %H:%M:%S")}
            with suppress(OSError):  # a full disk: the lock holds all the same
                os.ftruncate(descriptor, 0)
                os.write(descriptor, json.dumps(holder).encode())
        yield


def check_not_in_use(folder: Path) -> None:
    """An error that names the process if one trains in this folder."""
    if is_locked(folder / LOCK):
        raise UserError(_in_use(folder))


def is_unused(folder: Path) -> bool:
    """Whether a folder is empty but for what a process left that was killed before its run began."""
    return all(path.name == LOCK or is_leftover(path) for path in folder.iterdir())


def _was_restarted() -> bool:
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def _in_use(folder: Path) -> str:
    who = "another process"
    with suppress(OSError, ValueError, KeyError, TypeError):
        holder = json.loads((folder / LOCK).read_text(encoding="utf-8"))
        who = f"process {holder['pid']} on {holder['host']}, since {holder['started']}"
    return f"{folder} is in use by {who}; wait until it ends, or stop it, or choose another folder with --out."
