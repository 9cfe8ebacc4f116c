"""Which scheme tells a model where its tokens stand, as settings.

A scheme has two doors into a model: `build` gives the code that is put into the embeddings (added to them, or
concatenated), `rotary` what turns queries and keys inside attention. Each scheme uses one of them, or neither.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field

from regard.attention.encoding import Binary, Concatenated, Index, Learned, Normalised, Position, Sinusoidal
from regard.attention.rotary import AnyScaling, Rotary
from regard.config import Config, ConfigError


class PositionConfig(Config):
    """No positions at all, unless a kind says otherwise: the model sees a set (or, if causal, a growing set)."""

    @property
    def needs_length(self) -> bool:
        """Whether a code depends on the length of the whole sentence, which a decoder cannot know."""
        return False

    def token_width(self, width: int) -> int:
        """What is left of the model's width for the token itself."""
        return width

    def build(self, width: int) -> Position:
        """What is put into embeddings of this width."""
        return Position()

    def rotary(self, head_width: int) -> Rotary | None:
        """What turns queries and keys of this width, if anything does."""
        return None


class NoPositionConfig(PositionConfig):
    kind: Literal["none"] = "none"


class RotaryConfig(PositionConfig):
    kind: Literal["rotary"] = "rotary"
    base: float = Field(default=10_000.0, gt=1)
    scaling: AnyScaling | None = None

    def rotary(self, head_width: int) -> Rotary | None:
        return Rotary(head_width, self.base, self.scaling)


class EncodingConfig(PositionConfig):
    """A code for each position, and how it meets the embeddings."""

    join: Literal["add", "concatenate"] = "add"
    features: int | None = Field(default=None, ge=1)
    """How many features of the model's width the code takes where it is concatenated."""

    def token_width(self, width: int) -> int:
        if self.join == "add":
            if self.features is not None:
                raise ConfigError("features", "an added code is as wide as the model; leave this key out.")
            return width
        if self.features is None or self.features >= width:
            raise ConfigError(
                "features",
                f"found {self.features}; a concatenated code takes 1 to {width - 1} of the model's {width} features.",
            )
        return width - self.features

    def build(self, width: int) -> Position:
        token_width = self.token_width(width)
        return self.code(width) if token_width == width else Concatenated(self.code(width - token_width))

    def code(self, features: int) -> Position:
        raise NotImplementedError


class SinusoidalConfig(EncodingConfig):
    kind: Literal["sinusoidal"] = "sinusoidal"
    base: float = Field(default=10_000.0, gt=1)
    layout: Literal["interleaved", "halves"] = "interleaved"

    def code(self, features: int) -> Position:
        return Sinusoidal(features, self.base, self.layout)


class LearnedConfig(EncodingConfig):
    kind: Literal["learned"] = "learned"
    limit: int = Field(ge=1)

    def code(self, features: int, dice: torch.Generator | None = None) -> Position:
        return Learned(features, self.limit, dice)


class IndexConfig(EncodingConfig):
    kind: Literal["index"] = "index"

    def code(self, features: int) -> Position:
        return Index(features)


class NormalisedConfig(EncodingConfig):
    kind: Literal["normalised"] = "normalised"

    @property
    def needs_length(self) -> bool:
        return True

    def code(self, features: int) -> Position:
        return Normalised(features)


class BinaryConfig(EncodingConfig):
    kind: Literal["binary"] = "binary"

    def code(self, features: int) -> Position:
        return Binary(features)


AnyPosition = Annotated[
    SinusoidalConfig | LearnedConfig | RotaryConfig | NoPositionConfig | IndexConfig | NormalisedConfig | BinaryConfig,
    Field(discriminator="kind"),
]
