"""A convolutional encoder–decoder with attention in every decoder layer (ConvS2S; Gehring et al. 2017).

All tokens are computed at once, as in the Transformer, but a token sees its neighbors only: L layers of kernel k reach
1 + L(k − 1) tokens. Embeddings carry learned positions. Every layer is a gated convolution with a residual connection,
every sum of two terms is multiplied by √½ to preserve its variance, and all linear maps are weight-normalized: that
takes the place of layer norm. Attention adds the target's embedding to its query, and the source's embeddings to its
values, so that attention sees both the word and its context (§3.3); the encoder, which receives a gradient from each of
these attention layers, scales it down (§3.5).
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.attention.context import AttentionHook
from regard.attention.positions.absolute import Learned
from regard.model.before.base import AlignmentModule, Dropout, Seq2SeqConfig, SequenceToSequence
from regard.model.before.convolutional.layers import GatedConvolution, WeightNormLinear, module_list, scale_gradient
from regard.model.before.state import RecurrentState
from regard.model.embedding import TokenEmbedding

_HALF = 0.5**0.5


class ConvolutionalConfig(Seq2SeqConfig):
    """A convolutional encoder–decoder. The defaults are those of the paper's kind for small data sets (IWSLT)."""

    kind: Literal["convolutional"] = "convolutional"
    width: int = Field(default=256, ge=1, le=1_000_000)
    """The width of embeddings, and of attention."""
    hidden: int | None = Field(default=None, ge=1, le=1_000_000)
    """The channels of the convolutions; if not given, as many as `width`."""
    encoder_layers: int = Field(default=4, ge=1, le=10_000)
    """The number of convolutions of the encoder."""
    decoder_layers: int = Field(default=3, ge=1, le=10_000)
    """The number of convolutions of the decoder, each followed by attention."""
    kernel: int = Field(default=3, ge=1, le=1_000)
    """The tokens that a convolution sees."""
    max_length: int = Field(default=1024, ge=1, le=10_000_000)
    """The longest source and the longest target, in tokens: the number of learned positions."""
    dropout: float = Dropout
    """The dropout probability of embeddings, of the input of each convolution and of the output projection's input."""
    tie_weights: bool = True
    """Whether the target's token embedding is also the output projection (`lm_head`)."""

    @property
    def channels(self) -> int:
        return self.hidden or self.width

    @property
    def decoder_receptive_field(self) -> int:
        """The number of target tokens that a prediction depends on."""
        return 1 + self.decoder_layers * (self.kernel - 1)

    @property
    def encoder_receptive_field(self) -> int:
        """The number of source tokens that an output of the encoder depends on."""
        return 1 + self.encoder_layers * (self.kernel - 1)

    def build(self) -> "Convolutional":
        return Convolutional(self)


class ConvolutionalEncoder(nn.Module):
    """Gated convolutions over the whole source."""

    def __init__(self, config: ConvolutionalConfig) -> None:
        super().__init__()
        width, channels, dropout = config.width, config.channels, config.dropout
        self.in_proj = WeightNormLinear(width, channels, dropout)
        self.convolutions = module_list(
            GatedConvolution(channels, channels, config.kernel, dropout=dropout) for _ in range(config.encoder_layers)
        )
        self.out_proj = WeightNormLinear(channels, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, embedded: Tensor, mask: Tensor | None) -> Tensor:
        """embedded: # (batch, tokens, width); mask: # (batch, tokens); gives (batch, tokens, width)"""
        return self.hidden_states(embedded, mask)[-1]

    def hidden_states(self, embedded: Tensor, mask: Tensor | None) -> list[Tensor]:
        """The output of every layer; the last is projected to (batch, tokens, width).

        embedded: # (batch, tokens, width); mask: # (batch, tokens); gives (batch, tokens, channels) each
        """
        found = [self.in_proj(embedded)]
        for convolution in self.convolutions:
            x = found[-1]
            found.append((convolution.centered(self.dropout(x), mask) + x) * _HALF)
        return [*found[1:-1], self.out_proj(found[-1])]


class ConvolutionalAttention(AlignmentModule):
    """Dot-product attention from a decoder layer to the source."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.q_proj = WeightNormLinear(channels, width)
        self.o_proj = WeightNormLinear(width, channels)

    def forward(self, x: Tensor, embedded: Tensor, state: RecurrentState, hook: AttentionHook | None) -> Tensor:
        """x: # (rows, tokens, channels); embedded: # (rows, tokens, width), the target's; gives the shape of x"""
        key, value = state.memory["key"], state.memory["value"]  # (sources, keys, width)
        rows, tokens, width = embedded.shape
        query = ((self.q_proj(x) + embedded) * _HALF).reshape(state.sources, -1, width)  # (sources, queries, width)
        scores = query @ key.transpose(1, 2)  # (sources, queries, keys)
        mask, lengths = state.memory_mask(key.shape[1]), state.memory_lengths
        if mask is not None:  # the lowest number, not −∞, so that an unused row of no tokens is no NaN
            scores = scores.masked_fill(~mask[:, None], torch.finfo(scores.dtype).min)
        weights = scores.softmax(dim=-1)
        if hook is not None:
            hook(self, weights.reshape(rows, 1, tokens, -1))
        context = (weights @ value).view(rows, tokens, width)
        # An average of m values has a variance of about 1/m of theirs: times m · √(1/m) = √m it is theirs again.
        if lengths is None:
            context = context * key.shape[1] ** 0.5
        else:
            scale = lengths.to(context.dtype).sqrt().repeat_interleave(state.group, output_size=rows)  # (rows,)
            context = context * scale[:, None, None]
        output: Tensor = (self.o_proj(context) + x) * _HALF
        return output


