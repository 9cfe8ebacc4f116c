"""A stack of blocks: an encoder, a decoder, or the stack of a language model.

A block is a list of sublayers, each with a norm and a residual connection around it. Encoder, decoder and language
model differ in their lists of sublayers, not in their classes. A sublayer's function is any module called with
(x, context, state): attention, feed-forward. Where the norm stands is the class of the block: before the function
(pre-norm, Xiong et al. 2020), after the residual sum (post-norm, Vaswani et al. 2017), or before the function with no
residual at all, which shows what the residual connection is good for.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, Self, cast

from pydantic import Discriminator, Field, Tag, model_validator
from torch import Tensor, nn

from regard.attention import Causal, Context, LayerState, read_pattern
from regard.attention.kv_cache import KeyValue
from regard.attention.latent import LatentAttentionConfig
from regard.attention.multi_head import Attention, CrossAttentionBase, MultiHeadConfig, SelfAttentionBase
from regard.attention.positions.config import PositionConfig
from regard.config import Config, ConfigError
from regard.model.activation_checkpointing import checkpointed, has_dropout
from regard.model.feed_forward import FeedForward, FeedForwardConfig, NoFeedForwardConfig
from regard.model.mixture_of_experts import Experts, GroupedLinear, MixtureOfExpertsConfig


class NormConfig(Config):
    """Layer normalization, or its simpler form that neither centers nor shifts (RMSNorm, Zhang & Sennrich 2019)."""

    kind: Literal["layer", "rms"] = "layer"
    """The kind of norm. layer: layer normalization. rms: RMSNorm."""
    eps: float = Field(default=1e-5, gt=0, le=1)
    """Added to the variance, so that nothing is divided by zero."""
    bias: bool = True
    """Whether layer normalization has a bias; RMSNorm has none."""

    def build(self, width: int) -> nn.Module:
        if self.kind == "rms":
            return nn.RMSNorm(width, eps=self.eps)
        return nn.LayerNorm(width, eps=self.eps, bias=self.bias)


class Sublayer(NamedTuple):
    """A function, its norm, and the dropout on its output."""

    function: nn.Module
    norm: nn.Module
    dropout: nn.Dropout


class Block(nn.Module):
    """One layer: its sublayers in order.

    A sublayer's modules are attributes of the block under flat names: the function `self_attn`, its norm
    `self_attn_norm` and its dropout `self_attn_dropout`.
    """

    def __init__(self, functions: Mapping[str, nn.Module], norm: NormConfig, width: int, dropout: float) -> None:
        super().__init__()
        self.names = tuple(functions)
        for name, function in functions.items():
            self.add_module(name, function)
            self.add_module(f"{name}_norm", norm.build(width))
            self.add_module(f"{name}_dropout", nn.Dropout(dropout))

    @property
    def sublayers(self) -> list[Sublayer]:
        parts = cast(dict[str, nn.Module], self._modules)
        return [
            Sublayer(parts[name], parts[f"{name}_norm"], cast(nn.Dropout, parts[f"{name}_dropout"]))
            for name in self.names
        ]

    def forward(self, x: Tensor, context: Context, state: LayerState) -> Tensor:
        """x: # (batch, tokens, width)"""
        for sublayer in self.sublayers:
            x = self.apply_sublayer(sublayer, x, context, state)
        return x

    def apply_sublayer(self, sublayer: Sublayer, x: Tensor, context: Context, state: LayerState) -> Tensor:
        raise NotImplementedError


class PreNormBlock(Block):
    """x + f(norm(x)): gradients reach every layer through the sum alone."""

    def apply_sublayer(self, sublayer: Sublayer, x: Tensor, context: Context, state: LayerState) -> Tensor:
        function, norm, dropout = sublayer
        output: Tensor = x + dropout(function(norm(x), context, state))
        return output


class PostNormBlock(Block):
    """norm(x + f(x)): the paper's order; dropout is applied to f(x) before it is added (§5.4)."""

    def apply_sublayer(self, sublayer: Sublayer, x: Tensor, context: Context, state: LayerState) -> Tensor:
        function, norm, dropout = sublayer
        output: Tensor = norm(x + dropout(function(x, context, state)))
        return output


class NoResidualBlock(Block):
    """f(norm(x)) alone."""

    def apply_sublayer(self, sublayer: Sublayer, x: Tensor, context: Context, state: LayerState) -> Tensor:
        function, norm, dropout = sublayer
        output: Tensor = dropout(function(norm(x), context, state))
        return output


