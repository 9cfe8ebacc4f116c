"""Blocks of sentences: what word vectors are trained on, and how words and their contexts are taken from them."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_SENTENCE = 1000
"""Longer sentences are cut into pieces of so many words, as word2vec does."""


class WordBlock(NamedTuple):
    """Some sentences, one behind the other: a word's id is its row in the vocabulary, the most frequent word is 0."""

    ids: NDArray[np.int32]
    """(words,); words that are not in the vocabulary are left out."""
    offsets: NDArray[np.int64]
    """(sentences + 1,); where each sentence begins in `ids`, and the end of the last one."""


@dataclass(frozen=True)
class ContextWindow:
    """Which words around a word are its context."""

    size: int = 5
    """The most words on either side."""
    dynamic: bool = True
    """Whether the size is drawn from 1 to `size` anew for each word, so that near words count more."""
    subsample: float = 1e-3
    """Words more frequent than this share of all words are left out at random before windows are taken; 0: none."""


def keep_probabilities(counts: NDArray[np.int64], subsample: float) -> NDArray[np.float32]:
    """The probability that an occurrence of each word is kept: (√(f/t) + 1) · t/f of a word with frequency f, at most
    1 (word2vec.c).  # (vocabulary,)"""
    if not subsample:
        return np.ones(len(counts), dtype=np.float32)
    ratio = counts / (subsample * counts.sum())
    kept: NDArray[np.float32] = np.minimum((np.sqrt(ratio) + 1) / np.maximum(ratio, 1e-300), 1).astype(np.float32)
    return kept
