"""Heads on top of an encoder: masked language modeling, classification of a text, classification of each token.

Each head has a config with its own `kind`; a new one is added to the union `AnyHead`.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field, StringConstraints
from torch import Tensor, nn
from torch.nn import functional

from regard.config import Config, ConfigError
from regard.errors import UserError
from regard.model.embedding import TokenEmbedding
from regard.model.stack import NormConfig

Label = Annotated[str, StringConstraints(min_length=1)]
Labels = Annotated[tuple[Label, ...], Field(strict=False, min_length=1)]  # files have lists, not tuples

HeadActivation = Literal["relu", "gelu", "gelu-tanh", "silu", "tanh"]
_ACTIVATIONS: dict[HeadActivation, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu-tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
}


class NoHeadConfig(Config):
    """No head: the model gives the encoder's output."""

    kind: Literal["none"] = "none"


class MaskedLMHeadConfig(Config):
    """Logits over the vocabulary at every token, for masked language modeling (Devlin et al. 2019)."""

    kind: Literal["masked_lm"] = "masked_lm"
    activation: HeadActivation = "gelu"
    """The activation function of the linear layer before the output projection."""
    norm: NormConfig = NormConfig()
    """The norm after that activation."""
    tie_weights: bool = True
    """Whether the token embedding is also the output projection (`lm_head`)."""
    bias: bool = True
    """Whether the logits have a bias."""


class ClassificationHeadConfig(Config):
    """Logits over the labels of a whole text."""

    kind: Literal["classification"] = "classification"
    labels: Labels
    """The names of the labels."""
    pooling: Literal["pooler", "cls", "mean"] = "cls"
    """The vector of a text: its first token's after the model's pooler, the same as it is (CLS), or the mean."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """The dropout probability before the output layer."""


class TokenClassificationHeadConfig(Config):
    """Logits over the labels at every token."""

    kind: Literal["token_classification"] = "token_classification"
    labels: Labels
    """The names of the labels."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """The dropout probability before the output layer."""


AnyHead = Annotated[
    NoHeadConfig | MaskedLMHeadConfig | ClassificationHeadConfig | TokenClassificationHeadConfig,
    Field(discriminator="kind"),
]


class MaskedLMHead(nn.Module):
    """A linear layer with activation and norm, then the output projection: its own, or the tied token embedding."""

    def __init__(self, config: MaskedLMHeadConfig, width: int, vocab_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.activation = _ACTIVATIONS[config.activation]
        self.norm = config.norm.build(width)
        self.lm_head = None if config.tie_weights else TokenEmbedding(vocab_size, width)
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if config.bias else None
        nn.init.xavier_uniform_(self.dense.weight)
        nn.init.zeros_(self.dense.bias)

    def forward(self, vectors: Tensor, embed_tokens: TokenEmbedding) -> Tensor:
        """vectors: # (batch, tokens, width); gives (batch, tokens, vocabulary)"""
        x = self.norm(self.activation(self.dense(vectors)))
        return (embed_tokens if self.lm_head is None else self.lm_head).logits(x, self.bias)


class ClassificationHead(nn.Module):
    """Logits over the labels, of a text or of each token."""

    def __init__(self, labels: int, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(width, labels)
        nn.init.normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, vectors: Tensor) -> Tensor:
        """vectors: # (…, width); gives (…, labels)"""
        logits: Tensor = self.classifier(self.dropout(vectors))
        return logits


class Pooler(nn.Module):
    """A linear layer with tanh on the vector of a whole text or image (BERT's pooler, ViT's pre-logits)."""

    def __init__(self, width: int, output_width: int | None = None) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width if output_width is None else output_width)
        nn.init.xavier_uniform_(self.dense.weight)
        nn.init.zeros_(self.dense.bias)

    def forward(self, vector: Tensor) -> Tensor:
        """vector: # (batch, width)"""
        return torch.tanh(self.dense(vector))


def mean_vector(vectors: Tensor, lengths: Tensor | None) -> Tensor:
    """The mean over each row's real tokens; padding must be zeros.  # (batch, tokens, width) → (batch, width)"""
    if lengths is None:
        return vectors.mean(dim=1)
    return vectors.sum(dim=1) / lengths.clamp(1, vectors.shape[1])[:, None].to(vectors.dtype)


def check_labels(key: str, labels: tuple[str, ...]) -> None:
    """Raise an error for a duplicate label."""
    duplicate = next((label for index, label in enumerate(labels) if label in labels[:index]), None)
    if duplicate is not None:
        raise ConfigError(key, f"{duplicate!r} comes twice; labels must be unique.")


def refuse_packed(documents: Tensor | None) -> None:
    """Raise an error for packed rows where there is one result per row."""
    if documents is not None:
        raise UserError("There is one vector or label per row; give each document its own row.")
