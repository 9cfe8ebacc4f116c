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
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from regard.errors import UserError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

COMPRESSED = (".gz", ".xz", ".zst")
"""Suffixes of compressed files, in lower case."""


def read_lines(path: str | Path, *, keepends: bool = False) -> Iterator[str]:
    """The lines of a UTF-8 file without their line ends; its suffix tells whether it is .gz, .xz or .zst.

    With `keepends`, line ends become "\\n". A byte-order mark at the start is removed. The file is opened when the
    first line is requested.
    """
    path = Path(path)
    number = 0
    try:
        with ExitStack() as stack:
            for number, line in enumerate(_open(path, stack), start=1):
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                    if not line:
                        continue  # a file with only a byte-order mark has no lines
                end = -2 if line.endswith(b"\r\n") else -1 if line.endswith(b"\n") else None
                text = line[:end].decode("utf-8")
                yield f"{text}\n" if keepends and end is not None else text
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UserError(
            f"{path}, line {number}: byte {error.start + 1} of the line (0x{byte:02x}) is not UTF-8; "
            "save the file as UTF-8."
        ) from None
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        reason = str(error).rstrip(".") or type(error).__name__
        raise UserError(
            f"{path} is damaged or truncated after line {number} ({reason}); download or compress it again."
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None


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


def uncompressed_suffix(path: Path) -> str:
    """The suffix in lower case, without one for compression: ".tsv" for "a.TSV.gz"."""
    return Path(uncompressed_name(path)).suffix.lower()


def uncompressed_name(path: Path) -> str:
    """The name without a suffix for compression: "a.en" for "a.en.xz"."""
    return path.stem if path.suffix.lower() in COMPRESSED else path.name


def _open(path: Path, stack: ExitStack) -> Iterable[bytes]:
    """The uncompressed lines as bytes, with their ends; `stack` closes the file."""
    check_file(path)
    suffix = path.suffix.lower()
    file = stack.enter_context(path.open("rb"))
    if suffix not in COMPRESSED:
        return file
    if path.is_file() and path.stat().st_size == 0:
        raise EOFError("the file is empty")  # which gzip would accept
    match suffix:
        case ".gz":
            return stack.enter_context(gzip.GzipFile(fileobj=file))
        case ".xz":
            return stack.enter_context(lzma.LZMAFile(file))
        case _:
            return stack.enter_context(io.BufferedReader(_Zstandard(file, path), _BUFFER))


_BUFFER = 1 << 16
_COMPRESSED_BUFFER = 1 << 11  # small, because its decompressed content is in memory at once


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
