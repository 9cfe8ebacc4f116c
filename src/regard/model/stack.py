"""Blocks on top of each other: the encoder, the decoder, and the one stack of a language model."""

from typing import TypeVar

from pydantic import Field
from torch import Tensor, nn

from regard.attention import Causal, Context, LayerState, read_pattern
from regard.attention.cache import KeyValue
from regard.attention.heads import AnyAttention, CrossAttention, HeadsConfig, SelfAttention
from regard.attention.position import PositionConfig
from regard.config import Config, ConfigError
from regard.model.block import ORDERS, Block, NormConfig, Order
from regard.model.feed_forward import AnyFeedForward, FeedForwardConfig

Part = TypeVar("Part", bound=nn.Module)


class StackConfig(Config):
    """What one stack is made of. The numbers left out are those of the paper's base model."""

    layers: int = Field(default=6, ge=1)
    attention: AnyAttention = HeadsConfig()
    feed_forward: AnyFeedForward = FeedForwardConfig()
    order: Order = "pre"
    norm: NormConfig = NormConfig()
    dropout: float = Field(default=0.1, ge=0, lt=1)


class Stack(nn.Module):
    """`layers` blocks, and a last norm where the blocks leave their sum unnormalised (pre-norm).

    causal: nothing later is seen. memory: None without an encoder to look at, "layer" where every layer projects the
    encoder's output for itself, "shared" where one projection serves them all.
    """

    def __init__(
        self, config: StackConfig, width: int, position: PositionConfig, *, causal: bool, memory: str | None = None
    ) -> None:
        super().__init__()
        attention = config.attention
        rotary = position.rotary(attention.sizes(width).head_width)
        seen = read_pattern(attention.pattern)
        pattern = Causal() & seen if causal else seen

        def wrapped(function: nn.Module) -> nn.Module:
            return ORDERS[config.order](function, config.norm.build(width), config.dropout)

        def block() -> Block:
            parts = {"attention": wrapped(attention.self_attention(width, pattern, rotary))}
            if memory is not None:
                parts["cross"] = wrapped(attention.cross_attention(width, shared_memory=memory == "shared"))
            return Block({**parts, "feed_forward": wrapped(config.feed_forward.build(width))})

        self.blocks = nn.ModuleList(block() for _ in range(config.layers))
        self.memory = attention.memory_projection(width) if memory == "shared" else None
        self.norm = nn.Identity() if config.order == "post" else config.norm.build(width)
        _initialise(self, residual_gain=(2 * config.layers) ** -0.5 if config.order == "pre" else 1.0)

    def forward(self, x: Tensor, context: Context, states: list[LayerState]) -> Tensor:
        """x: # (batch, tokens, width)"""
        for block, state in zip(self.blocks, states, strict=True):
            x = block(x, context, state)
        normed: Tensor = self.norm(x)
        return normed

    def remember(self, memory: Tensor) -> list[KeyValue]:
        """Keys and values of the encoder's output for each layer, made once.  memory: # (batch, keys, width)"""
        if self.memory is not None:
            shared: KeyValue = self.memory(memory)
            return [shared] * len(self.blocks)
        sources = [_part(block, "cross", CrossAttention).source for block in self.blocks]
        return [source(memory) for source in sources if source is not None]

    def states(self, memory: Tensor | None = None, capacity: int | None = None) -> list[LayerState]:
        """A state for each layer: room for `capacity` positions of its own past, if given, and the memory."""
        remembered = self.remember(memory) if memory is not None else [None] * len(self.blocks)
        stores = [None if capacity is None else each.store(capacity) for each in self.attention()]
        return [LayerState(own, pair) for own, pair in zip(stores, remembered, strict=True)]

    def attention(self) -> list[SelfAttention]:
        """Every layer's attention to its own tokens."""
        return [_part(block, "attention", SelfAttention) for block in self.blocks]


def check_stack(name: str, config: StackConfig, width: int, position: PositionConfig) -> None:
    """Refuse, naming the key, what cannot be built at this width."""
    try:
        sizes = config.attention.sizes(width)
    except ConfigError as error:
        raise ConfigError(f"{name}.attention.{error.key}", error.problem) from None
    try:
        position.token_width(width)
        position.rotary(sizes.head_width)
    except ConfigError as error:
        raise ConfigError(f"position.{error.key}", error.problem) from None


def _part(block: nn.Module, name: str, kind: type[Part]) -> Part:
    """What a named sublayer of a block computes."""
    assert isinstance(block, Block)
    function = block[name].function
    assert isinstance(function, kind)
    return function


def _initialise(stack: Stack, residual_gain: float) -> None:
    """Glorot's uniform weights, zero biases; what joins the residual sum starts smaller the deeper the stack."""
    for name, module in stack.named_modules():
        if isinstance(module, nn.Linear):
            ends_sublayer = name.endswith((".output", ".narrow"))
            nn.init.xavier_uniform_(module.weight, gain=residual_gain if ends_sublayer else 1.0)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
