"""Sums by key, of which there may be more than fit into memory: sorted runs on disk, merged in the end.

Runs are merged sixteen at a time as they come, and what results again sixteen at a time, so that there are never many
files, and never much more on disk than twice the result.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.int64]
Sums = NDArray[np.float64]

FAN_IN = 16
"""How many runs of a level are merged into one of the next."""
_BYTES_PER_ENTRY = 96
"""Memory for each entry that a merge holds: the entry itself, its copy in order, and what sorting needs."""


class SortedRuns:
    """Collects sums by key in a folder; the folder may be deleted once they have been read."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder, self._entries = folder, max(max_bytes // _BYTES_PER_ENTRY // FAN_IN, 16)
        self._levels: list[list[_Run]] = []
        self.spills = 0
        """How many runs were written, not counting those merged from others."""
        self._written = 0

    def add(self, keys: Keys, sums: Sums) -> None:
        """Write a run. Its keys are sorted and distinct."""
        self.spills += 1
        self._insert(self._write(iter([(keys, sums)])), 0)

    def merged(self) -> Iterator[tuple[Keys, Sums]]:
        """All keys in ascending order with their sums, some at a time."""
        runs = [run for level in self._levels for run in level]
        while len(runs) > FAN_IN:
            first, runs = runs[:FAN_IN], runs[FAN_IN:]
            runs.append(self._write(_merge(first, self._entries)))
            for run in first:
                run.remove()
        yield from _merge(runs, self._entries)

    def _insert(self, run: "_Run", level: int) -> None:
        """Add a run to a level, and merge the level once it is full."""
        if level == len(self._levels):
            self._levels.append([])
        runs = self._levels[level]
        runs.append(run)
        if len(runs) == FAN_IN:
            merged = self._write(_merge(runs, self._entries))
            for old in runs:
                old.remove()
            runs.clear()
            self._insert(merged, level + 1)

    def _write(self, parts: Iterator[tuple[Keys, Sums]]) -> "_Run":
        run = _Run(self._folder / f"{self._written}.keys", self._folder / f"{self._written}.sums")
        self._written += 1
        with run.keys.open("wb") as keys_file, run.sums.open("wb") as sums_file:
            for keys, sums in parts:
                keys_file.write(keys.data)
                sums_file.write(sums.data)
        return run


class _Run:
    """The two files of a run."""

    def __init__(self, keys: Path, sums: Path) -> None:
        self.keys, self.sums = keys, sums

    def remove(self) -> None:
        self.keys.unlink()
        self.sums.unlink()


class _Reader:
    """Reads a run bit by bit; `keys` and `sums` are what was read and not yet taken."""

    def __init__(self, run: _Run, stack: ExitStack) -> None:
        self._keys: IO[bytes] = stack.enter_context(run.keys.open("rb"))
        self._sums: IO[bytes] = stack.enter_context(run.sums.open("rb"))
        self.keys, self.sums = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64)
        self.at_end = False

    def fill(self, entries: int) -> None:
        """Read on if nothing is left."""
        if len(self.keys) or self.at_end:
            return
        self.keys = np.fromfile(self._keys, dtype=np.int64, count=entries)
        self.sums = np.fromfile(self._sums, dtype=np.float64, count=entries)
        self.at_end = len(self.keys) < entries

    def take(self, last: int | None) -> tuple[Keys, Sums]:
        """Everything up to the key `last`, or all that was read."""
        end = len(self.keys) if last is None else int(np.searchsorted(self.keys, last, side="right"))
        taken = self.keys[:end], self.sums[:end]
        self.keys, self.sums = self.keys[end:], self.sums[end:]
        return taken


def _merge(runs: Sequence[_Run], entries: int) -> Iterator[tuple[Keys, Sums]]:
    """Merge runs, with `entries` of each in memory.

    Up to the lowest of the last keys that were read of each run, nothing is missing.
    """
    with ExitStack() as stack:
        readers = [_Reader(run, stack) for run in runs]
        while True:
            for reader in readers:
                reader.fill(entries)
            readers = [reader for reader in readers if len(reader.keys)]
            if not readers:
                return
            last = min((int(reader.keys[-1]) for reader in readers if not reader.at_end), default=None)
            parts = [reader.take(last) for reader in readers]
            yield _sum_equal(np.concatenate([keys for keys, _ in parts]), np.concatenate([sums for _, sums in parts]))


def _sum_equal(keys: Keys, sums: Sums) -> tuple[Keys, Sums]:
    """The distinct keys in ascending order, and the sum for each."""
    order = np.argsort(keys, kind="stable")  # timsort: it finds the runs and merges them
    keys, sums = keys[order], sums[order]
    starts = group_starts(keys)
    return keys[starts], np.add.reduceat(sums, starts)


def group_starts(values: Keys) -> NDArray[np.int64]:
    """Where each group of equal values begins in a sorted array that is not empty."""
    is_first = np.empty(len(values), dtype=np.bool_)
    is_first[0] = True
    np.not_equal(values[1:], values[:-1], out=is_first[1:])
    return np.flatnonzero(is_first)
