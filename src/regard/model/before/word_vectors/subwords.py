"""Character n-grams of words and the rows of the table where their vectors are, as in fastText.

n-grams are hashed into a fixed number of buckets, so that every word has some, also one that was never seen (Bojanowski
et al. 2017, §3.2). Rows from 0 on belong to whole words, those after them to the buckets.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from regard.model.before.word_vectors.config import SubwordsConfig


def character_ngrams(word: str, config: SubwordsConfig) -> list[str]:
    """The n-grams of <word>, in the order of fastText. The marks < and > alone are none."""
    text = f"<{word}>"
    return [
        text[start : start + length]
        for start in range(len(text))
        for length in range(config.min_length, min(config.max_length, len(text) - start) + 1)
        if length > 1 or 0 < start < len(text) - 1
    ]


def fnv1a(text: str) -> int:
    """The 32-bit FNV-1a hash of the text in UTF-8. fastText takes bytes as signed, which matters beyond ASCII."""
    value = 2166136261
    for byte in text.encode("utf-8", "surrogatepass"):
        value ^= byte if byte < 128 else byte | 0xFFFFFF00
        value = value * 16777619 & 0xFFFFFFFF
    return value


def subword_rows(word: str, config: SubwordsConfig, vocab_size: int) -> list[int]:
    """The rows of the n-grams of a word."""
    return [vocab_size + fnv1a(ngram) % config.buckets for ngram in character_ngrams(word, config)]


def rows_of_words(words: Sequence[str], config: SubwordsConfig) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """For each word of a vocabulary its own row and those of its n-grams: offsets and rows, one word behind the other.

    # (words + 1,), (rows,)
    """
    rows = [[row, *subword_rows(word, config, len(words))] for row, word in enumerate(words)]
    offsets = np.zeros(len(words) + 1, dtype=np.int64)
    np.cumsum([len(each) for each in rows], out=offsets[1:])
    return offsets, np.fromiter((row for each in rows for row in each), dtype=np.int32, count=int(offsets[-1]))
