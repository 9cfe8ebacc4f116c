"""Estimating n-grams: interpolated modified Kneser–Ney smoothing (Chen & Goodman 1999), as KenLM's lmplz computes it.

An n-gram is identified by a key: the index of its prefix among the (n − 1)-grams, times the size of the vocabulary,
plus its last token. One `numpy.unique` per order therefore counts all n-grams, and sorts them so that the continuations
of a context are adjacent. The steps are those of Heafield et al. 2013:

    adjusted counts   the highest order has raw counts, lower orders the number of distinct tokens to the left; n-grams
                      at the beginning of a document, which have nothing to their left, keep their raw counts
    discounts         per order, from how many n-grams have the adjusted counts 1 to 4
    interpolation     what discounts and pruning take from a context goes to the next shorter one, and what they take
                      from single tokens goes to all tokens of the vocabulary alike, seen or not
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError

FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)
"""For the counts 1, 2, and 3 or more, where there are too few n-grams to estimate them: those of lmplz."""
IMPOSSIBLE = -99 * float(np.log(10))
"""The log-probability of what never occurs. ARPA files write −99, as a logarithm to base 10, for −∞."""

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Ngrams:
    """The n-grams of one order, sorted by key. Logarithms are natural."""

    keys: Integers
    """The index of the prefix × the size of the vocabulary + the last token; of single tokens, the token."""
    logprobs: Floats
    backoffs: Floats | None
    """log γ: what a continuation that is not listed costs. The highest order, which is no context, has none."""

    def max_continuations(self, vocab_size: int) -> int:
        """The most n-grams that share a prefix."""
        return int(np.unique(self.keys // vocab_size, return_counts=True)[1].max(initial=0))


@dataclass
class _Counts:
    """The n-grams of one order, before smoothing."""

    keys: Integers
    raw: Integers
    begins: NDArray[np.bool_]
    """Whether an n-gram stands at the beginning of a document: its first token is the start token."""
    suffix: Integers
    """The index of each n-gram's last n − 1 tokens among the (n − 1)-grams; empty for single tokens."""
    adjusted: Integers


def estimate(
    tokens: NDArray[Any],
    *,
    order: int,
    vocab_size: int,
    offsets: NDArray[Any] | None = None,
    prune: Sequence[int] = (),
    bos: int | None = None,
    eos: int | None = None,
    pad: int | None = None,
    fallback: bool = True,
) -> list[Ngrams]:
    """The n-grams of each order up to `order`, from documents that lie one behind the other.

    A document begins at each of the `offsets` and behind each `eos`; `bos` is not part of the text. A model without
    `bos` sees the end of the document before in its place, and the n-grams are estimated in the same way.
    """
    if len(tokens) == 0:
        raise UserError("There is no text to count n-grams in; give at least one token.")
    start = vocab_size if bos is None and eos is None else eos if bos is None else bos
    assert start is not None
    levels = _count(tokens, order, vocab_size + 1, _document_starts(tokens, offsets, eos), start)
    thresholds = [prune[min(n, len(prune) - 1)] if prune else 0 for n in range(order)]
    kept = [level.raw > threshold for level, threshold in zip(levels, thresholds, strict=True)]
    kept[0] = np.ones(vocab_size + 1, dtype=bool)
    if start == vocab_size:  # the beginning of the text is no token of the vocabulary, so nothing can follow it
        kept = [keep & ~level.begins for keep, level in zip(kept, levels, strict=True)]
    kept[0][vocab_size] = False
    probabilities, backoffs = _smooth(levels, kept, [each for each in (bos, pad) if each is not None], fallback)
    return _tables(levels, kept, probabilities, backoffs, vocab_size)


def _document_starts(tokens: NDArray[Any], offsets: NDArray[Any] | None, eos: int | None) -> Integers:
    starts = [np.zeros(1, dtype=np.int64)]
    if offsets is not None:
        starts.append(np.asarray(offsets, dtype=np.int64))
    if eos is not None:
        starts.append(np.flatnonzero(tokens == eos) + 1)
    found = np.unique(np.concatenate(starts))
    return found[found < len(tokens)]


