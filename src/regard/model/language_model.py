"""A decoder-only language model: logits for the next token of a text."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from regard.attention import Context, KVCache
from regard.attention.context import AttentionHook
from regard.errors import UserError
from regard.model.autoregressive import AutoregressiveConfig, AutoregressiveModel
from regard.model.embedding import check_ids

EMPTY_PROMPT = "An empty prompt needs a BOS token, and this model has none; give it some text."


class LanguageModelConfig(AutoregressiveConfig):
    """A decoder-only language model."""

    kind: Literal["language-model"] = "language-model"

    def build(self) -> "LanguageModel":
        return LanguageModel(self)


class LanguageModel(AutoregressiveModel):
    """Computes the logits of the next token, given the tokens so far."""

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

    @torch.no_grad()
    def start(self, rows: int, capacity: int) -> KVCache:
        """An empty KV cache for up to `capacity` tokens per row, prompt included."""
        return KVCache(rows, capacity, self.decoder.states(capacity=capacity), device=self.device)

    @torch.no_grad()
    def prefill(self, prompts: Sequence[Sequence[int]], capacity: int) -> tuple[KVCache, Tensor]:
        """Run the prompts except for their last tokens; the cache has room for `capacity` tokens from those on.

        An empty prompt becomes the BOS token. Gives the cache and the last token of each prompt.  # (rows,)
        """
        bos = self.config.special_tokens.bos
        if bos is None and not all(prompts):
            raise UserError(EMPTY_PROMPT)
        rows = [list(prompt) or [bos or 0] for prompt in prompts]
        device = self.device
        longest = max(len(row) for row in rows) - 1
        self.embedding.embed_positions.check_length(longest + 1)
        cache = self.start(len(rows), longest + capacity)
        last = check_ids(torch.tensor([row[-1] for row in rows]), self.config.vocab_size)
        if longest:
            padded = torch.tensor([[*row[:-1], *[0] * (longest + 1 - len(row))] for row in rows])
            counts = torch.tensor([len(row) - 1 for row in rows], device=device)
            self.step(check_ids(padded, self.config.vocab_size).to(device), cache, counts)
            cache.tighten()
        return cache, last.to(device)
