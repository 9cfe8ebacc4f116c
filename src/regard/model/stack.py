"""Blocks on top of each other: the encoder, the decoder, and the one stack of a language model.

A stack can be told to recompute: of each layer only what enters it is kept for the way back, and the inside is computed
again there (Chen et al. 2016). That takes less memory for about a third more work, and gives the same numbers.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from regard.attention import Causal, Context, LayerState, read_pattern
from regard.attention.cache import KeyValue
from regard.attention.heads import Attention, HeadsConfig, OtherAttention, OwnAttention
from regard.attention.kinds import AnyAttention
from regard.attention.position import PositionConfig
from regard.config import Config, ConfigError
from regard.model.block import ORDERS, Block, NormConfig, Order
from regard.model.experts import Products
from regard.model.feed_forward import AnyFeedForward, FeedForwardConfig

Part = TypeVar("Part", bound=nn.Module)
Made = TypeVar("Made")


class FirstConfig(Config):
    """The first layers of a stack, where their feed-forward is another than that of the layers behind them."""

    layers: int = Field(default=1, ge=1)
    """How many they are."""
    feed_forward: AnyFeedForward


class StackConfig(Config):
    """What one stack is made of. The numbers left out are those of the paper's base model."""

    layers: int = Field(default=6, ge=1)
    """How many there are, the first ones included."""
    attention: AnyAttention = HeadsConfig()
    feed_forward: AnyFeedForward = FeedForwardConfig()
    """That of every layer, or of every layer behind the `first`."""
    first: FirstConfig | None = None
    """Layers that begin the stack with a feed-forward of their own, as DeepSeek's do before its experts."""
    order: Order = "pre"
    norm: NormConfig = NormConfig()
    dropout: float = Field(default=0.1, ge=0, lt=1)

    @model_validator(mode="after")
    def _others_follow(self) -> Self:
        if self.first is not None and self.first.layers >= self.layers:
            raise ConfigError(
                "first.layers",
                f"found {self.first.layers}; expected fewer than layers ({self.layers}). Where all of them have the "
                "same feed-forward, leave out first.",
            )
        return self

    @property
    def feed_forwards(self) -> list[AnyFeedForward]:
        """The feed-forward of each layer, from the first to the last."""
        first = [] if self.first is None else [self.first.feed_forward] * self.first.layers
        return first + [self.feed_forward] * (self.layers - len(first))


class Stack(nn.Module):
    """`layers` blocks, and a last norm where the blocks leave their sum unnormalised (pre-norm).

    causal: nothing later is seen. memory: None without an encoder to look at, "layer" where every layer projects the
    encoder's output for itself, "shared" where one projection serves them all.
    """

    recomputes = False
    """Whether the inside of a layer is computed again on the way back."""

    def __init__(
        self, config: StackConfig, width: int, position: PositionConfig, *, causal: bool, memory: str | None = None
    ) -> None:
        super().__init__()
        attention = config.attention
        rotary = position.rotary(attention.turned_width(width, position))
        seen = read_pattern(attention.pattern)
        pattern = Causal() & seen if causal else seen

        def wrapped(function: nn.Module) -> nn.Module:
            return ORDERS[config.order](function, config.norm.build(width), config.dropout)

        def block(feed_forward: AnyFeedForward) -> Block:
            parts = {"attention": wrapped(attention.self_attention(width, pattern, rotary))}
            if memory is not None:
                parts["cross"] = wrapped(attention.cross_attention(width, shared_memory=memory == "shared"))
            return Block({**parts, "feed_forward": wrapped(feed_forward.build(width))})

        self.blocks = nn.ModuleList(map(block, config.feed_forwards))
        self.memory: Any = attention.memory_projection(width) if memory == "shared" else None
        self.norm = nn.Identity() if config.order == "post" else config.norm.build(width)
        _initialise(self, residual_gain=(2 * config.layers) ** -0.5 if config.order == "pre" else 1.0)

    def forward(self, x: Tensor, context: Context, states: list[LayerState]) -> Tensor:
        """x: # (batch, tokens, width)"""
        # What someone watches, or writes into a cache, is computed once.
        once = not self.recomputes or context.watch is not None or any(state.own is not None for state in states)
        for block, state in zip(self.blocks, states, strict=True):
            if once:
                x = block(x, context, state)
            else:
                x = recomputed(partial(block, context=context, state=state), [block], x, draws=draws(block))
        normed: Tensor = self.norm(x)
        return normed

    def recomputing(self) -> Self:
        """A twin that recomputes. It shares everything else."""
        twin = copy.copy(self)
        twin.recomputes = True
        return twin

    def remember(self, memory: Tensor) -> list[KeyValue]:
        """Keys and values of the encoder's output for each layer, made once.  memory: # (batch, keys, width)"""
        if self.memory is not None:
            shared: KeyValue = self.memory(memory)
            return [shared] * len(self.blocks)
        sources = [_part(block, "cross", OtherAttention).source for block in self.blocks]
        return [source(memory) for source in sources if source is not None]

    def states(self, memory: Tensor | None = None, capacity: int | None = None) -> list[LayerState]:
        """A state for each layer: room for `capacity` positions of its own past, if given, and the memory."""
        remembered = self.remember(memory) if memory is not None else [None] * len(self.blocks)
        stores = [None if capacity is None else each.store(capacity) for each in self.attention()]
        return [LayerState(own, pair) for own, pair in zip(stores, remembered, strict=True)]

    def attention(self) -> list[OwnAttention]:
        """Every layer's attention to its own tokens."""
        return [_part(block, "attention", OwnAttention) for block in self.blocks]


