"""A decoder-only language model: logits for the next token of a text."""

from typing import Literal

import torch
from torch import Tensor

from regard.attention import Context, KVCache
from regard.attention.context import AttentionHook
from regard.model.autoregressive import AutoregressiveConfig, AutoregressiveModel, CausalLM


class LanguageModelConfig(AutoregressiveConfig):
    """A decoder-only language model."""

    kind: Literal["language-model"] = "language-model"

    def build(self) -> "LanguageModel":
        return LanguageModel(self)


class LanguageModel(AutoregressiveModel, CausalLM):
    """Computes the logits of the next token, given the tokens so far."""

    supports_packing = True

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__(config, cross_kv=None)
        self.config = config

    def forward(
        self,
        tokens: Tensor,
        *,
        lengths: Tensor | None = None,
        documents: Tensor | None = None,
        attention_hook: AttentionHook | None = None,
    ) -> Tensor:
        """The logits for the token after each token.  tokens: # (batch, tokens); gives (batch, tokens, vocabulary)

        Rows are padded on the right to the longest; `lengths` are their lengths. Several documents can be packed into a
        row: `documents` then numbers each token's document, and no document attends to another.
        """
        context = Context(tokens, lengths=lengths, documents=documents, attention_hook=attention_hook)
        return self.decode(tokens, context, self.decoder.states())

    def hidden_states(self, tokens: Tensor, lengths: Tensor | None = None) -> list[Tensor]:
        context = Context(tokens, lengths=lengths)
        return self.decoder.hidden_states(self.embedding(self.embed_tokens(tokens), context), context)

    @torch.no_grad()
    def start(self, rows: int, capacity: int) -> KVCache:
        """An empty KV cache for up to `capacity` tokens per row, prompt included."""
        return KVCache(rows, capacity, self.decoder.states(capacity=capacity), device=self.device)
