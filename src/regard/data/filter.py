"""Dropping pairs that would do harm, and saying which and why.

A filter is a list of small checks in a fixed order. A pair is dropped by the first that objects, so every dropped
pair has one reason and the counts add up to the total.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pydantic import Field

from regard.config import Config
from regard.data.pairs import Pair

Reason = Literal["empty", "characters", "words", "ratio", "identical", "duplicate"]


class FilterConfig(Config):
    """Which pairs to drop; as it stands, only those with an empty side. None sets no limit."""

    drop_empty: bool = True
    """Drop a pair with a side of nothing but white space."""
    longest_characters: int | None = Field(default=None, ge=1)
    """The most characters either side may have."""
    longest_words: int | None = Field(default=None, ge=1)
    """The most words, divided by white space, either side may have."""
    largest_ratio: float | None = Field(default=None, ge=1)
    """How many times as many characters the longer side may have as the shorter."""
    drop_identical: bool = False
    """Drop a pair whose sides are the same but for white space around them."""
    drop_duplicates: bool = False
    """Drop a pair that has been kept before, both sides the same to the character."""


class Example(NamedTuple):
    """The first pair dropped for a reason. `number` is its place among the pairs given, from 1."""

    number: int
    pair: Pair


@dataclass
class Report:
    """What a filter did so far. `dropped` has every reason the filter looks for, in its order."""

    total: int = 0
    kept: int = 0
    dropped: dict[Reason, int] = field(default_factory=dict)
    examples: dict[Reason, Example] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.kept:,} of {self.total:,} pairs kept"]
        for reason, count in self.dropped.items():
            line = f"  {count:,} dropped: {_WORDS[reason]}"
            if reason in self.examples:
                number, pair = self.examples[reason]
                line += f", first pair {number:,}: {_shorten(pair.source)} | {_shorten(pair.target)}"
            lines.append(line)
        return "\n".join(lines)


class Filter:
    """Drops pairs as its config says. `report` tells of the latest `apply`, also while that is under way.

    Only the search for duplicates needs memory that grows: a 16-byte digest for each kept pair in a set, up to
    125 bytes a pair as Python stores it, so 12 GB for a hundred million. Two different pairs among a billion share
    a digest with a probability below 10⁻²⁰.
    """

    def __init__(self, config: FilterConfig) -> None:
        self.config = config
        self.report = self._empty_report()

    def apply(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """The pairs that are kept, in their order. Each call starts anew, with no duplicates remembered."""
        self.report = self._empty_report()
        return _sift(pairs, _checks(self.config), self.report)

    def _empty_report(self) -> Report:
        return Report(dropped={reason: 0 for reason, _ in _checks(self.config)})


_Check = tuple[Reason, Callable[[Pair], bool]]  # the reason, and whether it holds for a pair

_WORDS: dict[Reason, str] = {
    "empty": "a side is empty",
    "characters": "too many characters",
    "words": "too many words",
    "ratio": "lengths too different",
    "identical": "both sides identical",
    "duplicate": "seen before",
}


def _sift(pairs: Iterable[Pair], checks: list[_Check], report: Report) -> Iterator[Pair]:
    for pair in pairs:
        report.total += 1
        reason = next((reason for reason, objects in checks if objects(pair)), None)
        if reason is None:
            report.kept += 1
            yield pair
        else:
            report.dropped[reason] += 1
            report.examples.setdefault(reason, Example(report.total, pair))


def _checks(config: FilterConfig) -> list[_Check]:
    """In the order of the table of reasons: cheap before dear, and duplicates last so that only kept pairs count."""
    checks: list[_Check] = []
    if config.drop_empty:
        checks.append(("empty", lambda pair: not (pair.source.strip() and pair.target.strip())))
    if (characters := config.longest_characters) is not None:
        checks.append(("characters", lambda pair: max(map(len, pair)) > characters))
    if (words := config.longest_words) is not None:
        checks.append(("words", lambda pair: max(len(side.split()) for side in pair) > words))
    if (ratio := config.largest_ratio) is not None:
        checks.append(("ratio", lambda pair: max(map(len, pair)) > ratio * min(map(len, pair))))
    if config.drop_identical:
        checks.append(("identical", lambda pair: pair.source.strip() == pair.target.strip()))
    if config.drop_duplicates:
        checks.append(("duplicate", _Seen()))
    return checks


class _Seen:
    """Whether a pair came before. Remembers a digest, not the pair."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()

    def __call__(self, pair: Pair) -> bool:
        source, target = (side.encode("utf-8", "surrogatepass") for side in pair)
        # The length in front keeps ("ab", "c") and ("a", "bc") apart.
        digest = hashlib.blake2b(b"%d:%b%b" % (len(source), source, target), digest_size=16).digest()
        if digest in self._digests:
            return True
        self._digests.add(digest)
        return False


def _shorten(text: str, width: int = 60) -> str:
    text = " ".join(text[: 4 * width].split())
    return repr(text if len(text) <= width else text[: width - 1] + "…")
