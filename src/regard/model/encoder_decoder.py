"""The original Transformer: an encoder for the source, a decoder for the target (Vaswani et al. 2017)."""

from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from regard.attention import Context, Documents, Full, KVCache, Lengths, Pattern
from regard.attention.context import AttentionHook
from regard.errors import UserError
from regard.model.autoregressive import AutoregressiveConfig, AutoregressiveModel, Seq2SeqLM
from regard.model.embedding import EmbeddingLayer, TokenEmbedding
from regard.model.stack import Stack, StackConfig, check_stack


class EncoderDecoderConfig(AutoregressiveConfig):
    """An encoder–decoder. The defaults are those of the paper's base model, but pre-norm."""

    kind: Literal["encoder-decoder"] = "encoder-decoder"
    encoder: StackConfig = StackConfig()
    """The layers of the encoder."""
    source_vocab_size: int | None = Field(default=None, ge=1, le=10_000_000)
    """The size of the source's vocabulary, where it is another than the target's."""
    cross_kv: Literal["per_layer", "shared"] = "per_layer"
    """Whether each decoder layer projects the encoder's output to its own keys and values, or all layers share them."""

    @model_validator(mode="after")
    def _check_encoder(self) -> Self:
        check_stack("encoder", self.encoder, self.width, self.position)
        return self

    def build(self) -> "EncoderDecoder":
        return EncoderDecoder(self)


class EncoderDecoder(AutoregressiveModel, Seq2SeqLM):
    """Computes the logits of the next target token, given the source and the target so far."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__(config, config.cross_kv)
        self.config = config
        width = config.width
        self.source_embed_tokens = (
            None
            if config.source_vocab_size is None
            else TokenEmbedding(config.source_vocab_size, config.position.token_width(width))
        )
        self.source_embedding = EmbeddingLayer(config.embedding, config.position, width)
        self.encoder = Stack(config.encoder, width, config.position, causal=False)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_lengths: Tensor | None = None,
        target_lengths: Tensor | None = None,
        source_documents: Tensor | None = None,
        target_documents: Tensor | None = None,
        attention_hook: AttentionHook | None = None,
    ) -> Tensor:
        """The logits for the token after each target token.  # (batch, tokens, vocabulary)

        source, target: # (batch, tokens)

        Rows are padded on the right to the longest; the lengths are those of each row. Several pairs can be packed into
        a row: the documents then number them, the same number on both sides.
        """
        if source.shape[:1] != target.shape[:1]:
            raise UserError(
                "source and target must have the same number of rows; "
                f"found {tuple(source.shape)} and {tuple(target.shape)}."
            )
        if (source_documents is None) != (target_documents is None):
            raise UserError("Packed pairs are numbered on both sides: give both source_documents and target_documents.")
        memory = self.encode(source, lengths=source_lengths, documents=source_documents, attention_hook=attention_hook)
        visible: Pattern = Full() if source_lengths is None else Lengths(source_lengths)
        if target_documents is not None:
            visible = visible & Documents(target_documents, key_document_ids=source_documents)
        context = Context(
            target, lengths=target_lengths, documents=target_documents, memory=visible, attention_hook=attention_hook
        )
        return self.decode(target, context, self.decoder.states(memory))

    def encode(
        self,
        source: Tensor,
        *,
        lengths: Tensor | None = None,
        documents: Tensor | None = None,
        attention_hook: AttentionHook | None = None,
    ) -> Tensor:
        """The encoder's output.  source: # (batch, tokens); (batch, tokens, width)"""
        context = Context(source, lengths=lengths, documents=documents, attention_hook=attention_hook)
        encoded: Tensor = self.encoder(self._embed_source(source, context), context, self.encoder.states())
        return encoded

    def hidden_states(self, tokens: Tensor, lengths: Tensor | None = None) -> list[Tensor]:
        context = Context(tokens, lengths=lengths)
        return self.encoder.hidden_states(self._embed_source(tokens, context), context)

    @torch.no_grad()
    def start(self, source: Tensor, capacity: int, lengths: Tensor | None = None) -> KVCache:
        """Encode the source; gives a KV cache with room for up to `capacity` target tokens per row."""
        states = self.decoder.states(self.encode(source, lengths=lengths), capacity)
        return KVCache(source.shape[0], capacity, states, memory_lengths=lengths, device=source.device)

    def _embed_source(self, source: Tensor, context: Context) -> Tensor:
        """source: # (batch, tokens); gives (batch, tokens, width)"""
        embed_tokens = self.embed_tokens if self.source_embed_tokens is None else self.source_embed_tokens
        embedded: Tensor = self.source_embedding(embed_tokens(source), context)
        return embedded
