"""word2vec's binary format: a header, then each word, a space, and its numbers as little-endian float32.

Words have different lengths, so the vectors are at no regular distance and not aligned: such a file cannot be used as
it is in memory, and is read in one pass. word2vec.c ends each vector with a line break, gensim does not.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from regard.data.text.lines import COMPRESSED, open_decompressed
from regard.errors import UserError
from regard.files import new_file
from regard.interop.word_vectors.blocks import BLOCK_NUMBERS, Distinct, VectorBlock, VectorReader
from regard.interop.word_vectors.detection import read_header
from regard.progress import phase

_LONGEST_WORD = 1 << 12
"""In bytes."""
_CHUNK = 1 << 22


def read_binary(path: Path, log: Callable[[str], None]) -> VectorReader:
    """The vectors of a binary file; compressed or not."""
    with ExitStack() as stack:
        count, dimension = read_header(open_decompressed(path, stack), path)
    return VectorReader(dimension, _blocks(path, count, dimension, log))


def write_binary(path: Path, words: Sequence[str], vectors: NDArray[np.floating]) -> None:
    """Write vectors as word2vec.c does.  vectors: # (words, dimension)"""
    step = max(1, BLOCK_NUMBERS // vectors.shape[1])
    with (
        new_file(path) as unfinished,
        phase(f"Writing {path.name}", "words", len(words)) as progress,
        unfinished.open("wb") as file,
    ):
        file.write(f"{len(words)} {vectors.shape[1]}\n".encode())
        for start in range(0, len(words), step):
            rows = np.asarray(vectors[start : start + step]).astype("<f4")
            pairs = zip(words[start : start + step], rows, strict=True)
            file.writelines(b"%s %s\n" % (word.encode(), row.tobytes()) for word, row in pairs)
            progress.update(start + len(rows))


def _blocks(path: Path, count: int, dimension: int, log: Callable[[str], None]) -> Iterator[VectorBlock]:
    distinct = Distinct()
    rows = max(1, BLOCK_NUMBERS // dimension)
    with ExitStack() as stack, phase(f"Reading {path.name}", "vectors", count) as progress:
        file = open_decompressed(path, stack)
        read_header(file, path)
        _check_size(path, count, dimension, file.tell())
        source = _Source(path, file, file.tell())
        for start in range(0, count, rows):
            words, pieces, places = [], [], []
            for number in range(start, min(start + rows, count)):
                place = source.place
                word, vector = source.next_vector(4 * dimension, f"vector {number + 1:,} of {count:,}")
                if distinct.is_new(word):
                    words.append(word)
                    pieces.append(vector)
                    places.append(place)
            vectors = np.frombuffer(b"".join(pieces), dtype="<f4").reshape(-1, dimension).astype(np.float32, copy=False)
            if not (finite := np.isfinite(vectors).all(axis=1)).all():
                bad = int(np.argmin(finite))
                raise UserError(
                    f"{path}: byte {places[bad] + 1:,}: the vector of {words[bad]!r} has a number that is not finite."
                )
            yield VectorBlock(words, vectors)
            progress.update(start + rows)
        source.check_end(count)
    distinct.report(str(path), log)


def _check_size(path: Path, count: int, dimension: int, start: int) -> None:
    """Refuse a file that is too short for what its header announces, before memory is taken for it."""
    if path.suffix.lower() not in COMPRESSED:
        size, needed = path.stat().st_size, start + count * (4 * dimension + 2)
        if size < needed:
            raise UserError(
                f"{path}: byte 1: the header announces {count:,} words of dimension {dimension:,}, which take at least "
                f"{needed:,} bytes, but the file has {size:,}; is it complete?"
            )


class _Source:
    """The words and vectors of a file, one after another, and where they are."""

    def __init__(self, path: Path, file: BinaryIO, place: int) -> None:
        self.path, self.file, self.place = path, file, place
        self.buffer, self.used = b"", 0

    def next_vector(self, size: int, what: str) -> tuple[str, bytes]:
        """The next word and the bytes of its vector; `what` is what messages call it."""
        if len(self.buffer) - self.used < size + _LONGEST_WORD:
            self._fill(size)
        start = self.used
        while self.buffer[start : start + 1] == b"\n":
            start += 1
        space = self.buffer.find(b" ", start, start + _LONGEST_WORD)
        end = space + 1 + size
        if space < 0 and len(self.buffer) - start > _LONGEST_WORD:
            raise self._error(f"{what}: found no space after a word of up to {_LONGEST_WORD:,} bytes")
        if space < 0 or end > len(self.buffer):
            raise self._error(f"the file ends inside {what}; is it complete?", end="")
        if space == start:
            raise self._error(f"{what} has no word")
        try:
            word = self.buffer[start:space].decode("utf-8")
        except UnicodeDecodeError:
            raise self._error(f"the word of {what} is not UTF-8") from None
        self.place += end - self.used
        self.used = end
        return word, self.buffer[space + 1 : end]

    def check_end(self, count: int) -> None:
        """Refuse a file that goes on."""
        self._fill(0)
        if self.buffer[self.used :].strip():
            raise self._error(f"the file goes on after the {count:,} vectors that its header announces")

    def _fill(self, size: int) -> None:
        """Read more, so that the buffer has a word and a vector unless the file ends."""
        rest = self.buffer[self.used :]
        try:
            self.buffer = rest + self.file.read(max(_CHUNK, 2 * size + _LONGEST_WORD))
        except (OSError, EOFError) as error:
            raise UserError(f"{self.path} is damaged or truncated after byte {self.place:,} ({error}).") from None
        self.used = 0

    def _error(self, problem: str, end: str = ".") -> UserError:
        return UserError(f"{self.path}: byte {self.place + 1:,}: {problem}{end}")
