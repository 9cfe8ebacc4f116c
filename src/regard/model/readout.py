"""What is read off an encoder's vectors: words that were masked, a label for a text, or one for each of its tokens.

Each readout is a config with a `kind` of its own that builds the part on top; a new one joins the union `AnyHead`.
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
from regard.model.block import NormConfig
from regard.model.embedding import Vocabulary

Label = Annotated[str, StringConstraints(min_length=1)]
Labels = Annotated[tuple[Label, ...], Field(strict=False, min_length=1)]  # files have lists, not tuples

Bend = Literal["relu", "gelu", "gelu-tanh", "silu", "tanh"]
_BENDS: dict[Bend, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu-tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
}


class NoHeadConfig(Config):
    """The vectors themselves."""

    kind: Literal["none"] = "none"


class FillConfig(Config):
    """A score for every word at every token: what may have stood where a mask stands (Devlin et al. 2019)."""

    kind: Literal["fill"] = "fill"
    activation: Bend = "gelu"
    norm: NormConfig = NormConfig()
    tie: bool = True
    """Whether words are scored with the same vectors they are looked up in."""
    bias: bool = True
    """Whether every word has a number of its own that is added to its score."""


class ClassifyConfig(Config):
    """A score for every label of a whole text."""

    kind: Literal["classify"] = "classify"
    labels: Labels
    pooling: Literal["pooler", "first", "mean"] = "first"
    """Which vector stands for the text: its first token's behind the model's pooler, or as it is, or the mean."""
    dropout: float = Field(default=0.1, ge=0, lt=1)


class TagConfig(Config):
    """A score for every label at every token."""

    kind: Literal["tag"] = "tag"
    labels: Labels
    dropout: float = Field(default=0.1, ge=0, lt=1)


AnyHead = Annotated[NoHeadConfig | FillConfig | ClassifyConfig | TagConfig, Field(discriminator="kind")]


class Fill(nn.Module):
    """Vectors are turned once more, then compared with those of all words. Tied, it is lent the encoder's words."""

    def __init__(self, config: FillConfig, width: int, vocabulary: int) -> None:
        super().__init__()
        self.turn = nn.Linear(width, width)
        self.bend = _BENDS[config.activation]
        self.norm = config.norm.build(width)
        self.vocabulary = None if config.tie else Vocabulary(vocabulary, width)
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if config.bias else None
        nn.init.xavier_uniform_(self.turn.weight)
        nn.init.zeros_(self.turn.bias)

    def forward(self, vectors: Tensor, words: Vocabulary) -> Tensor:
        """vectors: # (batch, tokens, width); gives (batch, tokens, vocabulary)"""
        turned = self.norm(self.bend(self.turn(vectors)))
        return (words if self.vocabulary is None else self.vocabulary).logits(turned, self.bias)


class Labelling(nn.Module):
    """A score for each label, from whatever vectors it is given."""

    def __init__(self, labels: int, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(width, labels)
        nn.init.normal_(self.output.weight, std=0.02)
        nn.init.zeros_(self.output.bias)

    def forward(self, vectors: Tensor) -> Tensor:
        """vectors: # (…, width); gives (…, labels)"""
        scores: Tensor = self.output(self.dropout(vectors))
        return scores


class Pooler(nn.Module):
    """One vector, bent: what stands for a whole text or picture (BERT's pooler, ViT's representation)."""

    def __init__(self, width: int, wide: int | None = None) -> None:
        super().__init__()
        self.turn = nn.Linear(width, width if wide is None else wide)
        nn.init.xavier_uniform_(self.turn.weight)
        nn.init.zeros_(self.turn.bias)

    def forward(self, vector: Tensor) -> Tensor:
        """vector: # (batch, width)"""
        return torch.tanh(self.turn(vector))


def mean_vector(vectors: Tensor, lengths: Tensor | None) -> Tensor:
    """The mean of each row's real tokens, those behind being zeros.  # (batch, tokens, width) → (batch, width)"""
    if lengths is None:
        return vectors.mean(dim=1)
    return vectors.sum(dim=1) / lengths.clamp(1, vectors.shape[1])[:, None].to(vectors.dtype)


def check_labels(key: str, labels: tuple[str, ...]) -> None:
    """Refuse a label that comes twice."""
    twice = next((label for at, label in enumerate(labels) if label in labels[:at]), None)
    if twice is not None:
        raise ConfigError(key, f"{twice!r} comes twice; every label needs a name of its own.")


def one_a_row(documents: Tensor | None) -> None:
    """Refuse packed rows where one answer a row is asked for."""
    if documents is not None:
        raise UserError("There is one vector or label a row here; give each document a row of its own.")
