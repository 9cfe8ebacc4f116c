"""Outputs that contain given words, wherever they fit best.

Grid beam search in its form with a fixed number of beams (Hokamp & Liu 2017; Post & Vilar 2018): besides what the model
likes best, every hypothesis is also continued with each token that brings a required word forward. The places are
shared out among hypotheses by how far they have come, so that those which have put up with an unlikely word are not at
once driven out by those that have not. None may end before it has all its words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Self

import torch
from torch import Tensor

from regard.decode.beam import Beams, Texts
from regard.decode.penalty import LengthPenalty
from regard.decode.rules import Rule, hide_all
from regard.errors import UserError

_NEVER = float("-inf")
_FEW = 20_000
Words = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Progress:
    """How far every word has come: how many of its tokens stand at the end of the text, all once it was there."""

    words: Words
    counts: tuple[int, ...]

    @classmethod
    def of(cls, words: Sequence[Sequence[int]]) -> "Progress":
        return cls(tuple(map(tuple, words)), (0,) * len(words))

    @property
    def done(self) -> int:
        """Tokens of required words written."""
        return sum(self.counts)

    @property
    def left(self) -> int:
        """The fewest tokens that bring all words to their end; words may share some."""
        return _fewest(self.words, self.counts)

    def wanted(self) -> set[int]:
        """The tokens that bring a word forward."""
        pairs = zip(self.words, self.counts, strict=True)
        return {tokens[count] for tokens, count in pairs if count < len(tokens)}

    def after(self, token: int) -> "Progress":
        return Progress(self.words, _after(self.words, self.counts, token))


@lru_cache(maxsize=1 << 16)
def _after(words: Words, counts: tuple[int, ...], token: int) -> tuple[int, ...]:
    return tuple(_count_after(word, count, token) for word, count in zip(words, counts, strict=True))


def _count_after(word: tuple[int, ...], count: int, token: int) -> int:
    """How much of the word's beginning a text ends with, one token later."""
    if count == len(word):
        return count
    text = (*word[:count], token)
    return next(length for length in range(count + 1, -1, -1) if word[:length] == text[len(text) - length :])


@lru_cache(maxsize=1 << 12)
def _fewest(words: Words, counts: tuple[int, ...]) -> int:
    """Breadth first over what the words can still become, where that is not too much; else as if they shared none."""
    if prod(len(word) + 1 for word in words) > _FEW:
        return sum(map(len, words)) - sum(counts)
    whole = tuple(map(len, words))
    tokens = {token for word in words for token in word}
    seen, border, steps = {counts}, [counts], 0
    while whole not in seen:
        border = [later for here in border for token in tokens if (later := _after(words, here, token)) not in seen]
        seen.update(border)
        border, steps = list(dict.fromkeys(border)), steps + 1
    return steps


class Required(Beams):
    """Beam search in which the outputs of slot i contain every token sequence of `words[i]`."""

    def __init__(
        self,
        limits: Sequence[int],
        end: int,
        beams: int,
        words: Sequence[Sequence[Sequence[int]]],
        *,
        penalty: LengthPenalty | None = None,
        rules: Sequence[Rule] = (),
        alternatives: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(limits, end, beams, penalty=penalty, rules=rules, alternatives=alternatives, device=device)
        if len(words) != self.slots:
            raise UserError(
                f"There are required words for {len(words)} rows, and {self.slots} rows; give each its own."
            )
        for limit, wanted in zip(limits, words, strict=True):
            if any(not word for word in wanted):
                raise UserError("A required word has no tokens; leave it out.")
            if (total := Progress.of(wanted).left) >= limit:
                raise UserError(
                    f"The required words have {total} tokens and the output at most {limit}, its end included; "
                    "allow a longer output or require less."
                )
        self.progress = [[Progress.of(wanted)] * beams for wanted in words]
        self._coming: list[list[Progress]] = []

    def candidates(self, logits: Tensor) -> tuple[Texts, Tensor, Tensor, Tensor]:
        size = logits.shape[1]
        normaliser = logits.logsumexp(dim=-1, keepdim=True)  # (slots · width, 1)
        gains = hide_all(self.rules, logits, self.written()) - normaliser
        totals = (self.alive.totals.view(-1, 1) + gains.double()).view(self.slots, self.width, size)
        chosen = [self._of_slot(slot, totals[slot]) for slot in range(self.slots)]
        count = max(len(pairs) for pairs in chosen) + 1  # the last stands for nothing
        padded = [[*pairs, *[(0, self.end)] * (count - len(pairs))] for pairs in chosen]
        pairs = torch.tensor(padded, device=logits.device)  # (slots, count, 2)
        places, tokens = pairs.unbind(dim=2)
        which = places * size + tokens
        counts = torch.tensor([[len(each)] for each in chosen], device=logits.device)
        real = torch.arange(count, device=logits.device) < counts
        total = totals.flatten(1).gather(1, which).masked_fill(~real, _NEVER)
        gain = gains.view(self.slots, -1).gather(1, which).double()
        self._coming = [
            [self.progress[slot][place].after(token) for place, token in row] for slot, row in enumerate(padded)
        ]
        scores = logits - normaliser if self.count else logits
        return *self.extended(places, tokens, total, gain, scores), total

    def survivors(self, merits: Tensor) -> Tensor:
        kept = [self._shared_out(slot, row) for slot, row in enumerate(merits.tolist())]
        self.progress = [[self._coming[slot][at] for at in row] for slot, row in enumerate(kept)]
        return torch.tensor(kept, device=merits.device)

    def keep(self, slots: Tensor) -> None:
        super().keep(slots)
        self.progress = [self.progress[slot] for slot in slots.tolist()]

    def put(self, slots: Tensor, other: Self) -> None:
        super().put(slots, other)
        self.progress += [[] for _ in range(self.slots - len(self.progress))]
        for slot, progress in zip(slots.tolist(), other.progress, strict=True):
            self.progress[slot] = progress

    def _of_slot(self, slot: int, totals: Tensor) -> list[tuple[int, int]]:
        """(place, token) of what may go on: the best of all, and all that brings a word forward.

        Nothing goes on that could no longer get its words and its end in before the limit.
        """
        size, room = totals.shape[1], int(self.limits[slot] - self.lengths[slot]) - 1
        free = not self.progress[slot][0].words
        best = totals.flatten().topk(min((2 if free else 4) * self.width, totals.numel())).indices.tolist()
        wanted = [
            place * size + token
            for place, each in enumerate(self.progress[slot])
            for token in (each.wanted() or {self.end})
            if not free
        ]
        pairs = []
        for at in dict.fromkeys(best + wanted):
            place, token = at // size, at % size
            before = self.progress[slot][place]
            if float(totals[place, token]) == _NEVER:
                continue
            if not free and (before.left > 0 if token == self.end else before.after(token).left + 1 > room):
                continue
            pairs.append((place, token))
        return pairs

    def _shared_out(self, slot: int, totals: list[float]) -> list[int]:
        """`width` candidates, taken in turn from those that have come equally far, best of each first."""
        banks: dict[int, list[int]] = {}
        for at in sorted(range(len(totals)), key=lambda at: -totals[at]):
            if totals[at] != _NEVER:
                banks.setdefault(self._coming[slot][at].done, []).append(at)
        kept: list[int] = []
        while len(kept) < self.width and any(banks.values()):
            for done in sorted(banks, reverse=True):
                if banks[done] and len(kept) < self.width:
                    kept.append(banks[done].pop(0))
        kept.sort(key=lambda at: -totals[at])
        return kept + [len(totals) - 1] * (self.width - len(kept))
