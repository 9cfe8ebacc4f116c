"""An encoder–decoder of dilated convolutions without attention (ByteNet; Kalchbrenner et al. 2016).

The time is linear in the length, and the source keeps its resolution: the decoder stands on the encoder. Each target
token is computed from the tokens before it and from one column of the encoder's output, that of its own position. So
the encoder runs over a|s| + b columns, an estimate of the target's length from the source's (§3.1): past its last token
a source goes on with a learned vector, and a target that becomes longer is computed from its own tokens alone. Words
that move farther than the receptive field reaches are out of sight; dilations of 1, 2, 4, 8, 16, and again, let it grow
quickly.
"""

import math
from collections.abc import Sequence
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.attention.context import AttentionHook
from regard.config import ConfigError
from regard.model.before.base import Dropout, Seq2SeqConfig, SequenceToSequence
from regard.model.before.convolutional.layers import Convolution, Dilation, module_list
from regard.model.before.state import RecurrentState
from regard.model.embedding import TokenEmbedding


class ByteNetConfig(Seq2SeqConfig):
    """A ByteNet. The paper's, for characters, has a width of 1600 and 6 sets of blocks."""

    kind: Literal["bytenet"] = "bytenet"
    width: int = Field(default=512, ge=2, le=1_000_000)
    """The width between blocks (2d); convolutions work at half of it, and so it must be even."""
    dilations: tuple[Dilation, ...] = Field(default=(1, 2, 4, 8, 16), min_length=1, max_length=100, strict=False)
    """The dilations of the blocks of one set."""
    encoder_sets: int = Field(default=2, ge=1, le=1_000)
    """How often the encoder has a block of each dilation."""
    decoder_sets: int = Field(default=2, ge=1, le=1_000)
    """How often the decoder has a block of each dilation."""
    kernel: int = Field(default=3, ge=1, le=1_000)
    """The tokens that a convolution sees."""
    length_ratio: float = Field(default=1.2, ge=1, le=100)
    """The columns per source token (a): about the target's length divided by the source's."""
    length_offset: int = Field(default=0, ge=0, le=100_000)
    """The columns that are added to each source (b)."""
    dropout: float = Dropout
    """The dropout probability of embeddings and of the output of each block."""
    tie_weights: bool = True
    """Whether the target's token embedding is also the output projection (`lm_head`)."""

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.width % 2:
            raise ConfigError("width", f"{self.width} is odd; convolutions work at half the width, so make it even.")
        return self

    @property
    def decoder_receptive_field(self) -> int:
        """The number of target tokens that a prediction depends on."""
        return 1 + self.decoder_sets * (self.kernel - 1) * sum(self.dilations)

    @property
    def encoder_receptive_field(self) -> int:
        """The number of source tokens that a column depends on."""
        return 1 + self.encoder_sets * (self.kernel - 1) * sum(self.dilations)

    def build(self) -> "ByteNet":
        return ByteNet(self)


