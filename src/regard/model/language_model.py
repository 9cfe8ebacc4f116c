"""A stack that only looks back: it scores the next word of a text."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from regard.attention import Cache, Context
from regard.attention.context import Watch
from regard.errors import UserError
from regard.model.writer import Writer, WriterConfig

EMPTY_PROMPT = "An empty prompt needs a start token, and this model has none; give it some text."


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
        return Cache(rows, capacity, self.decoder.states(capacity=capacity), device=self.device)

    @torch.no_grad()
    def begin(self, prompts: Sequence[Sequence[int]], capacity: int) -> tuple[Cache, Tensor]:
        """Read prompts up to their last token, and give that, with room for `capacity` tokens from it on.

        A prompt without tokens begins with the start token. Gives the cache and the first tokens  # (rows,)
        """
        first = self.config.tokens.start
        if first is None and not all(prompts):
            raise UserError(EMPTY_PROMPT)
        rows = [list(prompt) or [first or 0] for prompt in prompts]
        device = self.device
        longest = max(len(row) for row in rows) - 1
        cache = self.start(len(rows), longest + capacity)
        if longest:
            padded = torch.tensor([[*row[:-1], *[0] * (longest + 1 - len(row))] for row in rows], device=device)
            self.step(padded, cache, torch.tensor([len(row) - 1 for row in rows], device=device))
            cache.tighten()
        return cache, torch.tensor([row[-1] for row in rows], device=device)
