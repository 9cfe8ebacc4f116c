"""Which words of one language go with which of the other, learnt from sentence pairs.

IBM model 1 (Brown et al. 1993): every target token was made by one of the tokens of its source, any of them at first.
Expectation-maximisation then makes p(target | source) of how often each did: in every sentence a target token is
shared out among the source's tokens by what was believed before, and the shares are counted.

Pairs of tokens are sorted numbers, source · vocabulary + target, and sentences are worked on some at a time. What is
held does not grow with the corpus beyond its ids: of more pairs than `_MOST_KEYS` those seen least are dropped.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.pairs import Pair
from regard.data.tokenizer import TextTokenizer
from regard.errors import UserError

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]
Ids = Sequence[int]

ITERATIONS = 5
"""After so many the order of the likeliest hardly changes."""
MOST_PAIRS = 1_000_000
"""Sentence pairs that are learnt from at most: the first ones."""
LONGEST = 256
"""Tokens of a side; pairs with a longer one are left out."""
_MOST_KEYS = 10_000_000
_CHUNK = 10_000
"""Sentence pairs read at once."""
_AT_ONCE = 4_000_000
"""Pairs of tokens worked on at once."""


class Lexicon(NamedTuple):
    """What was learnt."""

    table: NDArray[np.int32]
    """The likeliest target tokens of each source token, likeliest first; -1 stands for none.  # (source, candidates)"""
    frequent: NDArray[np.int32]
    """The target tokens seen most often, most often first."""
    pairs: int
    """How many sentence pairs it was learnt from."""


def learn_lexicon(
    pairs: Iterable[tuple[Ids, Ids]],
    sizes: tuple[int, int],
    *,
    candidates: int,
    frequent: int,
    iterations: int = ITERATIONS,
) -> Lexicon:
    """The `candidates` likeliest target tokens of each source token, and the `frequent` most frequent of all.

    pairs: ids of source and target. What no source token explains needs one to go to: put a token that every source
    has, such as its end, behind each. sizes: how many ids there are on both sides.
    """
    text = _read(pairs)
    keys, shares = _first_shares(text, sizes)
    for _ in range(iterations - 1):
        shares = _next_shares(text, sizes, keys, _given_source(keys, shares, sizes))
    table = _likeliest(keys, _given_source(keys, shares, sizes), sizes, candidates)
    counts = np.bincount(text.targets, minlength=sizes[1])
    order = np.argsort(-counts, kind="stable")[: min(frequent, int((counts > 0).sum()))]
    return Lexicon(table, order.astype(np.int32), len(text.source_lengths))


def encode_pairs(
    source: TextTokenizer,
    target: TextTokenizer,
    pairs: Iterable[Pair],
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[list[int], list[int]]]:
    """Ids of both sides, the end of a source behind it, without pairs that lack a side. `progress` hears how many."""
    behind = [] if source.end is None else [source.end]
    stream = (pair for pair in pairs if pair.source.strip() and pair.target.strip())
    count = 0
    while chunk := list(islice(stream, _CHUNK)):
        sources = source.encode_batch([pair.source for pair in chunk])
        targets = target.encode_batch([pair.target for pair in chunk])
        yield from (([*ids, *behind], others) for ids, others in zip(sources, targets, strict=True))
        count += len(chunk)
        if progress is not None:
            progress(count)


class _Text(NamedTuple):
    """Sentence pairs, one behind the other."""

    sources: NDArray[np.int32]
    targets: NDArray[np.int32]
    source_lengths: Numbers
    target_lengths: Numbers


class _Chunk(NamedTuple):
    """Every target token of some sentences with every token of its source."""

    keys: Numbers
    begins: Numbers  # where each target token's own begin
    lengths: Numbers  # how many each has