def block_kind(norm_position: str, residual: bool) -> type[Block]:
    """The class of block for a norm position ("pre" or "post"), with or without residual connections."""
    if not residual:
        return NoResidualBlock
    return PreNormBlock if norm_position == "pre" else PostNormBlock


def _kind(default: str) -> Callable[[Any], str]:
    """Reads the `kind` of a config, or of the plain data for one; the default where none is named."""

    def read(values: Any) -> str:
        kind = values.get("kind", default) if isinstance(values, Mapping) else getattr(values, "kind", default)
        return kind if isinstance(kind, str) else repr(kind)

    return read


AnyAttention = Annotated[
    Annotated[MultiHeadConfig, Tag("multi_head")] | Annotated[LatentAttentionConfig, Tag("latent")],
    Discriminator(_kind("multi_head")),
]
"""Every kind of attention; `kind` selects the class."""

AnyFeedForward = Annotated[
    Annotated[FeedForwardConfig, Tag("dense")]
    | Annotated[MixtureOfExpertsConfig, Tag("moe")]
    | Annotated[NoFeedForwardConfig, Tag("none")],
    Discriminator(_kind("dense")),
]
"""Every kind of feed-forward; `kind` selects the class."""


class DensePrefixConfig(Config):
    """The first layers of a stack, where their feed-forward differs from that of the layers after them."""

    layers: int = Field(default=1, ge=1, le=1_000)
    """The number of first layers."""
    feed_forward: AnyFeedForward
    """Their feed-forward network."""


class StackConfig(Config):
    """A stack of layers. The defaults are those of the paper's base model, but pre-norm."""

    layers: int = Field(default=6, ge=1, le=1_000)
    """The number of layers, including those of `dense_prefix`."""
    attention: AnyAttention = MultiHeadConfig()
    """The attention of every layer; in a decoder with an encoder, also the cross-attention."""
    feed_forward: AnyFeedForward = FeedForwardConfig()
    """The feed-forward network of every layer after `dense_prefix`."""
    dense_prefix: DensePrefixConfig | None = None
    """First layers with another feed-forward, such as DeepSeek's dense layers before those with experts."""
    norm_position: Literal["pre", "post"] = "pre"
    """Whether each sublayer normalizes its input (pre-norm) or the residual sum after it (post-norm)."""
    residual: bool = True
    """Whether sublayers have residual connections; without them the norm comes before each sublayer."""
    norm: NormConfig = NormConfig()
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """The dropout probability of each sublayer's output, before it is added to the residual stream."""

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        if not self.residual and self.norm_position == "post":
            raise ConfigError("residual", "found false; post-norm normalizes the residual sum, so choose pre-norm.")
        if self.dense_prefix is not None and self.dense_prefix.layers >= self.layers:
            raise ConfigError(
                "dense_prefix.layers",
                f"found {self.dense_prefix.layers}; expected fewer than layers ({self.layers}). "
                "If all layers have the same feed-forward, leave out dense_prefix.",
            )
        return self

    @property
    def feed_forwards(self) -> list[AnyFeedForward]:
        """The feed-forward of each layer, from the first to the last."""
        first = [] if self.dense_prefix is None else [self.dense_prefix.feed_forward] * self.dense_prefix.layers
        return first + [self.feed_forward] * (self.layers - len(first))


