"""Standard input, output and error: what fails on them gets one sentence, or none, but no traceback.

Results go to standard output, so a command fails if it is full or closed, and ends quietly if its reader has gone
(`regard … | head`). Messages go to standard error, and no work is given up because nobody can read them.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

from regard.errors import UserError

BROKEN_PIPE = 141
"""The exit code if the reader of standard output has gone: that of a program which SIGPIPE ends, in a shell."""


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Wrap a command so that failures of its standard streams are reported, also those that show when it ends."""
    _occupy_closed()
    stdout, stderr = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = results, _ = _Results(stdout), _Messages(stderr)
    ending = None
    try:
        try:
            yield
        except SystemExit as error:
            ending = error
        try:
            results.flush()
        except UserError as error:
            print(f"regard: {error}", file=sys.stderr)
            raise SystemExit(2) from None
        if ending is not None:
            raise ending
    finally:
        sys.stdout, sys.stderr = stdout, stderr


@contextlib.contextmanager
def silenced_messages() -> Iterator[None]:
    """Print nothing on standard error but errors (`print_error`), whatever prints there."""
    stderr = sys.stderr
    sys.stderr = _NoMessages(stderr)
    try:
        yield
    finally:
        sys.stderr = stderr


def print_error(message: str) -> None:
    """Print why a command fails or stops, also where messages are silenced."""
    stream: Any = sys.stderr
    while isinstance(stream, _NoMessages):
        stream = stream.original
    print(message, file=stream, flush=True)


def check_standard_input() -> None:
    """Refuse to read standard input if it is closed."""
    if sys.stdin is None:
        raise UserError("Standard input is closed; give the text as an argument or a file, or redirect it: < FILE.")


def check_standard_output() -> None:
    """Refuse to write to standard output if it is closed."""
    if sys.stdout is None or (isinstance(sys.stdout, _Results) and sys.stdout.is_closed):
        raise _closed_error()


def standard_input_descriptor() -> int | None:
    """The file descriptor of standard input; None if it has none."""
    try:
        return None if sys.stdin is None else sys.stdin.fileno()
    except (OSError, ValueError):
        return None


class _Stream:
    """A standard stream. Attributes that are not defined here are those of the original."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _discard(self) -> None:
        """Send the rest nowhere: what is still buffered cannot be written when the process ends either."""
        with contextlib.suppress(OSError, ValueError):
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, self._stream.fileno())
            os.close(devnull)


class _Results(_Stream):
    """Standard output."""

    @property
    def is_closed(self) -> bool:
        return self._stream is None

    def write(self, text: str) -> int:
        if self._stream is None:
            raise _closed_error()
        try:
            return int(self._stream.write(text))
        except OSError as error:
            self._fail(error)

    def flush(self) -> None:
        try:
            if self._stream is not None:
                self._stream.flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> NoReturn:
        self._discard()
        if isinstance(error, BrokenPipeError):
            raise SystemExit(BROKEN_PIPE) from None
        raise UserError(f"Standard output could not be written ({error.strerror or error}).") from None


class _Messages(_Stream):
    """Standard error."""

    def write(self, text: str) -> int:
        try:
            return len(text) if self._stream is None else int(self._stream.write(text))
        except OSError:
            self._discard()
            return len(text)

    def flush(self) -> None:
        try:
            if self._stream is not None:
                self._stream.flush()
        except OSError:
            self._discard()

    def isatty(self) -> bool:
        return self._stream is not None and bool(self._stream.isatty())


class _NoMessages(_Messages):
    """Standard error with `--quiet`."""

    @property
    def original(self) -> Any:
        return self._stream

    def write(self, text: str) -> int:
        return len(text)

    def isatty(self) -> bool:
        return False


def _closed_error() -> UserError:
    return UserError("Standard output is closed; redirect it: > FILE.")


def _occupy_closed() -> None:
    """Open closed standard streams as /dev/null: otherwise the next file that is opened would take their place."""
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
