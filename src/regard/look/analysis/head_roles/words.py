"""Words of token sequences: attention between tokens merged into attention between words.

A query word is the mean of its tokens, a key word their sum. So each row still adds up to 1, with the attention to
tokens outside of words (⟨eos⟩ and others).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.look.models.detokenizer import WORD
from regard.look.schema import Token


class Word(NamedTuple):
    """A word and the positions of its tokens."""

    text: str
    positions: list[int]


def words_of(tokens: Sequence[Token]) -> list[Word]:
    """The words that tokens belong to, in order."""
    words: list[Word] = []
    last = -1
    for position, token in enumerate(tokens):
        if token.word >= 0 and token.word == last:
            words[-1] = Word(words[-1].text + token.text, [*words[-1].positions, position])
        elif token.word >= 0:
            words.append(Word(token.text, [position]))
        last = token.word
    return words


def split_words(text: str) -> list[str]:
    """The words of a text, as tokens are assigned to them."""
    return WORD.findall(text)


def merge_words(
    weights: Tensor, queries: Sequence[Sequence[int]], keys: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor]:
    """Attention between words, and the largest weight on a single token outside of words.

    weights: # (heads, queries, keys); gives (heads, query words, key words) and (heads, query words)
    """
    rows = torch.stack([weights[:, list(positions)].mean(dim=1) for positions in queries], dim=1)
    merged = torch.stack([rows[..., list(positions)].sum(dim=-1) for positions in keys], dim=-1)
    in_words = {position for positions in keys for position in positions}
    others = [position for position in range(weights.shape[-1]) if position not in in_words]
    outside = rows[..., others].amax(dim=-1) if others else torch.zeros(rows.shape[:2])
    return merged, outside
