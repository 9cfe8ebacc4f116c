"""The steps from DNN2 to attention: the words of the source and of the target so far are mixed into a context vector.

DNN2 has weights for each position. Here words, with a learned vector for their position added, are mixed instead:

    F(c) = Σ a(j) · f(x_j)

A feed-forward network computes the next target word from the mixture. What the weights a are is a choice, and each
choice is a small class here:

- `mean`: equal weights. All words are squeezed into one vector, and most of what they say is lost.
- `learned`: a weight for how important a word is, the softmax of a score that is learned.
- `cosine`: what is important differs from word to word, so the context is seen from the perspective of one of them,
  F(c; x_i) = Σ a(i, j) · f(x_j), or Z = A·X for all. A is the softmax of the cosine similarities of embeddings.
- `query_key`: the softmax of dot products of queries and keys, which are linear in the embeddings; with that, this is
  an attention head (Vaswani et al. 2017, §3.2.1) over source and target so far at once.

All four are A = softmax(Q·Kᵀ): without features in Q and K for `mean`, with Q = 1 for `learned`, with unit vectors for
`cosine`. The next word is predicted from the perspective of the newest target word, whose row of A has weights for all
source words and for the target words so far. Training computes the rows of all target words at once.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.attention.context import AttentionHook
from regard.attention.positions.absolute import Learned
from regard.model.before.base import AlignmentModule
from regard.model.before.fixed_window.fixed_length import (
    FixedLengthConfig,
    FixedLengthModel,
    FixedLengthState,
    HiddenLayers,
    positions_after,
)
from regard.model.before.state import RecurrentState
from regard.model.embedding import TokenEmbedding


class ContextConfig(FixedLengthConfig):
    """A feed-forward network over a mixture of words."""

    kind: Literal["context"] = "context"
    mixing: Literal["mean", "learned", "cosine", "query_key"] = "query_key"
    """What the weights of words in the mixture are."""
    width: int = Field(default=256, ge=1, le=1_000_000)
    """The width of embeddings, and of queries and keys."""
    tie_weights: bool = True
    """Whether the token embedding is also the output projection (`lm_head`)."""

    def build(self) -> "ContextModel":
        return ContextModel(self)


class ContextModel(FixedLengthModel):
    """Computes the logits of the next target word from a mixture of all words so far."""

    config: ContextConfig

    def __init__(self, config: ContextConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.embed_tokens = TokenEmbedding(config.vocab_size, width)
        self.source_embed_tokens = self.source_embedding_of(config, width)
        self.source_positions = Learned(width, config.max_length)
        self.target_positions = Learned(width, config.max_length)
        self.dropout = nn.Dropout(config.dropout)
        self.mixing = MIXINGS[config.mixing](width)
        self.input = nn.Linear(width, config.hidden)
        self.network = HiddenLayers(config.hidden, config.layers, config.dropout)
        self.output = nn.Linear(config.hidden, width)
        self.lm_head = None if config.tie_weights else TokenEmbedding(config.vocab_size, width)
        self.lm_head_bias = nn.Parameter(torch.zeros(config.vocab_size))

    def encode(
        self, source: Tensor, lengths: Tensor | None = None, attention_hook: AttentionHook | None = None
    ) -> FixedLengthState:
        source = self.check_source(source, lengths)
        positions = torch.arange(source.shape[1], device=source.device)
        embedding = self.embed_tokens if self.source_embed_tokens is None else self.source_embed_tokens
        words = self._embed(embedding, source, self.source_positions, positions)  # (batch, tokens, width)
        keys = self.mixing.keys(words)  # (batch, tokens, features)
        rows, room = source.shape[0], self.config.max_length + 1  # words that have no place are put after the others
        return FixedLengthState(
            {
                "words": words.new_zeros(rows, room, words.shape[2]),
                "keys": keys.new_zeros(rows, room, keys.shape[2]),
                "length": torch.zeros(rows, dtype=torch.long, device=source.device),
            },
            {"words": words, "keys": keys},
            lengths,
        )

    def decode(self, tokens: Tensor, state: RecurrentState, attention_hook: AttentionHook | None = None) -> Tensor:
        assert isinstance(state, FixedLengthState)
        limit = self.config.max_length
        positions = positions_after(state.rows["length"], tokens.shape[1])  # (rows, tokens)
        words = self._embed(self.embed_tokens, tokens, self.target_positions, positions.clamp(max=limit - 1))
        new = {"words": words, "keys": self.mixing.keys(words)}
        place = positions.clamp(max=limit)[..., None]
        state.rows = state.rows | {
            name: state.rows[name].scatter(1, place.expand_as(tensor), tensor) for name, tensor in new.items()
        }
        state.advance(tokens.shape[1])
        # The target words so far, those that other rows have and this one has not among them.
        seen = {name: state.rows[name][:, : min(state.extent, limit)] for name in new}
        target_mask = torch.arange(seen["words"].shape[1], device=tokens.device) <= positions[..., None]
        mixture = self.mixing(self.mixing.queries(words), seen, target_mask, state, attention_hook)
        x = self.output(self.network(self.input(mixture)))  # (rows, tokens, width)
        return (self.embed_tokens if self.lm_head is None else self.lm_head).logits(x, self.lm_head_bias)

    def _embed(self, table: TokenEmbedding, ids: Tensor, learned: Learned, positions: Tensor) -> Tensor:
        x: Tensor = self.dropout(learned.combine(table(ids) * self.config.width**0.5, positions))
        return x


class Mixing(AlignmentModule):
    """Mixes words with the weights softmax(Q·Kᵀ); what queries and keys are is the subclass's."""

    attention_types = ("cross", "decoder")

    def __init__(self, width: int) -> None:
        super().__init__()

    def queries(self, words: Tensor) -> Tensor:
        """words: # (batch, tokens, width); gives (batch, tokens, features)"""
        raise NotImplementedError

    def keys(self, words: Tensor) -> Tensor:
        """words: # (batch, tokens, width); gives (batch, tokens, features)"""
        raise NotImplementedError

    def forward(
        self,
        queries: Tensor,
        target: dict[str, Tensor],
        target_mask: Tensor,
        state: RecurrentState,
        attention_hook: AttentionHook | None = None,
    ) -> Tensor:
        """Mix the source in `state.memory` and the target so far, as seen by each query.

        queries: # (rows, queries, features); target: words and keys # (rows, keys, …);
        target_mask: # (rows, queries, keys), True where a query sees a word; gives (rows, queries, width)
        """
        source_words, source_keys = state.memory["words"], state.memory["keys"]  # (sources, tokens, …)
        rows, count, length = *queries.shape[:2], source_words.shape[1]
        source_mask = state.memory_mask(length)
        # The rows of one source are adjacent: they are queries of the same keys.
        grouped = queries.reshape(state.sources, state.group * count, queries.shape[2])
        source_scores = grouped @ source_keys.transpose(1, 2)  # (sources, group · queries, tokens)
        if source_mask is not None:
            source_scores = source_scores.masked_fill(~source_mask[:, None], -torch.inf)
        target_scores = queries @ target["keys"].transpose(1, 2)  # (rows, queries, keys)
        target_scores = target_scores.masked_fill(~target_mask, -torch.inf)
        scores = torch.cat((source_scores.view(rows, count, length), target_scores), dim=-1)
        weights = scores.softmax(dim=-1)  # (rows, queries, tokens + keys)
        if attention_hook is not None:
            attention_hook(self, weights[:, None])
        of_source = weights[..., :length].reshape(state.sources, state.group * count, length) @ source_words
        return of_source.view(rows, count, -1) + weights[..., length:] @ target["words"]


