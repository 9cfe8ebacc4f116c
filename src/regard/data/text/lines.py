"""Reading lines of text files, compressed or not, one at a time.

A line ends with "\\n" or "\\r\\n" and nothing else. Python's `str.splitlines` also splits at form feeds and Unicode
line separators, which occur inside real sentences and would misalign two parallel files. So lines are split as bytes
and decoded one by one, which also gives every error its line number. At most one line and a small buffer are in memory.
"""

import gzip
import io
import json
import lzma
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from regard.errors import UserError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

COMPRESSED = (".gz", ".xz", ".zst")
"""Suffixes of compressed files, in lower case."""


STANDARD_INPUT = "Standard input"
"""What messages call standard input."""
MAX_LINE_BYTES = 1 << 27
"""The longest line that is read: more than text8, a corpus of one line, but less than a device or a bomb may send."""
MAX_EXPANSION = 200
"""How many times larger than its file a compressed text may be. Text expands 3 to 10 times, a bomb up to 1,000 times
with gzip and more with the others."""
MAX_UNCHECKED_BYTES = 1 << 26
"""A text up to this size may expand as it likes."""


def read_lines(path: str | Path, *, keepends: bool = False) -> Iterator[str]:
    """The lines of a UTF-8 file without their line ends; its suffix tells whether it is .gz, .xz or .zst.

    With `keepends`, line ends become "\\n". A byte-order mark at the start is removed. The file is opened when the
    first line is requested.
    """
    path = Path(path)
    with ExitStack() as stack:
        try:
            file = open_decompressed(path, stack)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None
        yield from decode_lines(file, str(path), keepends=keepends)


def decode_lines(file: BinaryIO, name: str, *, keepends: bool = False) -> Iterator[str]:
    """The lines of an open file of UTF-8; `name` is what messages call it. See `read_lines`."""
    number = 0
    try:
        for number, line in enumerate(_split_lines(file), start=1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
                if not line:
                    continue  # a file with only a byte-order mark has no lines
                _check_first_line(line, name)
            if len(line) > MAX_LINE_BYTES:
                raise UserError(
                    f"{name}, line {number}: longer than {MAX_LINE_BYTES >> 20} MiB; is it a text with line breaks?"
                )
            end = -2 if line.endswith(b"\r\n") else -1 if line.endswith(b"\n") else None
            text = line[:end].decode("utf-8")
            yield f"{text}\n" if keepends and end is not None else text
    except UnicodeDecodeError as error:
        byte = f"byte {error.start + 1} of the line (0x{error.object[error.start]:02x})"
        if name == STANDARD_INPUT:
            raise UserError(f"{name} is not UTF-8: line {number}, {byte}; convert it, e.g. with iconv.") from None
        raise UserError(f"{name}, line {number}: {byte} is not UTF-8; save the file as UTF-8.") from None
    except _ExpansionError:
        raise UserError(
            f"{name}, line {number + 1}: the file expands more than {MAX_EXPANSION}-fold, which no text does; "
            "decompress it yourself if it is meant to."
        ) from None
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        reason = str(error).rstrip(".") or type(error).__name__
        raise UserError(
            f"{name} is damaged or truncated after line {number} ({reason}); download or compress it again."
        ) from None
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror or error}.") from None


def read_json_lines(path: str | Path) -> Iterator[tuple[str, Any]]:
    """The JSON value of each line with its location, for messages. Blank lines are skipped."""
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            yield where, json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
            raise UserError(f"{where}: not a JSON object ({reason}).") from None


