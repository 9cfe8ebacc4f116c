"""The cache folder: what regard downloads or computes and can always recreate."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from regard.errors import UserError


def cache_folder() -> Path:
    """`$REGARD_CACHE`, or else regard's folder in the platform's usual cache folder."""
    given = os.environ.get("REGARD_CACHE")
    if given:
        return Path(given).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or ""
        if not os.path.isabs(base):  # the XDG specification says to ignore a relative path
            base = "~/.cache"
    return Path(base).expanduser() / "regard"


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Let one process at a time fill a folder; the others wait, and then find the files there."""
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((folder / ".lock").open("a"))
        except OSError as error:
            raise UserError(
                f"{folder} cannot be written: {error.strerror or error}. Set REGARD_CACHE to a writable folder."
            ) from None
        if sys.platform != "win32":
            import fcntl

            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield
