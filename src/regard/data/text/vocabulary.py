"""The vocabulary of word vectors: words and how often they occur, the most frequent first.

It is stored as text, a line per word: the word, a tab, its count. The number of a line, from 0, is the word's id.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from regard.data.text.lines import read_lines
from regard.data.text.words import WordsConfig
from regard.errors import UserError
from regard.files import write_text
from regard.progress import counted

VOCABULARY = "vocabulary.tsv"
"""The name of the file in a run folder."""


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Words by decreasing count."""

    words: Sequence[str]
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    @property
    def text(self) -> str:
        """The contents of the file."""
        rows = zip(self.words, self.counts.tolist(), strict=True)
        return "".join(f"{word}\t{count}\n" for word, count in rows)

    def save(self, path: Path) -> None:
        write_text(path, self.text)

    @classmethod
    def load(cls, path: Path) -> Self:
        words, counts = [], []
        for number, line in enumerate(read_lines(path), start=1):
            word, tab, count = line.rpartition("\t")
            if not tab or not word or not (count.isascii() and count.isdigit()) or len(count) > 18:
                raise UserError(f"{path}, line {number}: expected a word, a tab and its count; found {line[:60]!r}.")
            words.append(word)
            counts.append(int(count))
        found = cls(words, np.array(counts, dtype=np.int64))
        if len(found.ids) != len(words):
            raise UserError(f"{path}: a word stands there twice; restore the file from a copy.")
        return found


def count_words(
    sentences: Iterable[Sequence[str]], config: WordsConfig, log: Callable[[str], None] = lambda message: None
) -> Vocabulary:
    """Count the words of a text, which is read once, and keep those that are frequent enough.

    Words with equal counts are ordered by their text. If there are too many different words, the rarest are forgotten
    from time to time, each time up to a count higher by one (word2vec.c).
    """
    counts: Counter[str] = Counter()
    total, threshold = 0, 0
    for words in counted(sentences, "Counting words", "lines"):
        counts.update(words)
        total += len(words)
        while len(counts) > config.max_distinct:
            threshold += 1
            counts = Counter({word: count for word, count in counts.items() if count > threshold})
    if threshold:
        log(
            f"The text has more than {config.max_distinct:,} different words (data.words.max_distinct), so words seen "
            f"up to {threshold:,} times were forgotten while counting."
        )
    frequent = [(word, count) for word, count in counts.items() if count >= config.min_count]
    if not frequent:
        raise UserError(_empty(total, max(counts.values(), default=0), config))
    frequent.sort(key=lambda entry: (-entry[1], entry[0]))
    frequent = frequent[: config.vocab_size]
    return Vocabulary([word for word, _ in frequent], np.array([count for _, count in frequent], dtype=np.int64))


def _empty(total: int, highest: int, config: WordsConfig) -> str:
    """Why there is no word."""
    if not total:
        return "The text has no words; give a text of words, or set data.words.kind to whitespace."
    return (
        f"No word of the text occurs {config.min_count:,} times, the most frequent one {highest:,} times; lower "
        "data.words.min_count, or give a longer text."
    )