class MeanMixing(Mixing):
    """Equal weights: there is nothing to compare, so all scores are 0."""

    def queries(self, words: Tensor) -> Tensor:
        return words[..., :0]

    def keys(self, words: Tensor) -> Tensor:
        return words[..., :0]


class LearnedMixing(Mixing):
    """A learned score for how important a word is, the same for all queries."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.score = nn.Linear(width, 1, bias=False)

    def queries(self, words: Tensor) -> Tensor:
        return torch.ones_like(words[..., :1])

    def keys(self, words: Tensor) -> Tensor:
        scores: Tensor = self.score(words)
        return scores


class CosineMixing(Mixing):
    """Words that are similar to the query's have higher weights."""

    def queries(self, words: Tensor) -> Tensor:
        return nn.functional.normalize(words, dim=-1)

    def keys(self, words: Tensor) -> Tensor:
        return nn.functional.normalize(words, dim=-1)


class QueryKeyMixing(Mixing):
    """What a word looks for and what it is found by are learned; dot products are scaled by 1/√width."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.scale = width**-0.5
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)

    def queries(self, words: Tensor) -> Tensor:
        projected: Tensor = self.q_proj(words) * self.scale
        return projected

    def keys(self, words: Tensor) -> Tensor:
        projected: Tensor = self.k_proj(words)
        return projected


MIXINGS: dict[str, type[Mixing]] = {
    "mean": MeanMixing,
    "learned": LearnedMixing,
    "cosine": CosineMixing,
    "query_key": QueryKeyMixing,
}
"""The mixings by name."""
