"""Counting which words occur together, within a limit of memory.

Two words of a sentence that are d words apart, d up to the window, count 1/d for each other (Pennington et al. 2014,
§4.2). Most pairs of a text are of a few frequent words, so these are counted in a small square table. The others are
collected as numbers that hold both words and the distance. When there are as many as memory allows, they are sorted,
equal ones are counted, and the result goes to disk as a sorted run; at the end the runs are merged.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from math import isqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from regard.config import Config
from regard.data.cooccurrence.matrix import Cooccurrences, write_cooccurrences
from regard.data.cooccurrence.sorted_runs import SortedRuns, group_starts
from regard.data.registry.cache import cache_folder, locked_folder
from regard.data.store.token_store import DamagedStoreError
from regard.data.text.vocabulary import Vocabulary
from regard.data.text.word_corpus import WordCorpus
from regard.errors import UserError
from regard.files import new_folder
from regard.progress import Phase, phase

_MAX_DENSE = 2048
"""The most words that are counted in a square table."""


class CooccurrenceConfig(Config):
    """How co-occurrences of words are counted."""

    window: int = Field(default=15, ge=1, le=1000)
    """The most words on either side of a word that it occurs together with, within its line. A word that is d words
    away counts 1/d."""
    max_bytes: int = Field(default=1 << 30, ge=1 << 16, le=1 << 50)
    """The memory for counting, in bytes. What does not fit is sorted and kept on disk meanwhile."""


def cached_cooccurrences(
    corpus: WordCorpus,
    vocabulary: Vocabulary,
    config: CooccurrenceConfig,
    fingerprint: str,
    log: Callable[[str], object] = lambda message: None,
) -> Cooccurrences:
    """The co-occurrences of a text: counted once, then found in the cache. `fingerprint` identifies the text, as
    `corpus_fingerprint` does."""
    digest = hashlib.sha256(vocabulary.text.encode()).hexdigest()
    key = json.dumps(["cooccurrences", fingerprint, digest, config.window])
    path = cache_folder() / "cooccurrences" / hashlib.sha256(key.encode()).hexdigest()[:32]
    with locked_folder(path.parent):
        if path.exists():
            try:
                with phase("Checking the cached co-occurrences"):
                    found = Cooccurrences(path)
                    found.verify()
                return found
            except DamagedStoreError as error:
                log(f"{error} Counting again.")
        return count_cooccurrences(path, corpus, len(vocabulary), config, key=key, replace=True)


def count_cooccurrences(
    path: Path, corpus: WordCorpus, vocab_size: int, config: CooccurrenceConfig, *, key: str = "", replace: bool = False
) -> Cooccurrences:
    """Count the co-occurrences of a text, and write them to a new folder."""
    with new_folder(path, replace=replace) as folder:
        (folder / "runs").mkdir()
        counter = CooccurrenceCounter(folder / "runs", vocab_size, config)
        with phase("Counting co-occurrences", "words", corpus.words) as current:
            counter.count(corpus.ids, corpus.offsets, current)
        with phase("Merging co-occurrences"):
            pairs = write_cooccurrences(folder, counter.merged(), key=key, vocab_size=vocab_size, window=config.window)
        if not pairs:
            raise UserError("No two words of the text are in the same line, so none occur together; join its lines.")
        shutil.rmtree(folder / "runs")
    return Cooccurrences(path)


class CooccurrenceCounter:
    """Counts pairs of words in memory and in sorted runs in a folder."""

    def __init__(self, folder: Path, vocab_size: int, config: CooccurrenceConfig) -> None:
        self._vocab_size, self._window = vocab_size, config.window
        self._chunk = config.max_bytes // 384
        """Words that are looked at together: some arrays of so many numbers are needed at once."""
        self._max_keys = config.max_bytes // 96
        """Keys in the buffer: sorting and counting them needs up to 56 bytes for each."""
        self._dense = min(vocab_size, isqrt(config.max_bytes // 256), _MAX_DENSE)
        self._distance_bits = (config.window - 1).bit_length()
        self._table = np.zeros(self._dense**2)  # (dense, dense); what (i, j) counts from left to right
        self._keys: list[NDArray[np.int64]] = []
        self._collected = 0
        self._runs = SortedRuns(folder, config.max_bytes // 2)

    @property
    def spills(self) -> int:
        """How often what was collected had to be written to disk."""
        return self._runs.spills

    def count(self, ids: NDArray[np.integer], offsets: NDArray[np.int64], progress: Phase | None = None) -> None:
        """Count the pairs of sentences that lie one behind the other; the arrays may be memory-mapped."""
        words = int(offsets[-1])
        for start in range(0, words, self._chunk):
            end = min(start + self._chunk, words)
            chunk = np.asarray(ids[start : min(end + self._window, words)], dtype=np.int64)
            positions = np.arange(start, end)
            sentences = np.searchsorted(offsets, positions, side="right")
            self._count_chunk(chunk, np.asarray(offsets[sentences]) - positions)
            if progress is not None:
                progress.update(end)

    def merged(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Keys (row × vocab_size + column) in ascending order with their counts, some at a time."""
        self._spill()
        self._spill_table()
        return self._runs.merged()

    def _count_chunk(self, ids: NDArray[np.int64], remaining: NDArray[np.int64]) -> None:
        """Count pairs by their left word. `remaining` is how many words of its sentence begin at each; `ids` go on for
        a window after the last of them."""
        lefts = np.arange(len(remaining))
        for distance in range(1, self._window + 1):
            lefts = lefts[remaining[lefts] > distance]
            if not len(lefts):
                return
            left, right = ids[lefts], ids[lefts + distance]
            is_dense = (left < self._dense) & (right < self._dense)
            cells = left[is_dense] * self._dense + right[is_dense]
            self._table += np.bincount(cells, minlength=len(self._table)) / distance
            np.logical_not(is_dense, out=is_dense)
            self._collect(left[is_dense], right[is_dense], distance)

    def _collect(self, left: NDArray[np.int64], right: NDArray[np.int64], distance: int) -> None:
        """Collect pairs in both orders."""
        if self._collected + 2 * len(left) > self._max_keys:
            self._spill()
        for row, column in ((left, right), (right, left)):
            self._keys.append(((row * self._vocab_size + column) << self._distance_bits) | (distance - 1))
        self._collected += 2 * len(left)

    def _spill(self) -> None:
        """Sort what was collected, add up equal pairs, and write them as a run."""
        if not self._collected:
            return
        keys = np.concatenate(self._keys)
        self._keys, self._collected = [], 0
        keys.sort()
        weights = 1 / np.arange(1, self._window + 1)
        values = weights[keys & ((1 << self._distance_bits) - 1)]
        keys >>= self._distance_bits
        starts = group_starts(keys)
        self._runs.add(keys[starts], np.add.reduceat(values, starts))

    def _spill_table(self) -> None:
        """Write the counts of frequent words as a run, in both orders."""
        table = self._table.reshape(self._dense, self._dense)
        table += table.T.copy()
        cells = np.flatnonzero(self._table)
        if len(cells):
            rows, columns = np.divmod(cells, self._dense)
            self._runs.add(rows * self._vocab_size + columns, self._table[cells])
