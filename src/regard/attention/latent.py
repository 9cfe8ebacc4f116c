"""Attention through a latent: of each token one narrow vector is kept, and all heads make their keys and values of it.

This is multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2", §2.1). A token is narrowed to a latent, which is
normalised. Every head has a way up from it to its keys and one to its values. A key turned by its position could not be
made of the latent later, so positions have a part of their own: `rotary_width` features of each head's query, and as
many of one key that all heads share. A cache holds the latent and that key, and nothing else.

The same sums can be taken in two orders:

- *naive*: make keys and values of every token for every head, then attend as usual;
- *absorbed*: q · (U c) = (Uᵀ q) · c, so the way up to the keys is folded into the query, and the way up to the values
  is left for what comes out of attention. All heads then look at one key, latent and turned part side by side, and the
  latent is its value.

With n queries and m keys, heads of h features to compare, r of them turned beside these, v values and a latent of c,
a head takes m·c·(h + v) + n·m·(h + r + v) multiplications in the first order and n·c·(h + v) + n·m·(2c + r) in the
second. Where all tokens are looked at at once (n = m), as in training, the first is cheaper for any latent wider than
the mean of h and v. A step (n = 1) would make keys and values of the whole past in the first order for one query: the
second is cheaper by about c·(h + v) / (2c + r), for DeepSeek-V2 a factor of 120. So: naive without a cache, and behind
one whichever takes fewer, which is absorbed for steps and naive for a long prompt. A step on a GPU has a kernel of its
own (`triton_latent.py`), which reads each latent once.

Pairs of turned features are n and n + rotary_width/2, as everywhere here (see `rotary.py`). DeepSeek's own weights pair
neighbours: their rows 0, 2, 4, … of each turned part (of every head's query, and of the shared key) come first in ours,
then their rows 1, 3, 5, ….
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.attention.cache import KeyValue, LayerState
from regard.attention.context import Context
from regard.attention.heads import (
    Attention,
    HeadSizes,
    OtherAttention,
    OwnAttention,
    PatternText,
    split_heads,
    width_of_heads,
)
from regard.attention.pattern import Pattern
from regard.attention.position import PositionConfig, RotaryConfig
from regard.attention.rotary import Rotary, rotate
from regard.attention.scope import Scope
from regard.attention.similarity import Dot
from regard.config import Config, ConfigError

Form = Literal["naive", "absorbed"]


class LatentConfig(Config):
    """Heads whose keys and values are all made of one latent. Widths left out follow from the model's width."""

    kind: Literal["latent"] = "latent"
    heads: int = Field(default=8, ge=1)
    latent: int = Field(ge=1)
    """How wide the vector is of which keys and values are made (DeepSeek's kv_lora_rank)."""
    query_latent: int | None = Field(default=None, ge=1)
    """How wide the vector is of which queries are made (q_lora_rank); None makes them of the token itself."""
    head_width: int | None = Field(default=None, ge=1)
    """Features of a head's queries and keys that know nothing of positions (qk_nope_head_dim)."""
    rotary_width: int = Field(default=0, ge=0)
    """Features beside those that rotary positions turn (qk_rope_head_dim); 0 where positions are not rotary."""
    value_width: int | None = Field(default=None, ge=1)
    scale: float | None = Field(default=None, gt=0)
    """What scores are multiplied by; if not given, 1 over the root of a head's whole width."""
    epsilon: float = Field(default=1e-6, gt=0)
    """Of the norms of both latents."""
    pattern: PatternText = "full"
    bias: bool = False
    """Whether the ways down to the latents and the output have one; the ways up never do."""
    dropout: float = Field(default=0.0, ge=0, lt=1)

    # What may be asked of any kind of attention, and is no choice here.
    similarity: ClassVar[Literal["latent"]] = "latent"
    output: ClassVar[bool] = True

    def sizes(self, width: int) -> HeadSizes:
        """All widths and counts for a model of this width, in the order in which every head has keys and values."""
        head_width = width_of_heads(self.heads, self.head_width, width)
        value_width = head_width if self.value_width is None else self.value_width
        return HeadSizes(self.heads, self.heads, head_width + self.rotary_width, value_width)

    def turned_width(self, width: int, position: PositionConfig) -> int:
        """How much of a head rotary positions turn."""
        rotary = isinstance(position, RotaryConfig)
        if rotary and (self.rotary_width == 0 or self.rotary_width % 2):
            raise ConfigError(
                "rotary_width",
                f"found {self.rotary_width}; rotary positions turn pairs of features, so choose an even number from 2.",
            )
        if not rotary and self.rotary_width:
            raise ConfigError(
                "rotary_width", f"found {self.rotary_width}; expected 0, for this model's positions are not rotary."
            )
        return self.rotary_width

    def cached(self, width: int) -> int:
        """How many numbers a token leaves in a layer's cache: its latent, and the key that all heads share."""
        return self.latent + self.rotary_width

    def remembered(self, width: int) -> int:
        """How many numbers a token of the source leaves there, for each projection of it: its latent."""
        return self.latent

    def self_attention(self, width: int, pattern: Pattern, rotary: Rotary | None) -> "LatentSelfAttention":
        return LatentSelfAttention(self, width, pattern, rotary)

    def cross_attention(self, width: int, shared_memory: bool = False) -> "LatentCrossAttention":
        return LatentCrossAttention(self, width, None if shared_memory else self.memory_projection(width))

    def memory_projection(self, width: int) -> "LatentProjection":
        """Makes what is kept of the encoder's output, where the decoder's positions mean nothing."""
        return LatentProjection(self, width, rotary_width=0)


