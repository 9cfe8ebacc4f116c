"""The configs of positional encodings.

A scheme enters a model in one of two places: `build` gives the encoding that is combined with the embeddings, `rotary`
the rotation of queries and keys in attention. Each scheme uses one of them, or neither.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field

from regard.attention.positions.absolute import Binary, Concatenated, Index, Learned, Normalized, Position, Sinusoidal
from regard.attention.positions.rotary import AnyScaling, Rotary
from regard.config import Config, ConfigError


class PositionConfig(Config):
    """The base class has no positions at all: the model sees a set (or, if causal, a growing set)."""

    @property
    def needs_length(self) -> bool:
        """Whether the encoding depends on the length of the whole sequence, which a decoder does not know."""
        return False

    def token_width(self, width: int) -> int:
        """The width of the token embeddings in a model of this width."""
        return width

    def build(self, width: int) -> Position:
        """The absolute encoding for embeddings of this width."""
        return Position()

    def rotary(self, head_dim: int) -> Rotary | None:
        """The rotary encoding for heads of this width; None for other schemes."""
        return None


class NoPositionConfig(PositionConfig):
    """No positional encoding."""

    kind: Literal["none"] = "none"


class RotaryConfig(PositionConfig):
    """Rotary positions (RoPE, Su et al. 2021): queries and keys are rotated by their position."""

    kind: Literal["rotary"] = "rotary"
    theta: float = Field(default=10_000.0, gt=1, le=1e12)
    """The base of the wavelengths (RoPE's theta)."""
    scaling: AnyScaling | None = None
    """RoPE scaling, for sequences longer than in the original training."""

    def rotary(self, head_dim: int) -> Rotary | None:
        return Rotary(head_dim, self.theta, self.scaling)


class EncodingConfig(PositionConfig):
    """An absolute positional encoding, and how it is combined with the embeddings."""

    combine: Literal["add", "concatenate"] = "add"
    """Whether the encoding is added to the token embedding or concatenated to it."""
    features: int | None = Field(default=None, ge=1, le=1_000_000)
    """The width of a concatenated encoding; the token embedding gets the rest of the model's width."""

    def token_width(self, width: int) -> int:
        if self.combine == "add":
            if self.features is not None:
                raise ConfigError("features", "an added encoding is as wide as the model; leave this key out.")
            return width
        if self.features is None or self.features >= width:
            raise ConfigError(
                "features",
                f"found {self.features}; a concatenated encoding takes 1 to {width - 1} of the model's {width} "
                "features.",
            )
        return width - self.features

    def build(self, width: int) -> Position:
        token_width = self.token_width(width)
        return self.encoding(width) if token_width == width else Concatenated(self.encoding(width - token_width))

    def encoding(self, features: int) -> Position:
        raise NotImplementedError


class SinusoidalConfig(EncodingConfig):
    """Sines and cosines of the position, at wavelengths from 2π to 2π · theta (Vaswani et al. 2017, §3.5)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    theta: float = Field(default=10_000.0, gt=1, le=1e12)
    """The base of the wavelengths."""
    layout: Literal["interleaved", "halves"] = "interleaved"
    """The order of the features. interleaved: sine and cosine alternate, as in the paper. halves: all sines come first,
    as in Marian."""

    def encoding(self, features: int) -> Position:
        return Sinusoidal(features, self.theta, self.layout)


class LearnedConfig(EncodingConfig):
    """A learned vector for each position."""

    kind: Literal["learned"] = "learned"
    max_length: int = Field(ge=1, le=100_000_000)
    """The number of positions, and so the longest sequence that the model can take."""

    def encoding(self, features: int, generator: torch.Generator | None = None) -> Position:
        return Learned(features, self.max_length, generator)


class IndexConfig(EncodingConfig):
    """The index of the token itself, which is unbounded: for lectures, to see why it is not used."""

    kind: Literal["index"] = "index"

    def encoding(self, features: int) -> Position:
        return Index(features)


class NormalizedConfig(EncodingConfig):
    """The index divided by the length, for encoders only: for lectures, to see why it is not used."""

    kind: Literal["normalized"] = "normalized"

    @property
    def needs_length(self) -> bool:
        return True

    def encoding(self, features: int) -> Position:
        return Normalized(features)


class BinaryConfig(EncodingConfig):
    """The bits of the index: for lectures, to see why it is not used."""

    kind: Literal["binary"] = "binary"

    def encoding(self, features: int) -> Position:
        return Binary(features)


AnyPosition = Annotated[
    SinusoidalConfig | LearnedConfig | RotaryConfig | NoPositionConfig | IndexConfig | NormalizedConfig | BinaryConfig,
    Field(discriminator="kind"),
]
