"""Attention of recurrent decoders: how well a state matches each token of the source, and the context that follows.

The score of state s and source token h is vᵀ tanh(W s + U h) (additive, Bahdanau et al. 2015), s·h (dot) or sᵀ W h
(general, both Luong et al. 2015). Luong's concat, vᵀ tanh(W [s; h]), is the additive score with W and U side by side.
The context is the average of the source tokens, weighted by the softmax of their scores. There is one head, and nothing
is scaled.

What only depends on the source, its keys, is computed once. The hypotheses of a beam search share their source: they
become queries of the same row instead of copies of its keys.
"""

from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.config import Config
from regard.model.before.base import AlignmentModule
from regard.model.before.state import RecurrentState

ScoreKind = Literal["additive", "dot", "general", "concat"]


class Source(NamedTuple):
    """The encoded source as attention reads it."""

    keys: Tensor  # (sources, keys, key width)
    values: Tensor  # (sources, keys, width)
    padding: Tensor | None  # (sources, 1, keys), None if there is none

    @classmethod
    def of(cls, state: RecurrentState) -> "Source":
        values = state.memory["value"]
        mask = state.memory_mask(values.shape[1])
        return cls(state.memory.get("key", values), values, None if mask is None else ~mask[:, None])


class RecurrentAttention(AlignmentModule):
    """Attention with one head over the encoded source. A kind of attention says what keys and scores are."""

    def keys(self, memory: Tensor) -> Tensor | None:
        """What scores need of the source; None if that is the source itself.  memory: # (sources, keys, width)"""
        raise NotImplementedError

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """query: # (sources, queries, query width); keys: # (sources, keys, key width); gives (…, queries, keys)"""
        raise NotImplementedError

    def memory(self, encoded: Tensor) -> dict[str, Tensor]:
        """What a decoder's state keeps of the source.  encoded: # (sources, keys, width)"""
        keys = self.keys(encoded)
        return {"value": encoded} if keys is None else {"value": encoded, "key": keys}

    def forward(self, query: Tensor, source: Source) -> tuple[Tensor, Tensor]:
        """The context of each query and the weights. Rows of the same source are adjacent.

        query: # (rows, queries, query width); gives (rows, queries, width) and (rows, queries, keys)
        """
        folded = query.reshape(source.values.shape[0], -1, query.shape[-1])  # (sources, rows of one · queries, …)
        scores = self.scores(folded, source.keys)
        if source.padding is not None:
            scores = scores.masked_fill(source.padding, -torch.inf)
        weights = scores.softmax(dim=-1)
        context = torch.bmm(weights, source.values)
        return context.view(*query.shape[:2], -1), weights.view(*query.shape[:2], -1)


class AdditiveAttention(RecurrentAttention):
    """vᵀ tanh(W s + U h): a feed-forward network with one hidden layer."""

    def __init__(self, query_width: int, width: int, hidden: int) -> None:
        super().__init__()
        self.query_proj = nn.Linear(query_width, hidden, bias=False)
        self.key_proj = nn.Linear(width, hidden, bias=False)
        self.score_proj = nn.Linear(hidden, 1, bias=False)
        for each in (self.query_proj, self.key_proj):
            nn.init.xavier_uniform_(each.weight)

    def keys(self, memory: Tensor) -> Tensor:
        keys: Tensor = self.key_proj(memory)
        return keys

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        hidden = (self.query_proj(query)[:, :, None] + keys[:, None]).tanh()  # (sources, queries, keys, hidden)
        scores: Tensor = self.score_proj(hidden)[..., 0]
        return scores


class DotAttention(RecurrentAttention):
    """s·h; both have the same width."""

    def keys(self, memory: Tensor) -> None:
        return None

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        return torch.bmm(query, keys.mT)


class GeneralAttention(RecurrentAttention):
    """sᵀ W h."""

    def __init__(self, query_width: int, width: int) -> None:
        super().__init__()
        self.key_proj = nn.Linear(width, query_width, bias=False)
        nn.init.xavier_uniform_(self.key_proj.weight)

    def keys(self, memory: Tensor) -> Tensor:
        keys: Tensor = self.key_proj(memory)
        return keys

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        return torch.bmm(query, keys.mT)


class RecurrentAttentionConfig(Config):
    """The attention of a recurrent decoder."""

    kind: ScoreKind = "additive"
    """The score of a state and a source token: additive (Bahdanau et al. 2015); dot, general or concat (Luong et al.
    2015). concat is another name for additive."""
    hidden: int | None = Field(default=None, ge=1, le=1_000_000)
    """The width inside an additive score; the width of the state if not given."""

    def build(self, query_width: int, width: int) -> RecurrentAttention:
        """query_width: of the state; width: of the encoded source"""
        if self.kind == "dot":
            return DotAttention()
        if self.kind == "general":
            return GeneralAttention(query_width, width)
        return AdditiveAttention(query_width, width, self.hidden or query_width)