def _count(tokens: NDArray[Any], order: int, size: int, starts: Integers, start: int) -> list[_Counts]:
    """Count the n-grams of every order, none of which crosses the beginning of a document."""
    text = np.insert(np.asarray(tokens, dtype=np.int64), starts, start)
    if text.min() < 0 or text.max() >= size:
        raise UserError(f"The text has token ids from {text.min()} to {text.max()}; the vocabulary has {size - 1}.")
    begins = starts + np.arange(len(starts))  # where the start tokens are now
    depth = np.arange(len(text)) - np.repeat(begins, np.diff(begins, append=len(text)))
    raw = np.bincount(text[depth > 0], minlength=size)
    levels = [_Counts(np.arange(size), raw, np.arange(size) == start, np.empty(0, dtype=np.int64), raw)]
    index = text  # of the n-gram that ends at each token, among those of its order
    for n in range(2, order + 1):
        ends = np.flatnonzero(depth >= n - 1)
        keys, inverse, raw = np.unique(index[ends - 1] * size + text[ends], return_inverse=True, return_counts=True)
        suffix = np.zeros(len(keys), dtype=np.int64)
        suffix[inverse] = index[ends]
        shorter = levels[-1]
        neighbors = np.bincount(suffix, minlength=len(shorter.keys))
        at_start = shorter.begins if n > 2 else np.zeros(size, dtype=bool)  # the start token itself is never predicted
        shorter.adjusted = np.where(at_start, shorter.raw, neighbors)
        levels.append(_Counts(keys, raw, shorter.begins[keys // size], suffix, raw))
        index = np.zeros_like(text)
        index[ends] = inverse
    return levels


def discounts_of(adjusted: Integers, n: int, fallback: bool = True) -> Floats:
    """What to subtract from n-grams with an adjusted count of 0, 1, 2, and 3 or more (Chen & Goodman 1999, eq. 26)."""
    n1, n2, n3, n4 = (int(np.count_nonzero(adjusted == count)) for count in (1, 2, 3, 4))
    if min(n1, n2, n3):
        y = n1 / (n1 + 2 * n2)
        found = np.array([0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3])
        if (found >= 0).all():
            return found
    if not fallback:
        raise UserError(
            f"The discounts of {n}-grams cannot be estimated: {n1:,}, {n2:,}, {n3:,} and {n4:,} of them have the "
            "counts 1 to 4; give more text, lower model.order, or set model.discount_fallback to true."
        )
    return np.array([0, *FALLBACK_DISCOUNTS])


def _smooth(
    levels: list[_Counts], kept: list[NDArray[np.bool_]], never: list[int], fallback: bool
) -> tuple[list[Floats], list[Floats]]:
    """The probability of each n-gram, and γ of each as a context. The tokens in `never` are predicted only if seen."""
    size = len(levels[0].keys)
    probabilities: list[Floats] = []
    backoffs: list[Floats] = []
    for number, (level, keep) in enumerate(zip(levels, kept, strict=True)):
        counts = level.adjusted.astype(np.float64)
        discount = discounts_of(level.adjusted, number + 1, fallback)[np.minimum(level.adjusted, 3)]
        taken = np.where(keep, discount, counts)
        if number == 0:
            predicted = kept[0].copy()
            predicted[[each for each in never if counts[each] == 0]] = False
            lower, total = predicted / predicted.sum(), np.full(size, counts.sum())
            share = np.full(size, taken.sum() / counts.sum())
        else:
            prefix = level.keys // size
            total, mass = (np.bincount(prefix, each, len(levels[number - 1].keys)) for each in (counts, taken))
            backoffs.append(np.divide(mass, total, out=np.ones_like(mass), where=total > 0))
            share, total = backoffs[-1][prefix], total[prefix]
            lower = probabilities[-1][level.suffix]
        probabilities.append((counts - taken) / total + share * lower)
    return probabilities, backoffs


def _tables(
    levels: list[_Counts],
    kept: list[NDArray[np.bool_]],
    probabilities: list[Floats],
    backoffs: list[Floats],
    vocab_size: int,
) -> list[Ngrams]:
    """The n-grams that are kept, with keys that count only these."""
    tables = []
    index = np.arange(vocab_size + 1)
    for number, (level, keep) in enumerate(zip(levels, kept, strict=True)):
        prefix, last = np.divmod(level.keys[keep], vocab_size + 1)
        keys = index[prefix] * vocab_size + last if number else last
        logs = [_log(each[number][keep]) if number < len(each) else None for each in (probabilities, backoffs)]
        assert logs[0] is not None
        tables.append(Ngrams(keys, logs[0], logs[1]))
        index = np.cumsum(keep) - 1
    return tables


def _log(values: Floats) -> Floats:
    return np.log(values, out=np.full_like(values, IMPOSSIBLE), where=values > 0)
