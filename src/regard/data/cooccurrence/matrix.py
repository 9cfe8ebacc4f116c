"""Co-occurrence counts on disk: a sparse symmetric matrix of words as memory-mapped triples.

A folder holds

    header.json        format version, key, number of words and pairs, window, and checksums
    rows.i32           the word of each pair, little-endian int32, ascending
    columns.i32        the other word of each pair, ascending within a row
    counts.f32         how often they occur together, weighted by distance, little-endian float32

Both (i, j) and (j, i) are in it, because a model has one table for words and another for their contexts.
"""

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.config import parse_json
from regard.data.store.token_store import DamagedStoreError

FORMAT = 1
STRIP = 1024
"""Neighboring pairs that stay together when an epoch's order is drawn: one page of each file, so that a matrix that
does not fit into memory is read in pages and not in single numbers."""
_FILES = {"rows.i32": np.dtype("<i4"), "columns.i32": np.dtype("<i4"), "counts.f32": np.dtype("<f4")}


class PairBlock(NamedTuple):
    """Some pairs of words that occur together: what GloVe is trained on."""

    rows: NDArray[np.int32]
    """(pairs,); the ids of the words."""
    columns: NDArray[np.int32]
    """(pairs,); the ids of the words that they occur with."""
    counts: NDArray[np.float32]
    """(pairs,); how often, weighted by distance."""


class Cooccurrences:
    """The pairs of words that occur together and how often, memory-mapped. Opening checks the sizes of the files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        header = _read_header(path)
        self.key: str = header["key"]
        self.vocab_size: int = header["vocab_size"]
        self.window: int = header["window"]
        self._checksums: dict[str, int] = header["checksums"]
        self.rows, self.columns, self.counts = (
            _map(path / name, dtype, header["pairs"]) for name, dtype in _FILES.items()
        )

    def __len__(self) -> int:
        """The number of pairs that occur."""
        return len(self.counts)

    def row(self, word: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The words that a word occurs with, ascending, and how often."""
        first, last = np.searchsorted(self.rows, [word, word + 1])
        return self.columns[first:last], self.counts[first:last]

    def blocks(self, size: int, seed: int, start: int = 0) -> Iterator[tuple[int, PairBlock]]:
        """All pairs once in random order, in blocks of at least `size`; each with where the next one begins.

        The order of the strips follows from `seed`. Pairs of a block are to be shuffled by who trains on it.
        """
        strips, per_block = -(-len(self) // STRIP), _strips_per_block(size)
        order = np.random.default_rng([seed, strips]).permutation(strips)
        while start < strips:
            chosen = order[start : start + per_block]
            pairs = (chosen[:, None] * STRIP + np.arange(STRIP)).reshape(-1)
            pairs = pairs[pairs < len(self)]
            start = min(start + per_block, strips)
            yield start, PairBlock(self.rows[pairs], self.columns[pairs], self.counts[pairs])

    def block_count(self, size: int) -> int:
        """The number of blocks of an epoch."""
        return -(-len(self) // (STRIP * _strips_per_block(size)))

    def verify(self) -> None:
        """Read every byte and compare it with the checksums in the header."""
        for name, expected in self._checksums.items():
            found = 0
            try:
                with (self.path / name).open("rb") as file:
                    while chunk := file.read(1 << 20):
                        found = zlib.crc32(chunk, found)
            except OSError as error:
                raise _damaged(self.path, name, f"cannot be read ({error.strerror})") from None
            if found != expected:
                raise _damaged(self.path, name, "is damaged (its checksum differs)")


def _strips_per_block(size: int) -> int:
    return max(-(-size // STRIP), 1)


def write_cooccurrences(
    folder: Path,
    parts: Iterable[tuple[NDArray[np.int64], NDArray[np.float64]]],
    *,
    key: str,
    vocab_size: int,
    window: int,
) -> int:
    """Write the files into a folder, and return the number of pairs.

    Parts are keys (row × vocab_size + column) in ascending order and their counts.
    """
    checksums = dict.fromkeys(_FILES, 0)
    pairs = 0
    with ExitStack() as stack:
        files = [stack.enter_context((folder / name).open("wb")) for name in _FILES]
        for keys, sums in parts:
            pairs += len(keys)
            rows, columns = np.divmod(keys, vocab_size)
            for (name, dtype), file, values in zip(_FILES.items(), files, (rows, columns, sums), strict=True):
                data = values.astype(dtype).tobytes()
                checksums[name] = zlib.crc32(data, checksums[name])
                file.write(data)
    header: dict[str, Any] = {"format": FORMAT, "key": key, "vocab_size": vocab_size, "window": window}
    header |= {"pairs": pairs, "checksums": checksums}
    header["checksum"] = _checksum(header)
    (folder / "header.json").write_text(json.dumps(header, indent=2) + "\n", encoding="utf-8")
    return pairs


def _read_header(folder: Path) -> dict[str, Any]:
    try:
        header = parse_json((folder / "header.json").read_text(encoding="utf-8"))
        version, checksum = header["format"], header.pop("checksum")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(folder, "header.json", f"cannot be read ({error})") from None
    if checksum != _checksum(header) or version != FORMAT:
        raise _damaged(folder, "header.json", "is damaged or of another version")
    return dict(header)


def _checksum(header: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()


def _map(path: Path, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    """A file as a read-only array, if it has the expected size."""
    try:
        found = path.stat().st_size
        if found != count * dtype.itemsize:
            raise _damaged(path.parent, path.name, f"has {found} bytes instead of {count * dtype.itemsize}")
        return np.asarray(np.memmap(path, dtype=dtype, mode="r")) if count else np.empty(0, dtype=dtype)
    except OSError as error:
        raise _damaged(path.parent, path.name, f"cannot be read ({error.strerror})") from None


def _damaged(folder: Path, name: str, problem: str) -> DamagedStoreError:
    return DamagedStoreError(f"{folder / name} {problem}; remove {folder}.")
