"""A bidirectional encoder (BERT, Devlin et al. 2019) with a head for masked language modeling or classification.

The heads are in `heads.py`.
"""

from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import Context
from regard.attention.context import AttentionHook
from regard.attention.positions.config import AnyPosition, SinusoidalConfig
from regard.config import Config, ConfigError
from regard.errors import UserError
from regard.model.embedding import (
    EmbeddingConfig,
    EmbeddingLayer,
    SpecialTokensConfig,
    TokenEmbedding,
    TokenTypeEmbedding,
)
from regard.model.heads import (
    AnyHead,
    ClassificationHead,
    ClassificationHeadConfig,
    MaskedLMHead,
    MaskedLMHeadConfig,
    NoHeadConfig,
    Pooler,
    TokenClassificationHeadConfig,
    check_labels,
    mean_vector,
    refuse_packed,
)
from regard.model.stack import Stack, StackConfig, check_stack


class EncoderSpecialTokensConfig(SpecialTokensConfig):
    """The ids of an encoder's special tokens. One that is not set does not exist in the model."""

    mask: int | None = Field(default=None, ge=0, lt=10_000_000)
    """Replaces a token that is to be predicted."""
    sep: int | None = Field(default=None, ge=0, lt=10_000_000)
    """Follows each sentence."""
    cls: int | None = Field(default=None, ge=0, lt=10_000_000)
    """Comes first; its vector represents the whole text."""