def recomputed(function: Callable[[Tensor], Made], parts: Sequence[nn.Module], x: Tensor, *, draws: bool) -> Made:
    """function(x), of which only x is kept for the way back.

    parts: the modules whose weights the function takes. It is given the weights of this moment again: those of another
        precision are put in place for a pass only (`functional_call`), and are gone on the way back.
    draws: chance comes from PyTorch's generator, which is put back to where it was. That is impossible while a CUDA
        graph is recorded, so there all is kept.
    """
    if not torch.is_grad_enabled() or (draws and x.is_cuda and torch.cuda.is_current_stream_capturing()):
        return function(x)
    again = _Function(function, parts)
    weights: dict[str, Tensor] = dict(again.named_parameters())

    def with_weights(x: Tensor) -> Made:
        made: Made = functional_call(again, weights, (x,))
        return made

    given: Made = checkpoint(with_weights, x, use_reentrant=False, preserve_rng_state=draws)
    return given


def recomputed_pair(
    layer: Callable[[Tensor, Tensor], Made],
    ready_from: Callable[[Tensor], Tensor],
    parts: Sequence[nn.Module],
    x: Tensor,
    ready: Tensor,
    *,
    draws: bool,
) -> Made:
    """layer(x, ready), of which only x is kept: what was made ready of it for the layer is made again."""
    passing, needs_slope = [ready], ready.requires_grad

    def of_sum(x: Tensor) -> Made:
        if passing:
            return layer(x, passing.pop())
        with torch.no_grad():  # gradients flow as they would have: here only its numbers count
            made = ready_from(x).detach()
        return layer(x, made.requires_grad_(needs_slope))

    return recomputed(of_sum, parts, x, draws=draws)


def draws(module: nn.Module) -> bool:
    """Whether a module that trains draws from PyTorch's generator: whether it has any dropout."""
    return any(
        part.p > 0 if isinstance(part, nn.Dropout) else isinstance(part, Attention) and part.dropout > 0
        for part in module.modules()
    )


def check_stack(name: str, config: StackConfig, width: int, position: PositionConfig) -> None:
    """Refuse, naming the key, what cannot be built at this width."""
    try:
        config.attention.sizes(width)
        turned = config.attention.turned_width(width, position)
    except ConfigError as error:
        raise ConfigError(f"{name}.attention.{error.key}", error.problem) from None
    try:
        position.token_width(width)
        position.rotary(turned)
    except ConfigError as error:
        raise ConfigError(f"position.{error.key}", error.problem) from None


def _part(block: nn.Module, name: str, kind: type[Part]) -> Part:
    """What a named sublayer of a block computes."""
    assert isinstance(block, Block)
    function = block[name].function
    assert isinstance(function, kind)
    return function


class _Function(nn.Module):
    """A function and the modules whose weights it takes."""

    def __init__(self, function: Callable[..., Any], parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self._function = [function]  # not as a part, should it be a module

    def forward(self, x: Tensor) -> Any:
        return self._function[0](x)


def _initialise(stack: Stack, residual_gain: float) -> None:
    """Glorot's uniform weights, zero biases; what joins the residual sum starts smaller the deeper the stack."""
    for name, module in stack.named_modules():
        gain = residual_gain if name.endswith((".output", ".narrow")) else 1.0
        if isinstance(module, Products):
            module.initialise(gain)
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight, gain=gain)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