def _read(pairs: Iterable[tuple[Ids, Ids]]) -> _Text:
    usable = islice((pair for pair in pairs if all(0 < len(side) <= LONGEST for side in pair)), MOST_PAIRS)
    parts: list[tuple[NDArray[np.int32], ...]] = []
    while some := list(islice(usable, _CHUNK)):
        sides = list(zip(*some, strict=True))
        ids = [np.fromiter((number for row in side for number in row), np.int32) for side in sides]
        lengths = [np.fromiter(map(len, side), np.int32) for side in sides]
        parts.append((*ids, *lengths))
    if not parts:
        raise UserError(f"There is no sentence pair to learn from: each side needs 1 to {LONGEST} tokens.")
    sources, targets, source_lengths, target_lengths = (np.concatenate(each) for each in zip(*parts, strict=True))
    return _Text(sources, targets, source_lengths.astype(np.int64), target_lengths.astype(np.int64))


def _chunks(text: _Text, sizes: tuple[int, int]) -> Iterator[_Chunk]:
    """Some sentences at a time, as many as have `_AT_ONCE` pairs of tokens."""
    work = np.cumsum(text.source_lengths * text.target_lengths)
    source_ends, target_ends = np.cumsum(text.source_lengths), np.cumsum(text.target_lengths)
    first = 0
    while first < len(work):
        done = work[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(work, done + _AT_ONCE, side="right")))
        which = slice(first, last)
        counts = text.target_lengths[which]
        lengths = np.repeat(text.source_lengths[which], counts)
        begins = np.cumsum(lengths) - lengths
        at = np.repeat(np.repeat(source_ends[which] - text.source_lengths[which], counts) - begins, lengths)
        at += np.arange(len(at))
        targets = text.targets[target_ends[first] - counts[0] : target_ends[last - 1]]
        keys = text.sources[at].astype(np.int64) * sizes[1] + np.repeat(targets, lengths)
        yield _Chunk(keys, begins, lengths)
        first = last


def _first_shares(text: _Text, sizes: tuple[int, int]) -> tuple[Numbers, Floats]:
    """Every pair of tokens met, and its shares where all tokens of a source are equally likely."""
    keys: Numbers = np.empty(0, np.int64)
    shares: Floats = np.empty(0)
    for chunk in _chunks(text, sizes):
        here, places = np.unique(chunk.keys, return_inverse=True)
        gained = np.bincount(places, np.repeat(1 / chunk.lengths, chunk.lengths))
        both = np.concatenate((keys, here))
        keys, places = np.unique(both, return_inverse=True)
        shares = np.bincount(places, np.concatenate((shares, gained))).astype(np.float64)
        if len(keys) > _MOST_KEYS:
            kept = np.sort(np.argpartition(shares, -_MOST_KEYS)[-_MOST_KEYS:])
            keys, shares = keys[kept], shares[kept]
    return keys, shares


def _next_shares(text: _Text, sizes: tuple[int, int], keys: Numbers, likely: Floats) -> Floats:
    """What every pair of tokens has, where a source's tokens are as likely as they were found to be."""
    shares = np.zeros(len(keys))
    for chunk in _chunks(text, sizes):
        places = np.minimum(np.searchsorted(keys, chunk.keys), len(keys) - 1)
        p = np.where(keys[places] == chunk.keys, likely[places], 0.0)
        sums = np.add.reduceat(p, chunk.begins)
        p /= np.repeat(np.maximum(sums, np.finfo(np.float64).tiny), chunk.lengths)
        shares += np.bincount(places, p, minlength=len(keys))
    return shares


def _given_source(keys: Numbers, shares: Floats, sizes: tuple[int, int]) -> Floats:
    """Shares as p(target | source)."""
    sources = keys // sizes[1]
    totals = np.bincount(sources, shares, minlength=sizes[0])
    likely: Floats = shares / np.maximum(totals, np.finfo(np.float64).tiny)[sources]
    return likely


def _likeliest(keys: Numbers, likely: Floats, sizes: tuple[int, int], count: int) -> NDArray[np.int32]:
    sources = keys // sizes[1]
    order = np.lexsort((-likely, sources))
    firsts = np.searchsorted(sources, np.arange(sizes[0]))
    places = np.arange(len(keys)) - firsts[sources]  # sorted by source, so that ranks count from each one's first
    table = np.full((sizes[0], count), -1, np.int32)
    kept = places < count
    table[sources[kept], places[kept]] = (keys[order] % sizes[1])[kept]
    return table
