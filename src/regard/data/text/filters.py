"""Corpus filtering: dropping bad sentence pairs, and counting why.

A filter is a list of checks in a fixed order. A pair is dropped by the first check that rejects it, so every dropped
pair has one reason and the counts add up to the total.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pydantic import Field

from regard.config import Config
from regard.data.text.pairs import Pair

Reason = Literal["empty", "characters", "words", "ratio", "identical", "duplicate"]


class FilterConfig(Config):
    """Which pairs to drop; by default only those with an empty side. A limit that is not set does not apply."""

    drop_empty: bool = True
    """Drop pairs with a side of nothing but white space."""
    max_characters: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """The most characters a side may have."""
    max_words: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """The most words, separated by white space, a side may have."""
    max_length_ratio: float | None = Field(default=None, ge=1, le=1e6)
    """The largest ratio of the longer side's characters to the shorter side's."""
    drop_identical: bool = False
    """Drop pairs whose sides are identical except for surrounding white space."""
    drop_duplicates: bool = False
    """Drop exact duplicates of pairs that were kept before."""


class Example(NamedTuple):
    """The first pair dropped for a reason. `number` is its position in the input, counted from 1."""

    number: int
    pair: Pair


@dataclass
class FilterStats:
    """Counts of the pairs kept and dropped. `dropped` has every reason that the filter checks, in order."""

    total: int = 0
    kept: int = 0
    dropped: dict[Reason, int] = field(default_factory=dict)
    examples: dict[Reason, Example] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.kept:,} of {self.total:,} pairs kept"]
        for reason, count in self.dropped.items():
            line = f"  {count:,} dropped: {_DESCRIPTIONS[reason]}"
            if reason in self.examples:
                number, pair = self.examples[reason]
                line += f", first pair {number:,}: {_shorten(pair.source)} | {_shorten(pair.target)}"
            lines.append(line)
        return "\n".join(lines)


class Filter:
    """Drops pairs according to its config. `stats` describes the latest `apply`, also while it is running.

    Only duplicate detection needs growing memory: a set with a 16-byte digest of each kept pair, up to 125 bytes per
    pair in Python, so 12 GB for a hundred million. The probability that two different pairs among a billion have the
    same digest is below 10⁻²⁰.
    """

    def __init__(self, config: FilterConfig) -> None:
        self.config = config
        self.stats = self._empty_stats()

    def apply(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """The pairs that are kept, in order. Each call starts from scratch and forgets earlier duplicates."""
        self.stats = self._empty_stats()
        return _filter(pairs, _checks(self.config), self.stats)

    def _empty_stats(self) -> FilterStats:
        return FilterStats(dropped={reason: 0 for reason, _ in _checks(self.config)})


_Check = tuple[Reason, Callable[[Pair], bool]]  # the reason, and whether it applies to a pair

_DESCRIPTIONS: dict[Reason, str] = {
    "empty": "a side is empty",
    "characters": "too many characters",
    "words": "too many words",
    "ratio": "length ratio too large",
    "identical": "both sides identical",
    "duplicate": "duplicates",
}


def _filter(pairs: Iterable[Pair], checks: list[_Check], stats: FilterStats) -> Iterator[Pair]:
    for pair in pairs:
        stats.total += 1
        reason = next((reason for reason, rejects in checks if rejects(pair)), None)
        if reason is None:
            stats.kept += 1
            yield pair
        else:
            stats.dropped[reason] += 1
            stats.examples.setdefault(reason, Example(stats.total, pair))


def _checks(config: FilterConfig) -> list[_Check]:
    """Cheap checks first; duplicates last, so that only kept pairs are remembered."""
    checks: list[_Check] = []
    if config.drop_empty:
        checks.append(("empty", lambda pair: not (pair.source.strip() and pair.target.strip())))
    if (characters := config.max_characters) is not None:
        checks.append(("characters", lambda pair: max(map(len, pair)) > characters))
    if (words := config.max_words) is not None:
        checks.append(("words", lambda pair: max(len(side.split()) for side in pair) > words))
    if (ratio := config.max_length_ratio) is not None:
        checks.append(("ratio", lambda pair: max(map(len, pair)) > ratio * min(map(len, pair))))
    if config.drop_identical:
        checks.append(("identical", lambda pair: pair.source.strip() == pair.target.strip()))
    if config.drop_duplicates:
        checks.append(("duplicate", _IsDuplicate()))
    return checks


class _IsDuplicate:
    """Whether a pair occurred before. It remembers digests, not the pairs."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()

    def __call__(self, pair: Pair) -> bool:
        source, target = (side.encode("utf-8", "surrogatepass") for side in pair)
        # The length distinguishes ("ab", "c") from ("a", "bc").
        digest = hashlib.blake2b(b"%d:%b%b" % (len(source), source, target), digest_size=16).digest()
        if digest in self._digests:
            return True
        self._digests.add(digest)
        return False


def _shorten(text: str, width: int = 60) -> str:
    text = " ".join(text[: 4 * width].split())
    return repr(text if len(text) <= width else text[: width - 1] + "…")
