"""What an output may and must contain, as rules over the scores of the next token.

A rule hides tokens by setting their scores to -inf. It never changes the log-probability of what remains: that stays
the model's own.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from regard.decode.slots import keep_slots, put_slots
from regard.errors import UserError

_NEVER = float("-inf")


class Written(NamedTuple):
    """What every row has written so far."""

    tokens: Tensor  # (rows, capacity): the first `lengths` of each row count
    lengths: Tensor  # (rows,)


class Rule(Protocol):
    fields: tuple[str, ...]
    """The names of its tensors that have a place for each slot."""

    key: Hashable
    """Rules alike in this, and in the shapes of their tensors, hide in the same way."""

    def hide(self, scores: Tensor, written: Written) -> Tensor:
        """The scores with -inf where a token may not come next.  scores: # (rows, vocabulary)"""
        ...

    def keep(self, slots: Tensor) -> None:
        """Go on with these slots only."""
        ...

    def put(self, slots: Tensor, other: Self) -> None:
        """Let these slots be those of another rule of this kind; slots past the last are added."""
        ...


class Prefix:
    """Every output begins with given tokens, one list a slot."""

    fields: tuple[str, ...] = ("tokens", "lengths")
    key: Hashable = "prefix"

    def __init__(self, prefixes: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> None:
        longest = max((len(prefix) for prefix in prefixes), default=0)
        rows = [[*prefix, *[0] * (longest - len(prefix))] for prefix in prefixes]
        self.tokens = torch.tensor(rows, dtype=torch.long, device=device).view(len(prefixes), longest)
        self.lengths = torch.tensor([len(prefix) for prefix in prefixes], device=device)

    def hide(self, scores: Tensor, written: Written) -> Tensor:
        if self.tokens.shape[1] == 0:
            return scores
        width = scores.shape[0] // self.tokens.shape[0]
        at = written.lengths.clamp(max=self.tokens.shape[1] - 1)[:, None]
        forced = self.tokens.repeat_interleave(width, dim=0).gather(1, at)  # (rows, 1)
        free = (written.lengths >= self.lengths.repeat_interleave(width))[:, None]
        only = torch.full_like(scores, _NEVER).scatter(1, forced, scores.gather(1, forced))
        return torch.where(free, scores, only)

    def keep(self, slots: Tensor) -> None:
        keep_slots(self, self.fields, slots)

    def put(self, slots: Tensor, other: Self) -> None:
        put_slots(self, self.fields, slots, other)


class Forbidden:
    """No output contains one of these token sequences."""

    fields: tuple[str, ...] = ()

    def __init__(self, sequences: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> None:
        if any(len(sequence) == 0 for sequence in sequences):
            raise UserError("A forbidden word has no tokens; leave it out.")
        self.single = torch.tensor(sorted({one[0] for one in sequences if len(one) == 1}), device=device).long()
        self.key: Hashable = ("forbidden", *sorted({tuple(one) for one in sequences}))
        longer = sorted({tuple(one) for one in sequences if len(one) > 1})
        self.longer = [(torch.tensor(one[:-1], device=device), one[-1]) for one in longer]

    def hide(self, scores: Tensor, written: Written) -> Tensor:
        if self.single.numel():
            scores = scores.index_fill(1, self.single, _NEVER)
        for begin, last in self.longer:
            count = begin.shape[0]
            at = written.lengths[:, None] - count + torch.arange(count, device=begin.device)  # (rows, count)
            matches = (written.tokens.gather(1, at.clamp(min=0)) == begin).all(dim=1) & (at[:, 0] >= 0)
            hidden = torch.zeros_like(scores, dtype=torch.bool)
            hidden[:, last] = matches
            scores = scores.masked_fill(hidden, _NEVER)
        return scores

    def keep(self, slots: Tensor) -> None:
        """Every slot has the same."""

    def put(self, slots: Tensor, other: Self) -> None:
        """Every slot has the same."""


class Shortest:
    """No output ends before it has so many tokens, one number a slot."""

    fields: tuple[str, ...] = ("counts",)

    def __init__(self, counts: Sequence[int], end: int, device: torch.device | str = "cpu") -> None:
        self.counts, self.end = torch.tensor(list(counts), device=device), end
        self.key: Hashable = ("shortest", end)

    def hide(self, scores: Tensor, written: Written) -> Tensor:
        width = scores.shape[0] // self.counts.shape[0]
        early = written.lengths < self.counts.repeat_interleave(width)  # (rows,)
        hidden = torch.zeros_like(scores, dtype=torch.bool)
        hidden[:, self.end] = early
        return scores.masked_fill(hidden, _NEVER)

    def keep(self, slots: Tensor) -> None:
        keep_slots(self, self.fields, slots)

    def put(self, slots: Tensor, other: Self) -> None:
        put_slots(self, self.fields, slots, other)


def hide_all(rules: Sequence[Rule], scores: Tensor, written: Written) -> Tensor:
    for rule in rules:
        scores = rule.hide(scores, written)
    return scores


def put_rules(mine: Sequence[Rule], theirs: Sequence[Rule], slots: Tensor) -> None:
    for old, new in zip(mine, theirs, strict=True):
        old.put(slots, new)