class Stack(nn.Module):
    """A number of blocks, and a final norm where the residual sum is not normalized (pre-norm).

    causal: no token attends to a later one. cross_kv: None without cross-attention; "per_layer" where each layer
    projects the encoder's output to keys and values, "shared" where one projection serves all layers.
    """

    uses_checkpointing = False
    """Whether activations are recomputed during the backward pass."""

    def __init__(
        self, config: StackConfig, width: int, position: PositionConfig, *, causal: bool, cross_kv: str | None = None
    ) -> None:
        super().__init__()
        attention = config.attention
        rotary = position.rotary(attention.rope_dim(width, position))
        pattern = read_pattern(attention.pattern)
        if causal:
            pattern = Causal() & pattern

        def layer(feed_forward: AnyFeedForward) -> Block:
            functions: dict[str, nn.Module] = {"self_attn": attention.self_attention(width, pattern, rotary)}
            if cross_kv is not None:
                functions["cross_attn"] = attention.cross_attention(width, shared_kv=cross_kv == "shared")
            if not isinstance(feed_forward, NoFeedForwardConfig):
                functions["feed_forward"] = feed_forward.build(width)
            return block_kind(config.norm_position, config.residual)(functions, config.norm, width, config.dropout)

        self.layers = nn.ModuleList(map(layer, config.feed_forwards))
        self.cross_kv = attention.kv_projection(width) if cross_kv == "shared" else None
        self.final_norm = nn.Identity() if config.norm_position == "post" else config.norm.build(width)
        _initialize(
            self,
            residual_gain=(2 * config.layers) ** -0.5 if config.norm_position == "pre" and config.residual else 1.0,
        )

    def forward(self, x: Tensor, context: Context, states: list[LayerState]) -> Tensor:
        """x: # (batch, tokens, width)"""
        # With a hook or a KV cache a layer must run once only.
        recomputes = (
            self.uses_checkpointing
            and context.attention_hook is None
            and all(state.self_kv is None for state in states)
        )
        for layer, state in zip(self.layers, states, strict=True):
            if recomputes:
                run = partial(layer, context=context, state=state)
                x = checkpointed(run, [layer], x, preserve_rng=has_dropout(layer))
            else:
                x = layer(x, context, state)
        normed: Tensor = self.final_norm(x)
        return normed

    def hidden_states(self, x: Tensor, context: Context) -> list[Tensor]:
        """The input, and the output of every layer; the last includes the final norm, as in Hugging Face's models.

        x: # (batch, tokens, width)
        """
        found = [x]
        for layer, state in zip(self.layers, self.states(), strict=True):
            found.append(layer(found[-1], context, state))
        return [*found[:-1], self.final_norm(found[-1])]

    def with_checkpointing(self) -> Self:
        """The same stack, sharing all modules, with activation checkpointing."""
        copied = copy.copy(self)
        copied.uses_checkpointing = True
        return copied

    def project_memory(self, memory: Tensor) -> list[KeyValue]:
        """Each layer's keys and values of the encoder's output.  memory: # (batch, keys, width)"""
        if self.cross_kv is not None:
            shared: KeyValue = self.cross_kv(memory)
            return [shared] * len(self.layers)
        return [attention.project_kv(memory) for attention in self.cross_attention()]

    def states(self, memory: Tensor | None = None, capacity: int | None = None) -> list[LayerState]:
        """Each layer's state: a KV buffer of `capacity` positions, and the keys and values of the encoder's output."""
        cross_kv = self.project_memory(memory) if memory is not None else [None] * len(self.layers)
        self_kv = [None if capacity is None else each.new_buffer(capacity) for each in self.self_attention()]
        return [LayerState(*pair) for pair in zip(self_kv, cross_kv, strict=True)]

    def self_attention(self) -> list[SelfAttentionBase]:
        """Each layer's self-attention."""
        return [module for module in self._functions() if isinstance(module, SelfAttentionBase)]

    def cross_attention(self) -> list[CrossAttentionBase]:
        """Each layer's cross-attention; empty in a stack without."""
        return [module for module in self._functions() if isinstance(module, CrossAttentionBase)]

    def blocks(self) -> list[Block]:
        return [layer for layer in self.layers if isinstance(layer, Block)]

    def _functions(self) -> Iterator[nn.Module]:
        return (sublayer.function for block in self.blocks() for sublayer in block.sublayers)


def check_stack(name: str, config: StackConfig, width: int, position: PositionConfig) -> None:
    """Raise an error that names the key if the stack cannot be built at this width."""
    try:
        config.attention.sizes(width)
        rope_dim = config.attention.rope_dim(width, position)
    except ConfigError as error:
        raise ConfigError(f"{name}.attention.{error.key}", error.problem) from None
    try:
        position.token_width(width)
        position.rotary(rope_dim)
    except ConfigError as error:
        raise ConfigError(f"position.{error.key}", error.problem) from None


def _initialize(stack: Stack, residual_gain: float) -> None:
    """Glorot-uniform weights and zero biases; `residual_gain` scales the last projection of each sublayer."""
    output_projections: set[nn.Module] = set()
    for module in stack.modules():
        if isinstance(module, Attention):
            output_projections.add(module.o_proj)
        elif isinstance(module, FeedForward | Experts):
            output_projections.add(module.down_proj)
    for module in stack.modules():
        gain = residual_gain if module in output_projections else 1.0
        if isinstance(module, GroupedLinear):
            module.initialize(gain)
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight, gain=gain)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