class EncoderConfig(Config):
    """An encoder of texts, with a head. The defaults are those of the Transformer paper's base model."""

    kind: Literal["encoder"] = "encoder"
    vocab_size: int = Field(ge=1, le=10_000_000)
    """The size of the vocabulary."""
    width: int = Field(default=512, ge=1, le=1_000_000)
    """The width of the model: the features of each token between layers (d_model)."""
    encoder: StackConfig = StackConfig()
    """The layers of the encoder."""
    position: AnyPosition = SinusoidalConfig()
    """The positional encoding."""
    embedding: EmbeddingConfig = EmbeddingConfig()
    token_types: int = Field(default=0, ge=0, le=100_000)
    """The number of token types: parts of a text with an embedding of their own, 2 for BERT's sentence pairs."""
    pooler: bool = False
    """Whether there is BERT's pooler: a linear layer with tanh on the first token's vector."""
    head: AnyHead = NoHeadConfig()
    """The output layer on top of the encoder. Its kind follows from the task."""
    special_tokens: EncoderSpecialTokensConfig = EncoderSpecialTokensConfig()

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the head, if it has any."""
        return (
            self.head.labels if isinstance(self.head, ClassificationHeadConfig | TokenClassificationHeadConfig) else ()
        )

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        check_stack("encoder", self.encoder, self.width, self.position)
        check_labels("head.labels", self.labels)
        for name, token_id in self.special_tokens.plain().items():
            if token_id is not None and token_id >= self.vocab_size:
                raise ConfigError(
                    f"special_tokens.{name}", f"id {token_id} is outside the vocabulary of {self.vocab_size}."
                )
        if (
            isinstance(self.head, MaskedLMHeadConfig)
            and self.head.tie_weights
            and self.position.token_width(self.width) != self.width
        ):
            raise ConfigError(
                "head.tie_weights",
                "token embeddings beside a concatenated position are too narrow to score tokens; set it to false.",
            )
        uses_pooler = isinstance(self.head, ClassificationHeadConfig) and self.head.pooling == "pooler"
        if uses_pooler and not self.pooler:
            raise ConfigError("pooler", "the head needs the pooler; set it to true, or choose another head.pooling.")
        if self.pooler and not uses_pooler and not isinstance(self.head, NoHeadConfig):
            raise ConfigError(
                "pooler", "this head does not use the pooler, so it would stay untrained; set it to false."
            )
        return self

    def build(self) -> "Encoder":
        return Encoder(self)


class Encoder(nn.Module):
    """Encodes whole texts. The output of `forward` depends on the head."""

    max_positions_key = "model.position.max_length"

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        token_width = config.position.token_width(width)
        self.embed_tokens = TokenEmbedding(config.vocab_size, token_width)
        self.embed_token_types = TokenTypeEmbedding(config.token_types, token_width) if config.token_types else None
        self.embedding = EmbeddingLayer(config.embedding, config.position, width)
        self.encoder = Stack(config.encoder, width, config.position, causal=False)
        self.pooler = Pooler(width) if config.pooler else None
        self.head = _head(config)

    @property
    def device(self) -> torch.device:
        return self.embed_tokens.weight.device

    @property
    def max_positions(self) -> int | None:
        """The most tokens that a text may have; None without a limit."""
        return self.embedding.embed_positions.max_length

    def forward(
        self,
        tokens: Tensor,
        *,
        lengths: Tensor | None = None,
        token_types: Tensor | None = None,
        documents: Tensor | None = None,
        positions: Tensor | None = None,
        attention_hook: AttentionHook | None = None,
    ) -> Tensor:
        """The head's output.  tokens, token_types, documents: # (batch, tokens); lengths: # (batch,)

        Without a head (batch, tokens, width); for masked language modeling (batch, tokens, vocabulary); for
        classification (batch, labels); for token classification (batch, tokens, labels). Rows are padded on the right
        to the longest; `lengths` are their lengths. `token_types` are zeros if not given. Unless the head classifies
        whole rows, several documents can be packed into a row, and the head can be applied to some tokens of each row
        only: those at `positions`.  # (batch, positions)
        """
        head = self.config.head
        if isinstance(head, ClassificationHeadConfig):
            refuse_packed(documents)
            if positions is not None:
                raise UserError("This model gives one label per row, not per token; leave out positions.")
        vectors = self.encode(
            tokens, lengths=lengths, token_types=token_types, documents=documents, attention_hook=attention_hook
        )
        if positions is not None:
            vectors = vectors.gather(1, positions[..., None].expand(-1, -1, vectors.shape[2]))
        if isinstance(head, ClassificationHeadConfig):
            vectors = self._pooled(vectors, lengths, head.pooling)
        output: Tensor = vectors
        if isinstance(self.head, MaskedLMHead):
            output = self.head(vectors, self.embed_tokens)
        elif self.head is not None:
            output = self.head(vectors)
        return output

    def encode(
        self,
        tokens: Tensor,
        *,
        lengths: Tensor | None = None,
        token_types: Tensor | None = None,
        documents: Tensor | None = None,
        attention_hook: AttentionHook | None = None,
    ) -> Tensor:
        """The encoder's output, with zeros for padding.  # (batch, tokens, width)"""
        context = Context(tokens, lengths=lengths, documents=documents, attention_hook=attention_hook)
        if documents is not None and self.config.position.needs_length:
            raise UserError(
                f"Packed documents cannot be combined with {self.config.position.kind!r} positions, which need the "
                "length of each; give each document its own row."
            )
        vectors: Tensor = self.encoder(self._embed(tokens, token_types, context), context, self.encoder.states())
        return _zero_padding(vectors, lengths, documents)

    def hidden_states(self, tokens: Tensor, lengths: Tensor | None = None) -> list[Tensor]:
        """The embeddings and the vectors after every layer: the last are those of `encode`, before padding is zeroed.

        tokens: # (batch, tokens); lengths: # (batch,); gives (batch, tokens, width) for each layer
        """
        context = Context(tokens, lengths=lengths)
        return self.encoder.hidden_states(self._embed(tokens, None, context), context)

    def pooled(self, tokens: Tensor, *, lengths: Tensor | None = None, token_types: Tensor | None = None) -> Tensor:
        """The pooler's output for the first token.  # (batch, width)"""
        if self.pooler is None:
            raise UserError("This model has no pooler.")
        return self._pooled(self.encode(tokens, lengths=lengths, token_types=token_types), lengths, "pooler")

    def sentence_vectors(
        self, tokens: Tensor, lengths: Tensor | None = None, *, token_types: Tensor | None = None
    ) -> Tensor:
        """A sentence embedding per row: a unit vector, so that a dot product is a cosine.  # (batch, width)

        It is the normalized mean over real tokens, as in Sentence-BERT (Reimers & Gurevych 2019).
        """
        vectors = self.encode(tokens, lengths=lengths, token_types=token_types)
        return functional.normalize(mean_vector(vectors, lengths), dim=-1)

    def _embed(self, tokens: Tensor, token_types: Tensor | None, context: Context) -> Tensor:
        """The input of the first layer.  # (batch, tokens, width)"""
        x = self.embed_tokens(tokens)
        if self.embed_token_types is not None:
            x = self.embed_token_types(token_types, x)
        elif token_types is not None:
            raise UserError("This model has no token types; leave out token_types.")
        embedded: Tensor = self.embedding(x, context)
        return embedded

    def _pooled(self, vectors: Tensor, lengths: Tensor | None, pooling: str) -> Tensor:
        if pooling == "mean":
            return mean_vector(vectors, lengths)
        first = vectors[:, 0]
        if pooling == "pooler":
            assert self.pooler is not None
            first = self.pooler(first)
        return first


def _head(config: EncoderConfig) -> MaskedLMHead | ClassificationHead | None:
    match config.head:
        case MaskedLMHeadConfig() as head:
            return MaskedLMHead(head, config.width, config.vocab_size)
        case ClassificationHeadConfig() | TokenClassificationHeadConfig() as head:
            return ClassificationHead(len(head.labels), config.width, head.dropout)
    return None


def _zero_padding(vectors: Tensor, lengths: Tensor | None, documents: Tensor | None) -> Tensor:
    """Set padding to zero: its values mean nothing and differ between plain and fused models."""
    real = None if documents is None else documents >= 0  # (batch, tokens)
    if lengths is not None:
        within = torch.arange(vectors.shape[1], device=vectors.device) < lengths[:, None]
        real = within if real is None else real & within
    return vectors if real is None else vectors.masked_fill(~real[..., None], 0)
