"""Constrained decoding of trees: only symbols that can lead to a well-formed tree over exactly n words are allowed.

Symbols are those of `data.trees.TreeVocabulary`: ids that open a constituent, one that closes it, and ids of leaves.
After t symbols let d be the number of open brackets, w the number of words left and r the number of opening brackets at
the very end. Then

    an opening bracket is allowed   if w > 0, r < max_chain and t + w + d + 3 ≤ max_length;
    the closing bracket             if r = 0, and d > 1 or d = 1 and w = 0;
    a leaf                          if d > 0 and w > 0;
    EOS                             if d = 0 and t > 0;

and nothing else. Every output is then a tree over n words: the root closes only if w = 0, so nothing can open after it.
And every such tree (with at most `max_chain` opening brackets in a row, and no longer than the maximum length) can be
generated: each line excludes only what no continuation can repair.

The maximum length includes EOS. From d > 0 the shortest way to finish is w leaves, d closing brackets and EOS:
t + w + d + 1 symbols in all. A leaf and a closing bracket leave that sum unchanged, an opening bracket adds 2, so the
first line keeps it at or below the maximum. At the start one opening bracket must fit: n + 3 symbols,
(X leaf … leaf ) EOS, which is the smallest possible maximum length. From there on some symbol is always allowed: if
w > 0, a leaf; if w = 0, the last symbol was a leaf or a closing bracket, because opening brackets need w > 0, so the
closing bracket is allowed; and if d = 0, EOS.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.data.trees.linearization import TreeVocabulary
from regard.decode.strategy import GeneratedTokens, LogitsProcessor
from regard.errors import UserError

MAX_CHAIN = 6
"""The default `max_chain`: of 17,000 treebank trees, 5 open more constituents in a row."""
_UNCONSTRAINED = -1
_OPEN, _CLOSE, _LEAF, _EOS, _EXCLUDED = range(5)


@dataclass(frozen=True)
class TreeConstraint:
    """The output is a tree over `words` words. Ids from `first` to `close` - 1 open, those after `close` are leaves."""

    words: int
    first: int
    close: int
    size: int
    """Ids from here on never occur."""
    max_chain: int = MAX_CHAIN
    """The maximum number of opening brackets in a row."""

    def __post_init__(self) -> None:
        if self.words < 1:
            raise UserError(f"A tree has at least one word; found {self.words}.")
        if self.max_chain < 1:
            raise UserError(f"A tree opens at least one constituent in a row; found max_chain = {self.max_chain}.")
        if not 0 <= self.first < self.close < self.size - 1:
            raise UserError(
                f"The symbol ids {self.first} ≤ opening < {self.close} < leaf < {self.size} leave no id for opening "
                "brackets or for leaves; each needs at least one."
            )

    @classmethod
    def over(cls, words: int, symbols: TreeVocabulary, max_chain: int = MAX_CHAIN) -> "TreeConstraint":
        """A tree over `words` words in these symbols."""
        return cls(words, symbols.open_ids.start, symbols.close_id, len(symbols), max_chain)

    @property
    def batch_key(self) -> tuple[int, ...]:
        """Trees with the same key can be decoded in one batch."""
        return self.first, self.close, self.size

    @property
    def min_length(self) -> int:
        """The fewest symbols of such a tree, EOS included."""
        return self.words + 3

    @property
    def max_length(self) -> int:
        """The most symbols of such a tree, EOS included: the longest chain of opening brackets before every word."""
        return self.words * (1 + 2 * self.max_chain) + 1

    def check_max_length(self, max_length: int) -> None:
        if max_length < self.min_length:
            raise UserError(
                f"A tree over {self.words} words needs at least {self.min_length} symbols, EOS included, but the "
                f"output may have at most {max_length}; allow a longer output."
            )


class TreeProcessor(LogitsProcessor):
    """Every output is a tree, except in slots without a constraint. All constraints use the same symbols."""

    slot_tensors = ("words", "max_lengths", "max_chains")

    def __init__(
        self,
        constraints: Sequence[TreeConstraint | None],
        max_lengths: Sequence[int],
        eos: int,
        device: torch.device | str = "cpu",
    ) -> None:
        keys = {tree.batch_key for tree in constraints if tree is not None}
        if len(keys) != 1:
            raise UserError(f"Trees of one batch must use the same symbols; found {len(keys)} different sets.")
        for tree, max_length in zip(constraints, max_lengths, strict=True):
            if tree is not None:
                tree.check_max_length(max_length)
        ((self.first, self.close, self.size),) = keys
        if not 0 <= eos < self.first:
            raise UserError(f"The id of EOS, {eos}, must be smaller than that of the first tree symbol, {self.first}.")
        self.eos = eos
        self.key: Hashable = ("tree", eos, *keys)
        words = [_UNCONSTRAINED if tree is None else tree.words for tree in constraints]
        chains = [MAX_CHAIN if tree is None else tree.max_chain for tree in constraints]
        self.words = torch.tensor(words, device=device)
        self.max_chains = torch.tensor(chains, device=device)
        self.max_lengths = torch.tensor(list(max_lengths), device=device)
        kinds = [
            _OPEN if token < self.close else _CLOSE if token == self.close else _LEAF for token in range(self.size)
        ]
        kinds[: self.first] = [_EXCLUDED] * self.first
        kinds[eos] = _EOS
        self.kinds = torch.tensor(kinds, device=device)
        """The kind of each token."""

    def __call__(self, logits: Tensor, generated: GeneratedTokens) -> Tensor:
        beam_size = logits.shape[0] // self.words.shape[0]
        by_slot = (self.words, self.max_lengths, self.max_chains)
        words, max_lengths, max_chains = (each.repeat_interleave(beam_size) for each in by_slot)
        lengths = generated.lengths
        position = torch.arange(1, generated.tokens.shape[1] + 1, device=logits.device)
        tokens = torch.where(position <= lengths[:, None], generated.tokens, self.eos)  # (rows, capacity)
        is_open = (tokens >= self.first) & (tokens < self.close)
        is_close = tokens == self.close
        is_leaf = (tokens > self.close) & (tokens < self.size)
        depth = is_open.sum(dim=1) - is_close.sum(dim=1)  # (rows,)
        words_left = words - is_leaf.sum(dim=1)
        chain = lengths - (position * (is_close | is_leaf)).amax(dim=1)  # opening brackets at the very end
        started, inside, more_words = lengths > 0, depth > 0, words_left > 0
        may_open = more_words & (chain < max_chains) & (lengths + words_left + depth + 3 <= max_lengths)
        may_close = (chain == 0) & ((depth > 1) | (inside & ~more_words))
        unconstrained = words == _UNCONSTRAINED
        by_kind = torch.stack((may_open, may_close, inside & more_words, started & ~inside, unconstrained), dim=1)
        allowed = by_kind.index_select(1, self.kinds) | unconstrained[:, None]
        if logits.shape[1] > self.size:  # a vocabulary padded for speed
            padding = unconstrained[:, None].expand(-1, logits.shape[1] - self.size)
            allowed = torch.cat((allowed, padding), dim=1)
        return logits.masked_fill(~allowed, float("-inf"))
