"""A stack that looks both ways: every word in the light of all others (BERT, Devlin et al. 2019).

It writes nothing. On its vectors stands a head that fills gaps, labels a text or labels each token (`readout.py`).
"""

from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import Context
from regard.attention.context import Watch
from regard.attention.position import AnyPosition, SinusoidalConfig
from regard.config import Config, ConfigError
from regard.errors import UserError
from regard.model.embedding import EmbeddingConfig, Input, Segments, TokensConfig, Vocabulary
from regard.model.readout import (
    AnyHead,
    ClassifyConfig,
    Fill,
    FillConfig,
    Labelling,
    NoHeadConfig,
    Pooler,
    TagConfig,
    check_labels,
    mean_vector,
    one_a_row,
)
from regard.model.stack import Stack, StackConfig, check_stack


class EncoderTokensConfig(TokensConfig):
    """Ids with a meaning of their own in texts that are read, where the model has them."""

    mask: int | None = Field(default=None, ge=0)
    """Stands where a word is to be filled in."""
    separator: int | None = Field(default=None, ge=0)
    """Stands behind each sentence."""
    classify: int | None = Field(default=None, ge=0)
    """Stands first, and its vector for the whole text."""


class EncoderConfig(Config):
    """Settings of an `Encoder`. Numbers left out are those of the paper's base model."""

    kind: Literal["encoder"] = "encoder"
    vocabulary: int = Field(ge=1)
    width: int = Field(default=512, ge=1)
    encoder: StackConfig = StackConfig()
    position: AnyPosition = SinusoidalConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    segments: int = Field(default=0, ge=0)
    """How many parts of a text are told apart by a vector added to their words: 2 for pairs as BERT reads them."""
    pooler: bool = False
    """Whether the first token's vector can be had as BERT's pooler bends it."""
    head: AnyHead = NoHeadConfig()
    tokens: EncoderTokensConfig = EncoderTokensConfig()

    @property
    def labels(self) -> tuple[str, ...]:
        """What the head tells apart, if it has labels."""
        return self.head.labels if isinstance(self.head, ClassifyConfig | TagConfig) else ()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_stack("encoder", self.encoder, self.width, self.position)
        check_labels("head.labels", self.labels)
        for name, number in self.tokens.plain().items():
            if number is not None and number >= self.vocabulary:
                raise ConfigError(f"tokens.{name}", f"id {number} is outside the vocabulary of {self.vocabulary}.")
        if isinstance(self.head, FillConfig) and self.head.tie and self.position.token_width(self.width) != self.width:
            raise ConfigError(
                "head.tie",
                "word vectors that leave room for a concatenated position cannot score words too; set it to false.",
            )
        takes_pooler = isinstance(self.head, ClassifyConfig) and self.head.pooling == "pooler"
        if takes_pooler and not self.pooler:
            raise ConfigError("pooler", "the head takes what the pooler gives; set it to true, or head.pooling anew.")
        if self.pooler and not takes_pooler and not isinstance(self.head, NoHeadConfig):
            raise ConfigError("pooler", "this head would leave it untrained; set it to false.")
        return self

    def build(self) -> "Encoder":
        return Encoder(self)


