"""The Transformer as it was made: an encoder reads the source, a decoder writes the target (Vaswani et al. 2017)."""

from collections.abc import Sequence
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from regard.attention import Cache, Context, Documents, Full, Lengths, Pattern
from regard.attention.context import Watch
from regard.errors import UserError
from regard.model.embedding import Input, Vocabulary
from regard.model.stack import Stack, StackConfig, check_stack
from regard.model.writer import Writer, WriterConfig


class EncoderDecoderConfig(WriterConfig):
    """Settings of an `EncoderDecoder`. Left out, they are those of the paper's base model, in pre-norm order."""

    kind: Literal["encoder-decoder"] = "encoder-decoder"
    encoder: StackConfig = StackConfig()
    source_vocabulary: int | None = Field(default=None, ge=1)
    """Words of the source, where it does not share the target's."""
    memory: Literal["layer", "shared"] = "layer"
    """Keys and values of the encoder's output: made by each decoder layer for itself, or once for all of them."""

    @model_validator(mode="after")
    def _encoder_fits(self) -> Self:
        check_stack("encoder", self.encoder, self.width, self.position)
        return self

    def build(self) -> "EncoderDecoder":
        return EncoderDecoder(self)


class EncoderDecoder(Writer):
    """Scores the next target word, given the source and the target so far."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__(config, config.memory)
        self.config = config
        width = config.width
        self.source_vocabulary = (
            None
            if config.source_vocabulary is None
            else Vocabulary(config.source_vocabulary, config.position.token_width(width))
        )
        self.source_input = Input(config.embedding, config.position, width)
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
        watch: Watch | None = None,
    ) -> Tensor:
        """Logits for the word after each target token.  source, target: # (batch, tokens); (batch, tokens, vocabulary)

        Rows are padded on the right up to the longest; lengths tell where they end. Several pairs can be packed in a
        row: documents then number them, the same number on both sides.
        """
        if source.shape[:1] != target.shape[:1]:
            raise UserError(
                "source and target need the same number of rows; "
                f"found {tuple(source.shape)} and {tuple(target.shape)}."
            )
        if (source_documents is None) != (target_documents is None):
            raise UserError("Pairs packed in a row are numbered on both sides: give documents for source and target.")
        memory = self.encode(source, lengths=source_lengths, documents=source_documents, watch=watch)
        seen: Pattern = Full() if source_lengths is None else Lengths(source_lengths)
        if target_documents is not None:
            seen = seen & Documents(target_documents, key_numbers=source_documents)
        context = Context(target, lengths=target_lengths, documents=target_documents, memory=seen, watch=watch)
        return self.write(target, context, self.decoder.states(memory))

    def encode(
        self,
        source: Tensor,
        *,
        lengths: Tensor | None = None,
        documents: Tensor | None = None,
        watch: Watch | None = None,
    ) -> Tensor:
        """The source, every word in the light of the others.  source: # (batch, tokens); (batch, tokens, width)"""
        context = Context(source, lengths=lengths, documents=documents, watch=watch)
        words = self.vocabulary if self.source_vocabulary is None else self.source_vocabulary
        encoded: Tensor = self.encoder(self.source_input(words(source), context), context, self.encoder.states())
        return encoded

    @torch.no_grad()
    def start(self, source: Tensor, capacity: int, lengths: Tensor | None = None) -> Cache:
        """Read the source and make ready to write up to `capacity` target tokens a row, one `step` after another."""
        states = self.decoder.states(self.encode(source, lengths=lengths), capacity)
        return Cache(source.shape[0], capacity, states, memory_lengths=lengths, device=source.device)

    @torch.no_grad()
    def begin(self, sources: Sequence[Sequence[int]], capacity: int) -> tuple[Cache, Tensor]:
        """Read sources of any length, each with its end behind it, with room to write `capacity` tokens.

        Gives the cache and the first tokens  # (rows,)
        """
        ids, real = (tensor.to(self.device) for tensor in self.padded(sources))
        same = len(set(map(len, sources))) == 1
        cache = self.start(ids, capacity, None if same else real)
        cache.memory_lengths = real  # others may join these rows
        return cache, self.firsts(len(sources))

    def padded(self, sources: Sequence[Sequence[int]], step: int = 1) -> tuple[Tensor, Tensor]:
        """Sources with their ends as rows, as long as the longest or up to the next multiple of `step`; their lengths.

        On the CPU.  # (rows, tokens), (rows,)
        """
        tokens = self.config.tokens
        if tokens.start is None or tokens.end is None:
            raise UserError("This model's config does not say which ids are start and end, so it cannot be decoded.")
        lengths = [len(source) + 1 for source in sources]
        longest, padding = -(-max(lengths) // step) * step, tokens.padding or 0
        flat = [each for row in sources for each in (*row, tokens.end, *[padding] * (longest - len(row) - 1))]
        return torch.tensor(flat).view(len(sources), longest), torch.tensor(lengths)

    def firsts(self, rows: int) -> Tensor:
        """What each output begins with.  # (rows,)"""
        assert self.config.tokens.start is not None
        return torch.full((rows,), self.config.tokens.start, device=self.device)
