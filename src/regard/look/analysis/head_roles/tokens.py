"""Which tokens a head attends to: its neighbors, the first token, the end token, the same token, punctuation.

Clark et al. 2019 ("What Does BERT Look At?", §3) and Voita et al. 2019 ("Analyzing Multi-Head Self-Attention", §4)
measure the same of BERT and of translators.
"""

import unicodedata
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.look.schema import AttentionType, Token


class TokenMeasure(NamedTuple):
    """Attention to tokens of some kind."""

    label: str
    tag: str
    description: str
    """What is counted."""
    is_relative: bool = False
    """Whether it is attention at a fixed distance itself."""


TOKEN_MEASURES = {
    "previous": TokenMeasure("previous token", "prev", "The token before the query.", True),
    "next": TokenMeasure("next token", "next", "The token after the query.", True),
    "current": TokenMeasure("current token", "self", "The query’s own token.", True),
    "first": TokenMeasure("first token", "first", "The first token of the sequence, from all other tokens."),
    "end": TokenMeasure(
        "end token",
        "end",
        "The token that ends the sequence, ⟨eos⟩ or ⟨sep⟩, from all other tokens. Heads often attend to it when they "
        "have nothing else to do (an attention sink).",
    ),
    "same": TokenMeasure(
        "same token elsewhere", "same", "Another occurrence of the query’s token, where there is one."
    ),
    "punctuation": TokenMeasure("punctuation", "punct", "Punctuation marks other than the query itself."),
}
"""By name, in the order in which they are listed."""


def wanted_keys(
    attention_type: AttentionType, queries: int, keys: Sequence[Token], end_ids: Collection[int], has_text: bool
) -> dict[str, Tensor]:
    """For each measure, which keys count for which query.  # (queries, keys)

    has_text: whether the keys are tokens of a text, which may be punctuation, and not symbols of a tree.
    """
    position, key = torch.arange(queries)[:, None], torch.arange(len(keys))
    is_end = torch.tensor([token.id in end_ids for token in keys])
    is_mark = torch.tensor([has_text and is_punctuation(token) for token in keys])
    if attention_type == "cross":
        anywhere = torch.ones(queries, 1, dtype=torch.bool)
        return {"first": anywhere & (key == 0), "end": anywhere & is_end, "punctuation": anywhere & is_mark}
    other = key != position
    ids = torch.tensor([token.id for token in keys])
    is_plain = torch.tensor([not token.special for token in keys])
    same = (ids[:queries, None] == ids) & is_plain
    return {
        "previous": key == position - 1,
        "next": key == position + 1,
        "current": key == position,
        "first": other & (key == 0),
        "end": other & is_end,
        "same": other & same,
        "punctuation": other & is_mark,
    }


def is_punctuation(token: Token) -> bool:
    """Whether a token consists of punctuation marks only."""
    text = token.text.strip()
    return not token.special and text != "" and all(unicodedata.category(sign).startswith("P") for sign in text)