@dataclass(frozen=True, eq=False)
class HeadByHead(Pattern):
    """Of rows whose queries are those of one head after another: each sees what its token may see.

    Where heads share a key, SDPA makes a copy of it for each of them. As queries of one head they look at it where it
    lies. For a token behind 2,048 others, 8 heads and a latent of 128 that is some 50 times as fast on a CPU.
    """

    scope: Scope
    heads: int
    queries: int
    """How many tokens a row has; of rows that look at the same keys, each has its heads together."""

    @classmethod
    def of(cls, scope: Scope, heads: int, queries: int) -> Scope:
        pattern = cls(scope, heads, queries)
        return pattern.over(heads * scope.queries, scope.keys, rows=scope.rows, start=0, device=scope.device)

    @property
    def rows_alike(self) -> bool:
        return self.scope.rows_alike

    def covers(self, start: int, queries: int, keys: int) -> bool:
        return self.scope.everything

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if self.scope.queries == 1:  # the heads of one token: one answer for all of them
            return self.scope.allows(row, torch.zeros_like(row), key)
        of_row = query // (self.heads * self.queries) * self.queries
        return self.scope.allows(row, of_row + query % self.queries, key)


class Narrowed(nn.Module):
    """A projection through a narrow middle, which is normalised."""

    def __init__(self, config: LatentConfig, width: int, middle: int, wide: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, middle, bias=config.bias)
        self.norm = nn.RMSNorm(middle, eps=config.epsilon)
        self.up = nn.Linear(middle, wide, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.up(self.norm(self.down(x)))
        return made


class LatentProjection(nn.Module):
    """Makes what is kept of each token: the key that is turned by its position, for all heads, and the latent."""

    def __init__(self, config: LatentConfig, width: int, rotary_width: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, config.latent, bias=config.bias)
        self.norm = nn.RMSNorm(config.latent, eps=config.epsilon)
        self.turned = nn.Linear(width, rotary_width, bias=config.bias) if rotary_width else None

    def forward(self, x: Tensor) -> KeyValue:
        """x: # (batch, keys, width); gives (batch, 1, keys, rotary width) and (batch, 1, keys, latent)"""
        latent = split_heads(self.norm(self.down(x)), 1)
        if self.turned is None:
            return latent.new_empty(*latent.shape[:3], 0), latent
        return split_heads(self.turned(x), 1), latent


class Latent(Attention):
    """The part self- and cross-attention have in common: queries, the ways up from the latent, and both orders."""

    form: Form | None = None
    """The order to take; None is naive without a cache, and behind one what takes fewer multiplications."""

    def __init__(self, config: LatentConfig, width: int, rotary_width: int) -> None:
        super().__init__()
        head_width = width_of_heads(config.heads, config.head_width, width)
        whole, value_width = head_width + rotary_width, config.sizes(width).value_width
        self.sizes = HeadSizes(config.heads, config.heads, whole, value_width)
        self.heads, self.dropout, self.kind = config.heads, config.dropout, config.similarity
        self.parts = (head_width, rotary_width)
        self.scale = whole**-0.5 if config.scale is None else config.scale
        self.query = (
            nn.Linear(width, self.heads * whole, bias=False)
            if config.query_latent is None
            else Narrowed(config, width, config.query_latent, self.heads * whole)
        )
        self.key = nn.Linear(config.latent, self.heads * head_width, bias=False)
        self.value = nn.Linear(config.latent, self.heads * value_width, bias=False)
        self.output = nn.Linear(self.heads * value_width, width, bias=config.bias)

    def similarity(self) -> Dot:
        return Dot(self.scale)

    def look(self, query: Tensor, kept: KeyValue, scope: Scope, context: Context, state: LayerState) -> Tensor:
        """What queries find in what was kept: turned keys, and latents.  # (batch, queries, width)

        query: # (batch, heads, queries, head width + rotary width), its last part turned
        """
        form = self.form
        if form is None:
            form = "absorbed" if state.own is not None and self._saves(query, kept[1]) else "naive"
        attend = self._absorbed if form == "absorbed" else self._naive
        return attend(query, kept, scope, context)

    def _saves(self, query: Tensor, latent: Tensor) -> bool:
        """Whether the absorbed order takes fewer multiplications (see the top of this file)."""
        keys, size = latent.shape[2:]
        queries = query.shape[0] * query.shape[2] // latent.shape[0]  # rows that look at the same keys count together
        head_width, rotary_width = self.parts
        made = head_width + self.sizes.value_width
        naive = keys * size * made + queries * keys * (made + rotary_width)
        return queries * size * made + queries * keys * (2 * size + rotary_width) < naive

    def _naive(self, query: Tensor, kept: KeyValue, scope: Scope, context: Context) -> Tensor:
        turned, latent = kept[0], kept[1].squeeze(1)
        key, value = split_heads(self.key(latent), self.heads), split_heads(self.value(latent), self.heads)
        key = torch.cat((key, turned.expand(-1, self.heads, -1, -1)), dim=-1)
        return self.mix(query, key, value, scope, context)

    def _absorbed(self, query: Tensor, kept: KeyValue, scope: Scope, context: Context) -> Tensor:
        turned, latent = kept
        plain, turning = query.split(self.parts, dim=-1)
        key_up, value_up = (each.weight.unflatten(0, (self.heads, -1)) for each in (self.key, self.value))
        query = torch.cat((plain @ key_up, turning), dim=-1)  # (batch, heads, queries, latent + rotary width)
        dropping = self.training and self.dropout > 0
        if context.watch is None and not dropping and _at_once(query, scope):
            from regard.attention.triton_latent import look

            seen = None if scope.everything else scope.mask()[:, 0, 0].expand(-1, latent.shape[2])
            mixed = look(query[:, :, 0], turned.squeeze(1), latent.squeeze(1), seen, self.scale)
            return self.joined(mixed[:, :, None] @ value_up.mT)
        apart = (*query.shape[:3], latent.shape[3])
        key = torch.cat((latent, turned), dim=-1)  # (batch, 1, keys, latent + rotary width)
        if context.watch is None:  # who watches wants to see the heads apart
            scope = HeadByHead.of(scope, self.heads, query.shape[2])
            query = query.flatten(1, 2)[:, None]
        mixed = self.weighed(query, key, latent, scope, context).reshape(apart)
        return self.joined(mixed @ value_up.mT)


def _at_once(query: Tensor, scope: Scope) -> bool:
    """Whether a kernel reads every latent once for all heads: for one token a row on a GPU, with nothing to learn."""
    if not query.is_cuda or query.dtype == torch.float64 or query.shape[2] != 1 or find_spec("triton") is None:
        return False
    learning = torch.is_grad_enabled() and query.requires_grad
    return not learning and (scope.everything or scope.mask().shape[2] == 1)


class LatentSelfAttention(Latent, OwnAttention):
    """Tokens look at each other, and while decoding at what the cache has kept of those before them."""

    def __init__(self, config: LatentConfig, width: int, pattern: Pattern, rotary: Rotary | None = None) -> None:
        super().__init__(config, width, config.rotary_width)
        self.source = LatentProjection(config, width, config.rotary_width)
        self.pattern, self.rotary, self.cached = pattern, rotary, config.cached(width)

    def forward(self, x: Tensor, context: Context, state: LayerState) -> Tensor:
        """x: # (batch, queries, width)"""
        query = split_heads(self.query(x), self.heads)
        if self.rotary is not None:
            plain, turning = query.split(self.parts, dim=-1)
            query = torch.cat((plain, rotate(turning, context.rotation(self.rotary))), dim=-1)
        turned, latent = self.source(x)
        turned, latent, scope = self.keep(turned, latent, context, state)
        return self.look(query, (turned, latent), scope, context, state)


class LatentCrossAttention(Latent, OtherAttention):
    """Tokens look at the encoder's output, whose latents were made once."""

    source: LatentProjection | None

    def __init__(self, config: LatentConfig, width: int, source: LatentProjection | None) -> None:
        super().__init__(config, width, rotary_width=0)
        self.source = source

    def forward(self, x: Tensor, context: Context, state: LayerState) -> Tensor:
        """x: # (batch, queries, width)"""
        assert state.memory is not None
        latent = state.memory[1]
        scope = context.other(latent.shape[0], latent.shape[2])
        return self.look(split_heads(self.query(x), self.heads), state.memory, scope, context, state)