class ByteNetBlock(nn.Module):
    """A residual block: down to half the width, a dilated convolution, and up again, each after a norm and a ReLU."""

    def __init__(self, width: int, kernel: int, dilation: int, dropout: float) -> None:
        super().__init__()
        half = width // 2
        self.norm = nn.LayerNorm(width)
        self.down_proj = nn.Linear(width, half)
        self.convolution_norm = nn.LayerNorm(half)
        self.convolution = Convolution(half, half, kernel, dilation)
        self.up_norm = nn.LayerNorm(half)
        self.up_proj = nn.Linear(half, width)
        self.dropout = nn.Dropout(dropout)

    def centered(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x: # (batch, columns, width); mask: # (batch, columns)"""
        return self._add(x, self.convolution.centered(self._down(x), mask))

    def causal(self, x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        """x: # (rows, tokens, width); cache: # (rows, span, width / 2)"""
        convolved, cache = self.convolution.causal(self._down(x), cache)
        return self._add(x, convolved), cache

    def _down(self, x: Tensor) -> Tensor:
        output: Tensor = self.convolution_norm(self.down_proj(self.norm(x).relu())).relu()
        return output

    def _add(self, x: Tensor, convolved: Tensor) -> Tensor:
        output: Tensor = x + self.dropout(self.up_proj(self.up_norm(convolved).relu()))
        return output


class ByteNet(SequenceToSequence):
    """Encodes a source into columns, and computes the logits of the next target token from one column after another."""

    def __init__(self, config: ByteNetConfig) -> None:
        super().__init__()
        self.config: ByteNetConfig = config
        width = config.width
        self.source_embed_tokens = self.source_embedding_of(config, width)
        self.embed_tokens = TokenEmbedding(config.vocab_size, width)
        self.past_source = nn.Parameter(torch.zeros(width))
        self.encoder = _blocks(config, config.encoder_sets)
        self.encoder_norm = nn.LayerNorm(width)
        self.column_proj = nn.Linear(width, width)
        self.decoder = _blocks(config, config.decoder_sets)
        self.norm = nn.LayerNorm(width)
        self.out_proj = nn.Linear(width, width)
        self.lm_head = None if config.tie_weights else TokenEmbedding(config.vocab_size, width)
        self.lm_head_bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.dropout = nn.Dropout(config.dropout)
        self.scale = width**0.5

    def encode(
        self, source: Tensor, lengths: Tensor | None = None, attention_hook: AttentionHook | None = None
    ) -> RecurrentState:
        *_, columns = self._layers(source, lengths)
        batch = len(source)
        rows = {str(number): block.convolution.empty_cache(batch) for number, block in enumerate(self.decoder)}
        rows["position"] = torch.zeros(batch, dtype=torch.long, device=source.device)
        return RecurrentState(rows, {"columns": columns}, lengths)

    def hidden_states(self, tokens: Tensor, lengths: Tensor | None = None) -> list[Tensor]:
        """As of every model. The columns past the last token are left out."""
        return [columns[:, : tokens.shape[1]] for columns in self._layers(tokens, lengths)]

    def _layers(self, source: Tensor, lengths: Tensor | None) -> list[Tensor]:
        """The input and the output of every block; the last is projected to columns.  # (batch, columns, width) each"""
        batch, tokens = source.shape
        embed_tokens = self.embed_tokens if self.source_embed_tokens is None else self.source_embed_tokens
        columns = math.ceil(tokens * self.config.length_ratio) + self.config.length_offset
        x = embed_tokens(source) * self.scale  # (batch, tokens, width)
        x = torch.cat((x, self.past_source.expand(batch, columns - tokens, -1)), dim=1)  # (batch, columns, width)
        mask = None
        if lengths is not None:
            position = torch.arange(columns, device=source.device)
            x = torch.where((position < lengths[:, None])[..., None], x, self.past_source)
            # In double precision, as Python computes it above.
            extents = (lengths.double() * self.config.length_ratio).ceil() + self.config.length_offset  # (batch,)
            mask = position < extents[:, None]
        found = [self.dropout(x)]
        for block in self.encoder:
            found.append(block.centered(found[-1], mask))
        last = self.column_proj(self.encoder_norm(found[-1]).relu())
        return [*found[:-1], last if mask is None else last.masked_fill(~mask[..., None], 0)]

    def decode(self, tokens: Tensor, state: RecurrentState, attention_hook: AttentionHook | None = None) -> Tensor:
        position = state.rows["position"]
        columns = _columns_at(position, tokens.shape[1], state)
        x = self.dropout(self.embed_tokens(tokens) * self.scale + columns)  # (rows, tokens, width)
        rows = {"position": position + tokens.shape[1]}
        for number, block in enumerate(self.decoder):
            x, rows[str(number)] = block.causal(x, state.rows[str(number)])
        state.rows = rows
        x = self.out_proj(self.norm(x).relu())
        return (self.embed_tokens if self.lm_head is None else self.lm_head).logits(x, self.lm_head_bias)


def _blocks(config: ByteNetConfig, sets: int) -> Sequence[ByteNetBlock]:
    return module_list(
        ByteNetBlock(config.width, config.kernel, dilation, config.dropout)
        for _ in range(sets)
        for dilation in config.dilations
    )


def _columns_at(position: Tensor, tokens: int, state: RecurrentState) -> Tensor:
    """The columns of the next tokens, zeros past the last column.  position: # (rows,); gives (rows, tokens, width)"""
    columns = state.memory["columns"]  # (sources, columns, width)
    rows = torch.arange(len(position), device=position.device)[:, None]
    index = position[:, None] + torch.arange(tokens, device=position.device)  # (rows, tokens)
    taken = columns[rows // state.group, index.clamp(max=columns.shape[1] - 1)]
    return taken.masked_fill((index >= columns.shape[1])[..., None], 0)