class ConvolutionalDecoderLayer(nn.Module):
    """A causal convolution, attention, and a residual connection around both."""

    def __init__(self, config: ConvolutionalConfig) -> None:
        super().__init__()
        channels = config.channels
        self.convolution = GatedConvolution(channels, channels, config.kernel, dropout=config.dropout)
        self.cross_attn = ConvolutionalAttention(channels, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Tensor, embedded: Tensor, cache: Tensor, state: RecurrentState, hook: AttentionHook | None
    ) -> tuple[Tensor, Tensor]:
        """x: # (rows, tokens, channels); cache: # (rows, span, channels); gives x and the next cache"""
        convolved, cache = self.convolution.causal(self.dropout(x), cache)
        return (self.cross_attn(convolved, embedded, state, hook) + x) * _HALF, cache


class Convolutional(SequenceToSequence):
    """Encodes a source at once, and computes the logits of the next target token from the tokens before it."""

    max_positions_key = "model.max_length"

    def __init__(self, config: ConvolutionalConfig) -> None:
        super().__init__()
        self.config: ConvolutionalConfig = config
        width, channels, dropout = config.width, config.channels, config.dropout
        self.source_embed_tokens = self.source_embedding_of(config, width)
        self.source_embed_positions = Learned(width, config.max_length)
        self.encoder = ConvolutionalEncoder(config)
        self.embed_tokens = TokenEmbedding(config.vocab_size, width)
        self.embed_positions = Learned(width, config.max_length)
        self.in_proj = WeightNormLinear(width, channels, dropout)
        self.layers = module_list(ConvolutionalDecoderLayer(config) for _ in range(config.decoder_layers))
        self.out_proj = WeightNormLinear(channels, width)
        self.lm_head = None if config.tie_weights else WeightNormLinear(width, config.vocab_size, dropout)
        self.lm_head_bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.tie_weights else None
        self.dropout = nn.Dropout(dropout)
        for module in self.modules():
            if isinstance(module, TokenEmbedding | Learned):
                nn.init.normal_(module.weight, 0, 0.1)

    @property
    def max_positions(self) -> int:
        return self.config.max_length

    @property
    def max_source_positions(self) -> int:
        return self.config.max_length

    def encode(
        self, source: Tensor, lengths: Tensor | None = None, attention_hook: AttentionHook | None = None
    ) -> RecurrentState:
        embedded, *_, encoded = self.hidden_states(source, lengths)
        encoded = scale_gradient(encoded, 1 / (2 * len(self.layers)))  # (batch, tokens, width)
        rows = {str(number): layer.convolution.empty_cache(len(source)) for number, layer in enumerate(self.layers)}
        rows["position"] = torch.zeros(len(source), dtype=torch.long, device=source.device)
        return RecurrentState(rows, {"key": encoded, "value": (encoded + embedded) * _HALF}, lengths)

    def hidden_states(self, tokens: Tensor, lengths: Tensor | None = None) -> list[Tensor]:
        embed_tokens = self.embed_tokens if self.source_embed_tokens is None else self.source_embed_tokens
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        embedded = self.dropout(embed_tokens(tokens) + self.source_embed_positions.encode(positions, lengths))
        return [
            embedded,
            *self.encoder.hidden_states(embedded, None if lengths is None else positions < lengths[:, None]),
        ]

    def decode(self, tokens: Tensor, state: RecurrentState, attention_hook: AttentionHook | None = None) -> Tensor:
        positions = state.rows["position"][:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        embedded = self.dropout(self.embed_tokens(tokens) + self.embed_positions.encode(positions))
        x = self.in_proj(embedded)  # (rows, tokens, channels)
        rows = {"position": state.rows["position"] + tokens.shape[1]}
        for number, layer in enumerate(self.layers):
            x, rows[str(number)] = layer(x, embedded, state.rows[str(number)], state, attention_hook)
        state.rows = rows
        x = self.dropout(self.out_proj(x))  # (rows, tokens, width)
        if self.lm_head is None:
            return self.embed_tokens.logits(x, self.lm_head_bias)
        logits: Tensor = self.lm_head(x)
        return logits