class Encoder(nn.Module):
    """Reads whole texts. What `forward` gives depends on the head."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        token_width = config.position.token_width(width)
        self.vocabulary = Vocabulary(config.vocabulary, token_width)
        self.segments = Segments(config.segments, token_width) if config.segments else None
        self.input = Input(config.embedding, config.position, width)
        self.encoder = Stack(config.encoder, width, config.position, causal=False)
        self.pooler = Pooler(width) if config.pooler else None
        self.head = _head(config)

    @property
    def device(self) -> torch.device:
        return self.vocabulary.weight.device

    def forward(
        self,
        tokens: Tensor,
        *,
        lengths: Tensor | None = None,
        segments: Tensor | None = None,
        documents: Tensor | None = None,
        places: Tensor | None = None,
        watch: Watch | None = None,
    ) -> Tensor:
        """What the head gives.  tokens, segments, documents: # (batch, tokens); lengths: # (batch,)

        Without a head the vectors (batch, tokens, width); to fill gaps (batch, tokens, vocabulary); to classify
        (batch, labels); to tag (batch, tokens, labels). Rows are padded on the right up to the longest; `lengths`
        tells where they end. `segments` says which part of the text each token belongs to, 0 where it is not given.
        Several documents can be packed in a row where the head does not speak for the whole row. There the head can
        also be asked about some tokens of each row only: those at `places`, # (batch, some), are what it gives then.
        """
        head = self.config.head
        if isinstance(head, ClassifyConfig):
            one_a_row(documents)
            if places is not None:
                raise UserError("There is one label for a whole row here, and none for its tokens; leave out places.")
        vectors = self.encode(tokens, lengths=lengths, segments=segments, documents=documents, watch=watch)
        if places is not None:
            vectors = vectors.gather(1, places[..., None].expand(-1, -1, vectors.shape[2]))
        if isinstance(head, ClassifyConfig):
            vectors = self._pooled(vectors, lengths, head.pooling)
        given: Tensor = vectors
        if isinstance(self.head, Fill):
            given = self.head(vectors, self.vocabulary)
        elif self.head is not None:
            given = self.head(vectors)
        return given

    def encode(
        self,
        tokens: Tensor,
        *,
        lengths: Tensor | None = None,
        segments: Tensor | None = None,
        documents: Tensor | None = None,
        watch: Watch | None = None,
    ) -> Tensor:
        """Every token in the light of the others, padding as zeros.  # (batch, tokens, width)"""
        context = Context(tokens, lengths=lengths, documents=documents, watch=watch)
        if documents is not None and self.config.position.needs_length:
            raise UserError(
                f"Packed documents cannot be combined with {self.config.position.kind!r} positions, which need the "
                "length of each; give each document its own row."
            )
        words = self.vocabulary(tokens)
        if self.segments is not None:
            words = self.segments(segments, words)
        elif segments is not None:
            raise UserError("This model does not tell segments apart; leave them out.")
        vectors: Tensor = self.encoder(self.input(words, context), context, self.encoder.states())
        return _without_padding(vectors, lengths, documents)

    def pooled(self, tokens: Tensor, *, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """The first token's vector as the pooler bends it.  # (batch, width)"""
        if self.pooler is None:
            raise UserError("This model has no pooler.")
        return self._pooled(self.encode(tokens, lengths=lengths, segments=segments), lengths, "pooler")

    def sentence_vectors(
        self, tokens: Tensor, lengths: Tensor | None = None, *, segments: Tensor | None = None
    ) -> Tensor:
        """One vector of length 1 for each row, so that a dot product is a cosine.  # (batch, width)

        The mean over real tokens, as in Sentence-BERT (Reimers & Gurevych 2019).
        """
        vectors = self.encode(tokens, lengths=lengths, segments=segments)
        return functional.normalize(mean_vector(vectors, lengths), dim=-1)

    def _pooled(self, vectors: Tensor, lengths: Tensor | None, pooling: str) -> Tensor:
        if pooling == "mean":
            return mean_vector(vectors, lengths)
        first = vectors[:, 0]
        if pooling == "pooler":
            assert self.pooler is not None
            first = self.pooler(first)
        return first


def _head(config: EncoderConfig) -> Fill | Labelling | None:
    match config.head:
        case FillConfig() as head:
            return Fill(head, config.width, config.vocabulary)
        case ClassifyConfig() | TagConfig() as head:
            return Labelling(len(head.labels), config.width, head.dropout)
    return None


def _without_padding(vectors: Tensor, lengths: Tensor | None, documents: Tensor | None) -> Tensor:
    """Zeros where nothing stands: what padding becomes says nothing, and differs between forms of a model."""
    real = None if documents is None else documents >= 0  # (batch, tokens)
    if lengths is not None:
        there = torch.arange(vectors.shape[1], device=vectors.device) < lengths[:, None]
        real = there if real is None else real & there
    return vectors if real is None else vectors.masked_fill(~real[..., None], 0)
