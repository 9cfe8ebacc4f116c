"""What word2vec draws at random: which words are kept, and the random words that it tells the true ones from.

All random numbers have 32 bits, so probabilities are given as limits for them.
"""

import numpy as np
from numpy.typing import NDArray

from regard.data.batching.word_blocks import keep_probabilities

BITS = 32
_FULL = 1 << BITS


def keep_limits(counts: NDArray[np.int64], subsample: float) -> NDArray[np.uint64]:
    """An occurrence of a word is kept if a random number is less than this.  # (words,)"""
    return np.round(keep_probabilities(counts, subsample).astype(np.float64) * _FULL).astype(np.uint64)


def negative_probabilities(counts: NDArray[np.int64], power: float) -> NDArray[np.float64]:
    """The probability of each word to be drawn as a random one.  # (words,)"""
    weights = np.exp(power * np.log(counts / counts.max()))
    probabilities: NDArray[np.float64] = weights / weights.sum()
    return probabilities


def alias_table(probabilities: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Walker's alias table: to draw a word, draw an entry, and by a second number either its own word or the other one.

    An entry has in its upper 32 bits the limit below which it is its own word, in the lower ones the other. Unlike a
    table of word2vec.c, whose words repeat as often as they are drawn, this is exact and small enough for the cache.
    """
    words = len(probabilities)
    shares = (probabilities * words).tolist()
    aliases = list(range(words))
    poor = [word for word, share in enumerate(shares) if share < 1]
    rich = [word for word, share in enumerate(shares) if share >= 1]
    while poor and rich:
        word, giver = poor.pop(), rich[-1]
        aliases[word] = giver
        shares[giver] -= 1 - shares[word]
        if shares[giver] < 1:
            poor.append(rich.pop())
    for word in (*poor, *rich):  # 1, but for rounding
        shares[word], aliases[word] = 1.0, word
    limits = np.minimum(np.round(np.array(shares) * _FULL), _FULL - 1).astype(np.uint64)
    table: NDArray[np.uint64] = (limits << np.uint64(BITS)) | np.array(aliases, dtype=np.uint64)
    return table


def block_seed(seed: int, step: int) -> int:
    """The state that the random numbers of a step begin with: 64 well-mixed bits (splitmix64)."""
    mask = (1 << 64) - 1
    value = (seed * 0xD1342543DE82EF95 + step * 0x9E3779B97F4A7C15) & mask
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & mask
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & mask
    return value ^ (value >> 31)