def check_file(path: Path) -> None:
    """Refuse a path that does not exist or is a folder."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; expected a text file.")
    if not path.exists():
        raise UserError(f"{path}: there is no such file.")


def open_decompressed(path: Path, stack: ExitStack) -> BinaryIO:
    """The uncompressed bytes of a file, whose suffix tells how it is compressed; `stack` closes it."""
    check_file(path)
    suffix = path.suffix.lower()
    file = stack.enter_context(path.open("rb"))
    if suffix not in COMPRESSED:
        return file
    if path.is_file() and path.stat().st_size == 0:
        raise UserError(
            f"{path} is damaged or truncated after line 0 (the file is empty); download or compress it again."
        )
    compressed: Any = _CountingReader(file)
    match suffix:
        case ".gz":
            plain: Any = gzip.GzipFile(fileobj=compressed)
        case ".xz":
            plain = lzma.LZMAFile(compressed)  # noqa: SIM115 - closed by the stack
        case _:
            plain = _Zstandard(compressed, path)
    return stack.enter_context(io.BufferedReader(_LimitedExpansion(stack.enter_context(plain), compressed), _BUFFER))


def uncompressed_suffix(path: Path) -> str:
    """The suffix in lower case, without one for compression: ".tsv" for "a.TSV.gz"."""
    return Path(uncompressed_name(path)).suffix.lower()


def uncompressed_name(path: Path) -> str:
    """The name without a suffix for compression: "a.en" for "a.en.xz"."""
    return path.stem if path.suffix.lower() in COMPRESSED else path.name


def _split_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file with their ends. Of a line that is too long it gives a little more than the limit.

    The first line comes in two steps: what is no text is recognized by its beginning, however long the line is.
    """
    start = file.readline(_BUFFER)
    if start and not start.endswith(b"\n") and not _is_mostly_nul(start):
        start += file.readline(MAX_LINE_BYTES)
    return chain((start,), iter(partial(file.readline, MAX_LINE_BYTES + 1), b"")) if start else iter(())


def _check_first_line(line: bytes, name: str) -> None:
    """Refuse what is no text, or has line ends of another kind: all of it would be read as one line."""
    if _is_mostly_nul(line):
        raise UserError(f"{name}, line 1: mostly NUL bytes, so it is not UTF-8; convert it, e.g. from UTF-16 by iconv.")
    if b"\r" in line[:-1] and not line.endswith(b"\n"):
        raise UserError(f"{name}, line 1: its lines end with CR only; convert it, e.g. with tr '\\r' '\\n'.")


def _is_mostly_nul(line: bytes) -> bool:
    """Whether this looks like UTF-16 or a binary file; a single NUL may be a character of a text."""
    return (count := line.count(0)) >= _MIN_NULS and 2 * count >= len(line) - 1


_BUFFER = 1 << 16
_MIN_NULS = 4
_COMPRESSED_BUFFER = 1 << 11  # small, because its decompressed content is in memory at once


class _ExpansionError(ValueError):
    """A compressed file is much larger than its content could be."""

    def __init__(self) -> None:
        super().__init__(f"it expands more than {MAX_EXPANSION}-fold")


class _CountingReader:
    """A file whose bytes are counted as they are read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.count = 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        self.count += len(data)
        return data


class _LimitedExpansion(io.RawIOBase):
    """The decompressed bytes of a file, as long as they are not too many for its compressed bytes."""

    def __init__(self, plain: BinaryIO, compressed: _CountingReader) -> None:
        self._plain, self._compressed = plain, compressed
        self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        view = memoryview(buffer)
        data = self._plain.read(len(view))
        view[: len(data)] = data
        self._count += len(data)
        if self._count > max(MAX_UNCHECKED_BYTES, MAX_EXPANSION * self._compressed.count):
            raise _ExpansionError
        return len(data)


class _Zstandard(io.RawIOBase):
    """The uncompressed bytes of a zstd file of one or more frames.

    The package's own stream reader does not notice that a file is truncated.
    """

    def __init__(self, file: BinaryIO, path: Path) -> None:
        try:
            import zstandard
        except ImportError:
            raise UserError(
                f"{path} is compressed with zstd, which needs a package that is not installed; run "
                "`pip install zstandard`."
            ) from None
        self._file = file
        self._error = zstandard.ZstdError
        # The largest window (zstd --long=31); memory is allocated only as a file needs it.
        self._new_frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
        self._frame: Any = None
        self._compressed = b""
        self._plain = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        while not self._plain:
            self._compressed = self._compressed or self._file.read(_COMPRESSED_BUFFER)
            if not self._compressed:
                if self._frame is not None:
                    raise EOFError("the last frame has no end")
                return 0
            self._frame = self._frame or self._new_frame()
            try:
                self._plain = memoryview(self._frame.decompress(self._compressed))
            except self._error as error:
                raise EOFError(str(error)) from None
            self._compressed = b""
            if self._frame.eof:
                self._compressed = self._frame.unused_data
                self._frame = None
        view = memoryview(buffer)
        count = min(len(view), len(self._plain))
        view[:count] = self._plain[:count]
        self._plain = self._plain[count:]
        return count
