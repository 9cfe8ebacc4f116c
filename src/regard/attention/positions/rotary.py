"""Rotary position embedding (RoPE, Su et al. 2021): queries and keys are rotated by angles proportional to position.

The dot product of a query at position i and a key at position j then depends on i − j alone. Feature n is paired with
feature n + width/2 (the layout of Hugging Face's Llama; the paper pairs neighbors, which is the same up to the order of
features).

A `Scaling` lowers the frequencies so that a model reads longer sequences than in training. Two of them (`dynamic` and
`longrope`) change all rotations once a sequence exceeds the original length. Keys are then cached before rotation and
rotated when they are read, so that queries and keys always agree. A single layer then decodes from its cache exactly
what it computes at once; in a deeper stack, the upper layers keep what the lower ones computed for the shorter
sequence.
"""

import math
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.config import Config, ConfigError

Rotation = tuple[Tensor, Tensor]  # cosine and sine, each (positions, width/2) or (rows, positions, width/2)


class Scaling(Config):
    """RoPE scaling for sequences longer than in training. The base class changes nothing."""

    def scale_frequencies(self, frequencies: list[float], theta: float, length: int | None = None) -> list[float]:
        """The scaled frequencies; `length`, that of the sequence, matters only for scalings with `dynamic_from`."""
        return frequencies

    @property
    def attention_scaling(self) -> float:
        """The factor of cosine and sine, which scales the attention scores."""
        return 1.0

    @property
    def dynamic_from(self) -> int | None:
        """The length beyond which rotations depend on the sequence length; None if they never do."""
        return None


class LinearScaling(Scaling):
    """Positions divided by `factor` (Chen et al. 2023)."""

    kind: Literal["linear"] = "linear"
    factor: float = Field(ge=1e-6, le=1e6)
    """What positions are divided by."""

    def scale_frequencies(self, frequencies: list[float], theta: float, length: int | None = None) -> list[float]:
        return [frequency / self.factor for frequency in frequencies]


class DynamicScaling(Scaling):
    """A larger theta once the sequence is longer than `original_max_length` ("dynamic NTK")."""

    kind: Literal["dynamic"] = "dynamic"
    factor: float = Field(ge=1e-6, le=1e6)
    """How fast theta grows with the length beyond `original_max_length`."""
    original_max_length: int = Field(ge=1, le=100_000_000)
    """The context length of the original training."""

    def scale_frequencies(self, frequencies: list[float], theta: float, length: int | None = None) -> list[float]:
        width = 2 * len(frequencies)
        if width == 2:
            raise ConfigError("scaling", "'dynamic' needs several pairs of features; head_dim must exceed 2.")
        length = max(length or 0, self.original_max_length)
        stretch = (self.factor * length / self.original_max_length - (self.factor - 1)) ** (width / (width - 2))
        return _frequencies(width, theta * stretch)

    @property
    def dynamic_from(self) -> int | None:
        return self.original_max_length


