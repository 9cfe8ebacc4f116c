"""The output is a tree: every symbol is hidden that could not lead to one well-formed tree over exactly n words.

Symbols are those of `data.trees.TreeSymbols`: ids that open a constituent, one that closes, ids that are leaves. After
t symbols let d be the brackets open, w the words left and r the opens at the very end. Then

    an open may come   if w > 0, r < chain and t + w + d + 3 ≤ limit;
    the close          if r = 0, and d > 1 or d = 1 and w = 0;
    a leaf             if d > 0 and w > 0;
    the end            if d = 0 and t > 0;

and nothing else ever. What is written so is a tree over n words: the root closes only where w = 0, so nothing opens
behind it. And every such tree (with at most `chain` opens in a row, and no longer than the limit) can be written: each
line forbids only what no ending can repair.

The limit counts the end. From d > 0 the shortest way to finish is w leaves, d closes and the end: t + w + d + 1 symbols
in all. A leaf and a close leave that sum as it is, an open adds 2, so the first line keeps it at or below the limit.
At the start one open must fit: n + 3 symbols, (X leaf … leaf ) end, which is the smallest limit. From there on there is
always a way: w > 0 allows a leaf; w = 0 means that the last symbol was a leaf or a close, as opens need w > 0, so the
close is allowed; and d = 0 allows the end.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from regard.data.trees import TreeSymbols
from regard.decode.rules import Written
from regard.decode.slots import keep_slots, put_slots
from regard.errors import UserError

CHAIN = 6
"""Of 17,000 trees at hand 5 open more constituents in a row."""
_FREE = -1
_OPEN, _CLOSE, _LEAF, _END, _NEVER = range(5)


@dataclass(frozen=True)
class TreeWish:
    """The output is a tree over so many words. Ids from `first` up to `close` open, those behind it are leaves."""

    words: int
    first: int
    close: int
    size: int
    """Ids from here on never come."""
    chain: int = CHAIN
    """The most constituents that open one right after another."""

    def __post_init__(self) -> None:
        if self.words < 1:
            raise UserError(f"A tree stands over at least one word; found {self.words}.")
        if self.chain < 1:
            raise UserError(f"A tree opens at least one constituent in a row; found {self.chain}.")
        if not 0 <= self.first < self.close < self.size - 1:
            raise UserError(
                f"Ids from {self.first} up to {self.close} cannot open constituents and those up to {self.size} be "
                "leaves; each needs at least one."
            )

    @classmethod
    def over(cls, words: int, symbols: TreeSymbols, chain: int = CHAIN) -> "TreeWish":
        """A tree over so many words in these symbols."""
        return cls(words, symbols.opens.start, symbols.close, len(symbols), chain)

    @property
    def lane(self) -> tuple[int, ...]:
        """Trees that agree in this can be searched for side by side."""
        return self.first, self.close, self.size

    @property
    def smallest_limit(self) -> int:
        """The fewest symbols of such a tree, the end included."""
        return self.words + 3

    @property
    def largest_limit(self) -> int:
        """The most symbols of such a tree, the end included: before each word as many opens as may be."""
        return self.words * (1 + 2 * self.chain) + 1

    def check_limit(self, limit: int) -> None:
        if limit < self.smallest_limit:
            raise UserError(
                f"A tree over {self.words} words needs at least {self.smallest_limit} symbols, its end included, and "
                f"the output may have {limit}; allow a longer output."
            )


class TreeRule:
    """Every output is a tree, or free where its slot has no wish for one. All wishes are in the same symbols."""

    fields: tuple[str, ...] = ("words", "limits", "chains")

    def __init__(
        self,
        wishes: Sequence[TreeWish | None],
        limits: Sequence[int],
        end: int,
        device: torch.device | str = "cpu",
    ) -> None:
        lanes = {wish.lane for wish in wishes if wish is not None}
        if len(lanes) != 1:
            raise UserError(f"Trees searched for together are written in the same symbols; found {len(lanes)} kinds.")
        for wish, limit in zip(wishes, limits, strict=True):
            if wish is not None:
                wish.check_limit(limit)
        ((self.first, self.close, self.size),) = lanes
        if not 0 <= end < self.first:
            raise UserError(f"The end, {end}, must come before the first symbol of trees, {self.first}.")
        self.end = end
        self.key: Hashable = ("tree", end, *lanes)
        self.words = torch.tensor([_FREE if wish is None else wish.words for wish in wishes], device=device)
        self.chains = torch.tensor([CHAIN if wish is None else wish.chain for wish in wishes], device=device)
        self.limits = torch.tensor(list(limits), device=device)
        kinds = [
            _OPEN if token < self.close else _CLOSE if token == self.close else _LEAF for token in range(self.size)
        ]
        kinds[: self.first] = [_NEVER] * self.first
        kinds[end] = _END
        self.kinds = torch.tensor(kinds, device=device)
        """What each token is."""

    def hide(self, scores: Tensor, written: Written) -> Tensor:
        width = scores.shape[0] // self.words.shape[0]
        words, limits, chains = (each.repeat_interleave(width) for each in (self.words, self.limits, self.chains))
        length = written.lengths
        place = torch.arange(1, written.tokens.shape[1] + 1, device=scores.device)
        token = torch.where(place <= length[:, None], written.tokens, self.end)  # (rows, capacity)
        opens = (token >= self.first) & (token < self.close)
        closes = token == self.close
        leaves = (token > self.close) & (token < self.size)
        depth = opens.sum(dim=1) - closes.sum(dim=1)  # (rows,)
        left = words - leaves.sum(dim=1)
        run = length - (place * (closes | leaves)).amax(dim=1)  # opens at the very end
        begun, inside, more = length > 0, depth > 0, left > 0
        may_open = more & (run < chains) & (length + left + depth + 3 <= limits)
        may_close = (run == 0) & ((depth > 1) | (inside & ~more))
        free = words == _FREE
        may = torch.stack((may_open, may_close, inside & more, begun & ~inside, free), dim=1)
        allowed = may.index_select(1, self.kinds) | free[:, None]
        if scores.shape[1] > self.size:  # a vocabulary made larger for speed
            allowed = torch.cat((allowed, free[:, None].expand(-1, scores.shape[1] - self.size)), dim=1)
        return scores.masked_fill(~allowed, float("-inf"))

    def keep(self, slots: Tensor) -> None:
        keep_slots(self, self.fields, slots)

    def put(self, slots: Tensor, other: Self) -> None:
        put_slots(self, self.fields, slots, other)
