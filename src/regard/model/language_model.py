"""A stack that only looks back: it scores the next word of a text."""

from typing import Literal

import torch
from torch import Tensor

from regard.attention import Cache, Context
from regard.attention.context import Watch
from regard.model.writer import Writer, WriterConfig


class LanguageModelConfig(WriterConfig):
    """Settings of a `LanguageModel`."""

    kind: Literal["language-model"] = "language-model"

    def build(self) -> "LanguageModel":
        return LanguageModel(self)


class LanguageModel(Writer):
    """Scores the next word, given the words so far."""

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__(config, memory=None)
        self.config = config

    def forward(
        self,
        tokens: Tensor,
        *,
        lengths: Tensor | None = None,
        documents: Tensor | None = None,
        watch: Watch | None = None,
    ) -> Tensor:
        """Logits for the word after each token.  tokens: # (batch, tokens); gives (batch, tokens, vocabulary)

        Rows are padded on the right up to the longest. Several documents can be packed in a row: `documents` then says
        which each token belongs to, and none sees another.
        """
        context = Context(tokens, lengths=lengths, documents=documents, watch=watch)
        return self.write(tokens, context, self.decoder.states())

    @torch.no_grad()
    def start(self, rows: int, capacity: int) -> Cache:
        """Make ready to take up to `capacity` tokens a row, prompt included, one `step` after another."""
        return Cache(rows, capacity, self.decoder.states(capacity=capacity), device=self.vocabulary.weight.device)
