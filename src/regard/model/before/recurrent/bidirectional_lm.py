"""A bidirectional language model: one predicts each token from those before it, the other from those after it.

Peters et al. (2018, ELMo) train the two together. They share the token embedding and the output projection, and each
has recurrent layers of its own. No layer sees both directions: a model that did would see the token that it predicts.
Only afterwards are the states of both concatenated, layer by layer, and they are vectors of words in their context. A
task weights the layers by a scalar mix (`model/scalar_mix.py`).

The forward direction is the plain recurrent language model, with the same parameter names: it scores and continues
texts. The backward direction is the same model over the reversed text.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from regard.attention.context import AttentionHook
from regard.model.before.recurrent.language_model import RecurrentLM, RecurrentLMSettings
from regard.model.before.recurrent.layers import RecurrentLayer


class BidirectionalLMConfig(RecurrentLMSettings):
    """Two recurrent language models with shared embeddings, one for each direction (ELMo). `layers` is of each."""

    kind: Literal["bidirectional-lm"] = "bidirectional-lm"

    def build(self) -> "BidirectionalLM":
        return BidirectionalLM(self)


class BidirectionalLM(RecurrentLM):
    """The logits of the next token; with the tokens that follow, also those of the token before each of them."""

    is_bidirectional = True

    def __init__(self, config: BidirectionalLMConfig) -> None:
        super().__init__(config)
        self.backward_layers = nn.ModuleList(
            RecurrentLayer(config.cell, config.width, config.width, reverse=True) for _ in range(config.layers)
        )

    def forward(
        self,
        tokens: Tensor,
        *,
        lengths: Tensor | None = None,
        documents: Tensor | None = None,
        attention_hook: AttentionHook | None = None,
        following: Tensor | None = None,
    ) -> Tensor:
        """The logits for the token after each token.  tokens: # (batch, tokens); gives (batch, tokens, vocabulary)

        `following` are the tokens one place further, which are the targets of these logits. If they are given, the
        backward direction reads them from the last to the first, and the logits for `tokens` come after the others in
        the batch.  following: # (batch, tokens); gives (2 · batch, tokens, vocabulary)
        """
        if following is None or documents is not None:  # packed documents are refused there
            return super().forward(tokens, lengths=lengths, documents=documents, attention_hook=attention_hook)
        ahead = self._run(self.layers, tokens)[-1]
        back = self._run(self.backward_layers, following, lengths)[-1]
        return self._logits(torch.cat((ahead, back)))

    def backward_logits(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The logits for the token before each token.  tokens: # (batch, tokens); gives (batch, tokens, vocabulary)"""
        return self._logits(self._run(self.backward_layers, tokens, lengths)[-1])

    def hidden_states(self, tokens: Tensor, lengths: Tensor | None = None) -> list[Tensor]:
        """[forward; backward] for every layer; of the embeddings, which both share, [x; x].

        A token's vector is the concatenation of two states: one has read the text up to this token, the other from the
        end down to it.  tokens: # (batch, tokens); gives (batch, tokens, 2 · width) for each layer
        """
        ahead = self._run(self.layers, tokens)
        back = self._run(self.backward_layers, tokens, lengths)
        return [torch.cat(pair, dim=-1) for pair in zip(ahead, back, strict=True)]

    def _run(self, layers: nn.ModuleList, tokens: Tensor, lengths: Tensor | None = None) -> list[Tensor]:
        """The embeddings and the output of every layer of one direction."""
        found = [self._embed(tokens)]
        for layer in layers:
            found.append(self.dropout(layer(found[-1], lengths=lengths)[0]))
        return found
