"""Lines of a text file, one at a time, whether it is compressed or not.

A line ends with "\\n" or "\\r\\n" and with nothing else. Python's `str.splitlines` also breaks at form feeds and at
Unicode's own separators, which occur inside real sentences and would push two aligned files apart. So lines are
split as bytes and decoded one by one, which also gives every error its line number. At most one line and a small
buffer are held.
"""

import gzip
import io
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
"""The suffixes that say a file is compressed, in lower case."""


def read_lines(path: str | Path, *, ends: bool = False) -> Iterator[str]:
    """The lines of a UTF-8 file without their line ends; its suffix says whether it is .gz, .xz or .zst.

    With `ends` a line that has an end has "\\n" behind it, whichever it was. A byte-order mark at the start is removed.
    The file is opened when the first line is asked for.
    """
    path = Path(path)
    number = 0
    try:
        with ExitStack() as stack:
            for number, line in enumerate(_open(path, stack), start=1):
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                    if not line:
                        continue  # a file with nothing but the mark has no line
                end = -2 if line.endswith(b"\r\n") else -1 if line.endswith(b"\n") else None
                text = line[:end].decode("utf-8")
                yield f"{text}\n" if ends and end is not None else text
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UserError(
            f"{path}, line {number}: byte {error.start + 1} of the line (0x{byte:02x}) is not UTF-8; "
            "please save the file as UTF-8."
        ) from None
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        reason = str(error).rstrip(".") or type(error).__name__
        raise UserError(
            f"{path} is damaged or cut short after line {number} ({reason}); please get or compress it again."
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None


def check_file(path: Path) -> None:
    """Refuse, in a sentence, a path that is missing or a folder."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; expected a text file.")
    if not path.exists():
        raise UserError(f"{path}: there is no such file.")


def plain_suffix(path: Path) -> str:
    """The suffix in lower case that is left when one for compression is taken away: ".tsv" for "a.TSV.gz"."""
    return Path(plain_name(path)).suffix.lower()


def plain_name(path: Path) -> str:
    """The name without a suffix for compression: "a.en" for "a.en.xz"."""
    return path.stem if path.suffix.lower() in COMPRESSED else path.name


def _open(path: Path, stack: ExitStack) -> Iterable[bytes]:
    """The lines as plain bytes with their ends; `stack` closes the file."""
    check_file(path)
    suffix = path.suffix.lower()
    file = stack.enter_context(path.open("rb"))
    if suffix not in COMPRESSED:
        return file
    if path.is_file() and path.stat().st_size == 0:
        raise EOFError("the file is empty")  # gzip would take it for an empty text
    match suffix:
        case ".gz":
            return stack.enter_context(gzip.GzipFile(fileobj=file))
        case ".xz":
            return stack.enter_context(lzma.LZMAFile(file))
        case _:
            return stack.enter_context(io.BufferedReader(_Zstandard(file, path), _BUFFER))


_BUFFER = 1 << 16
_COMPRESSED_BUFFER = 1 << 11  # small, as all that comes out of it is held at once


class _Zstandard(io.RawIOBase):
    """The plain bytes of a zstd file of one or more frames.

    The package has a stream of its own, but that one takes a file cut short for one that ends there.
    """

    def __init__(self, file: BinaryIO, path: Path) -> None:
        try:
            import zstandard
        except ImportError:
            raise UserError(
                f"{path} is compressed by zstd, and the package that reads it is missing; "
                "please run: pip install zstandard"
            ) from None
        self._file = file
        self._error = zstandard.ZstdError
        # The largest window there is (zstd --long=31); memory is taken only as a file needs it.
        self._start = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
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
            self._frame = self._frame or self._start()
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
