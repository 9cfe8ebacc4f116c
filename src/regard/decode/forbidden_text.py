"""Forbidden text: strings that no output contains, whatever tokens they would be made of.

A string can be cut into tokens in many ways, and be part of longer tokens. So the text of an output is read by an
automaton for all strings at once (Aho & Corasick 1975). Its state is the longest end of the text that is the beginning
of a forbidden string; a token is excluded if its bytes would complete one. What each token does in each state is
computed once, so that a step is a lookup.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.decode.strategy import GeneratedTokens, LogitsProcessor
from regard.errors import UserError


@dataclass(frozen=True)
class ForbiddenText:
    """Strings that no output contains, as bytes, and the bytes that each token adds to a text."""

    strings: tuple[bytes, ...]
    vocabulary: Hashable
    """Identifies the tokens."""
    pieces: tuple[bytes, ...] = field(compare=False, repr=False)

    def __post_init__(self) -> None:
        if not all(self.strings):
            raise UserError("A forbidden word is empty; leave it out.")

    def for_tokens(self, tokens: tuple[int, ...]) -> "ForbiddenText":
        """The same for a vocabulary of some of the tokens, in this order."""
        pieces = tuple(self.pieces[token] if token < len(self.pieces) else b"" for token in tokens)
        return replace(self, vocabulary=(self.vocabulary, tokens), pieces=pieces)

    @cached_property
    def states(self) -> list[bytes]:
        """What a text may end with that begins a forbidden string; the first is nothing."""
        return sorted({string[:length] for string in self.strings for length in range(len(string))})

    @cached_property
    def tables(self) -> tuple[Tensor, Tensor]:
        """For each state and token: the next state, and whether a string is completed.  # (states, tokens) each"""
        number = {state: index for index, state in enumerate(self.states)}
        ids: dict[bytes, list[int]] = {}
        for token, piece in enumerate(self.pieces):
            ids.setdefault(piece, []).append(token)
        alone = [max((end for end in _ends(piece) if end in number), key=len, default=b"") for piece in self.pieces]
        next_states = torch.tensor([number[end] for end in alone]).repeat(len(number), 1)
        contains = [self._is_in(piece) for piece in self.pieces]
        completes = torch.tensor(contains).repeat(len(number), 1)
        for state, row in number.items():
            begun = [end for end in _ends(state) if end in number]
            for end in reversed(begun):  # shorter ends first, so that the longest match is the last
                for longer in self.states:
                    if longer.startswith(end) and (found := ids.get(longer[len(end) :])):
                        longest = next_states[row, found[0]]
                        if len(longer) > len(self.states[int(longest)]):
                            next_states[row, found] = number[longer]
            rest = tuple(string[len(end) :] for end in begun for string in self.strings if string.startswith(end))
            if rest:
                completes[row] |= torch.tensor([piece.startswith(rest) for piece in self.pieces])
            if b"" in ids:
                next_states[row, ids[b""]] = row
        return next_states, completes

    def first_in(self, tokens: Sequence[int]) -> tuple[int, ...] | None:
        """The tokens that contain the first forbidden string of an output; None if it contains none."""
        text = b""
        for end, token in enumerate(tokens, start=1):
            text += self.pieces[token]
            if self._is_in(text):
                starts = range(end - 1, -1, -1)
                parts = (tuple(tokens[start:end]) for start in starts)
                return next(part for part in parts if self._is_in(b"".join(self.pieces[each] for each in part)))
        return None

    def _is_in(self, text: bytes) -> bool:
        return any(string in text for string in self.strings)


class ForbiddenTextProcessor(LogitsProcessor):
    """No output contains any of the strings, the same for all slots."""

    def __init__(self, forbidden: ForbiddenText, device: torch.device | str = "cpu") -> None:
        next_states, completes = forbidden.tables
        self.next_states, self.completes = next_states.to(device), completes.to(device)
        self.window = max(map(len, forbidden.strings))
        """The number of last tokens that determine the state: each adds at least one byte."""
        self.key: Hashable = ("forbidden text", forbidden)

    def __call__(self, logits: Tensor, generated: GeneratedTokens) -> Tensor:
        lengths, width = generated.lengths, self.completes.shape[1]
        state = torch.zeros_like(lengths)
        for back in range(self.window, 0, -1):
            position = lengths - back
            token = generated.tokens.gather(1, position.clamp(min=0)[:, None])[:, 0].clamp(0, width - 1)
            state = torch.where(position >= 0, self.next_states[state, token], state)
        excluded = self.completes[state]  # (rows, tokens)
        if logits.shape[1] != width:  # a model may have more tokens than the tokenizer, for speed
            excluded = pad(excluded, (0, logits.shape[1] - width))
        return logits.masked_fill(excluded, float("-inf"))


def _ends(text: bytes) -> Sequence[bytes]:
    """The ends of a text, the longest first, without the empty one."""
    return [text[start:] for start in range(len(text))]