class YarnScaling(Scaling):
    """YaRN: low frequencies divided by `factor`, high ones unchanged, a linear ramp in between (Peng et al. 2023)."""

    kind: Literal["yarn"] = "yarn"
    factor: float = Field(ge=1e-6, le=1e6)
    """What low frequencies are divided by."""
    original_max_length: int = Field(ge=1, le=100_000_000)
    """The context length of the original training."""
    beta_fast: float = Field(default=32.0, gt=0, le=1e6)
    """Frequencies with more rotations than this over the original length are unchanged."""
    beta_slow: float = Field(default=1.0, gt=0, le=1e6)
    """Frequencies with fewer rotations than this over the original length are divided by `factor`."""
    attention_factor: float | None = Field(default=None, gt=0, le=1e3)
    """The factor of cosine and sine, which scales the attention scores; by default 0.1 · ln(factor) + 1."""
    truncate: bool = True
    """Whether the ramp between high and low frequencies begins and ends at whole pairs of features."""

    def scale_frequencies(self, frequencies: list[float], theta: float, length: int | None = None) -> list[float]:
        width = 2 * len(frequencies)

        def pair_with_rotations(rotations: float) -> float:
            """The (fractional) index of the pair that makes this many rotations over the original length."""
            return width * math.log(self.original_max_length / (rotations * 2 * math.pi)) / (2 * math.log(theta))

        low, high = pair_with_rotations(self.beta_fast), pair_with_rotations(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        high = high + 0.001 if low == high else high
        scaled = []
        for pair, frequency in enumerate(frequencies):
            ramp = min(max((pair - low) / (high - low), 0.0), 1.0)  # 0: keep, 1: divide by the factor
            scaled.append(frequency * (1 - ramp) + frequency / self.factor * ramp)
        return scaled

    @property
    def attention_scaling(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


Factor = Annotated[float, Field(ge=1e-6, le=1e6)]
Factors = Annotated[tuple[Factor, ...], Field(strict=False)]  # files have lists, not tuples


class LongRopeScaling(Scaling):
    """LongRoPE: a divisor for each pair, one set up to the original length and one beyond it (Ding et al. 2024)."""

    kind: Literal["longrope"] = "longrope"
    short_factors: Factors
    """The divisor of each pair's frequency, for sequences up to `original_max_length`."""
    long_factors: Factors
    """The divisor of each pair's frequency, for longer sequences."""
    original_max_length: int = Field(ge=1, le=100_000_000)
    """The context length of the original training."""
    attention_factor: float = Field(default=1.0, gt=0, le=1e3)
    """The factor of cosine and sine, which scales the attention scores."""

    def scale_frequencies(self, frequencies: list[float], theta: float, length: int | None = None) -> list[float]:
        for factors in (self.short_factors, self.long_factors):
            if len(factors) != len(frequencies):
                raise ConfigError(
                    "scaling",
                    f"'longrope' needs a factor for each of the {len(frequencies)} pairs of a head; "
                    f"found {len(factors)}.",
                )
        factors = self.long_factors if length is not None and length > self.original_max_length else self.short_factors
        return [frequency / factor for frequency, factor in zip(frequencies, factors, strict=True)]

    @property
    def attention_scaling(self) -> float:
        return self.attention_factor

    @property
    def dynamic_from(self) -> int | None:
        return self.original_max_length


class Llama3Scaling(Scaling):
    """Llama 3.1: low frequencies divided by `factor`, high ones unchanged, interpolated by wavelength in between."""

    kind: Literal["llama3"] = "llama3"
    factor: float = Field(ge=1e-6, le=1e6)
    """What low frequencies are divided by."""
    original_max_length: int = Field(ge=1, le=100_000_000)
    """The context length of the original training."""
    low_freq_factor: float = Field(default=1.0, gt=0, le=1e6)
    """Frequencies with fewer rotations than this over the original length are divided by `factor`."""
    high_freq_factor: float = Field(default=4.0, gt=0, le=1e6)
    """Frequencies with more rotations than this over the original length are unchanged."""

    @model_validator(mode="after")
    def _band(self) -> Self:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ConfigError(
                "high_freq_factor",
                f"found {self.high_freq_factor}; expected more than low_freq_factor, which is {self.low_freq_factor}.",
            )
        return self

    def scale_frequencies(self, frequencies: list[float], theta: float, length: int | None = None) -> list[float]:
        scaled = []
        for frequency in frequencies:
            rotations = self.original_max_length * frequency / (2 * math.pi)  # rotations over the original length
            keep = min(
                max((rotations - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0.0), 1.0
            )
            scaled.append(frequency * keep + frequency / self.factor * (1 - keep))
        return scaled


AnyScaling = Annotated[
    LinearScaling | DynamicScaling | YarnScaling | LongRopeScaling | Llama3Scaling, Field(discriminator="kind")
]


class Frequencies(nn.Module):
    """Constants that move with the model to its device but stay in float32, because angles need the precision."""

    values: Tensor

    def __init__(self, exact: list[float]) -> None:
        super().__init__()
        self._exact = exact
        self.register_buffer("values", torch.tensor(exact, dtype=torch.float32), persistent=False)

    def _apply(self, fn, recurse: bool = True):  # type: ignore[no-untyped-def]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.values = torch.tensor(self._exact, dtype=torch.float32, device=self.values.device)
        return self


class Rotary(nn.Module):
    """The rotation of queries and keys with `width` rotated features; it has no parameters."""

    def __init__(self, width: int, theta: float = 10_000.0, scaling: Scaling | None = None) -> None:
        super().__init__()
        if width % 2:
            raise ConfigError("kind", f"RoPE rotates pairs of features, so head_dim must be even; found {width}.")
        self.width, self.theta = width, theta
        self.scaling = scaling or Scaling()
        self.frequencies = Frequencies(self.scaling.scale_frequencies(_frequencies(width, theta), theta))

    @property
    def is_static(self) -> bool:
        """Whether a token's rotation never changes as the sequence grows."""
        return self.scaling.dynamic_from is None

    def rotation(self, positions: Tensor, lengths: int | Tensor) -> Rotation:
        """Cosine and sine of these positions, in rows of these lengths.

        positions: # (positions,) or (rows, positions); lengths: one number, or # (rows,)
        """
        if self.scaling.dynamic_from is None:
            frequencies = self.frequencies.values  # (width/2,)
        elif isinstance(lengths, int):
            frequencies = self._for_length(lengths)
        else:
            each = [self._for_length(int(length)) for length in lengths.tolist()]
            frequencies = torch.stack(each)[:, None]  # (rows, 1, width/2)
        angles = positions[..., None].to(torch.float32) * frequencies
        factor = self.scaling.attention_scaling
        return angles.cos() * factor, angles.sin() * factor

    def _for_length(self, length: int) -> Tensor:
        exact = self.scaling.scale_frequencies(_frequencies(self.width, self.theta), self.theta, length)
        return torch.tensor(exact, dtype=torch.float32, device=self.frequencies.values.device)


def has_dynamic_rotary(model: nn.Module) -> bool:
    """Whether some rotation of a model depends on the sequence length, which it then reads from the device."""
    return any(isinstance(module, Rotary) and not module.is_static for module in model.modules())


def apply_rotary(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate each pair of features.  x: # (batch, heads, positions, width)"""
    cosine, sine = (part.to(x.dtype) for part in rotation)
    if cosine.dim() == 3:
        cosine, sine = cosine[:, None], sine[:, None]  # (rows, 1, positions, width/2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def _frequencies(width: int, theta: float) -> list[float]:
    return [theta ** (-pair / width) for pair in range(0, width, 2)]
