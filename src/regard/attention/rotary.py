"""Rotary positions (Su et al. 2021): turn queries and keys by an angle that grows with their position.

The dot product of a query turned by position i and a key turned by position j depends on i − j alone, so distance is
what attention sees. Feature n is paired with feature n + width/2 (the layout of Hugging Face's Llama; the paper pairs
neighbours, which is the same up to the order of features).

A model trained on short texts reads longer ones if its angles grow more slowly. How, is a `Scaling`. Two of them
(`Dynamic`, `Long`) change all angles once a text outgrows the trained length. Keys are then cached unturned and turned
when read, so that queries and keys always agree. One layer then decodes from its cache just what it computes at once;
in a deeper stack the upper layers keep what the lower ones made of the shorter text.
"""

import math
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, PositiveFloat, model_validator
from torch import Tensor, nn

from regard.config import Config, ConfigError

Rotation = tuple[Tensor, Tensor]  # cosine and sine, each (positions, width/2) or (rows, positions, width/2)


class Scaling(Config):
    """How to slow the angles down for lengths beyond training. This one leaves them alone."""

    def slow(self, frequencies: list[float], base: float, length: int | None = None) -> list[float]:
        """New frequencies for a text of `length` tokens; `length` matters only where `trained` is given."""
        return frequencies

    @property
    def factor_on_weights(self) -> float:
        """What cosine and sine are multiplied by, which sharpens or softens attention."""
        return 1.0

    @property
    def changes_at(self) -> int | None:
        """The length beyond which the angles depend on the length of the text; None if they never do."""
        return None


class LinearScaling(Scaling):
    """Positions divided by `factor` (Chen et al. 2023)."""

    kind: Literal["linear"] = "linear"
    factor: float = Field(gt=0)

    def slow(self, frequencies: list[float], base: float, length: int | None = None) -> list[float]:
        return [frequency / self.factor for frequency in frequencies]


class DynamicScaling(Scaling):
    """A larger base as soon as the text is longer than `trained` ("dynamic NTK")."""

    kind: Literal["dynamic"] = "dynamic"
    factor: float = Field(gt=0)
    trained: int = Field(ge=1)

    def slow(self, frequencies: list[float], base: float, length: int | None = None) -> list[float]:
        width = 2 * len(frequencies)
        if width == 2:
            raise ConfigError("scaling", "'dynamic' needs several pairs of features; a head's width must exceed 2.")
        length = max(length or 0, self.trained)
        stretch = (self.factor * length / self.trained - (self.factor - 1)) ** (width / (width - 2))
        return _frequencies(width, base * stretch)

    @property
    def changes_at(self) -> int | None:
        return self.trained


class YarnScaling(Scaling):
    """Slow turns divided by `factor`, fast ones kept, a ramp between them (Peng et al. 2023)."""

    kind: Literal["yarn"] = "yarn"
    factor: float = Field(gt=0)
    trained: int = Field(ge=1)
    fast: float = Field(default=32.0, gt=0)
    slow_turns: float = Field(default=1.0, gt=0)
    sharpness: float | None = Field(default=None, gt=0)
    truncate: bool = True

    def slow(self, frequencies: list[float], base: float, length: int | None = None) -> list[float]:
        width = 2 * len(frequencies)

        def pair_that_turns(times: float) -> float:
            """The (fractional) pair that makes so many turns over the trained length."""
            return width * math.log(self.trained / (times * 2 * math.pi)) / (2 * math.log(base))

        low, high = pair_that_turns(self.fast), pair_that_turns(self.slow_turns)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        high = high + 0.001 if low == high else high
        slowed = []
        for pair, frequency in enumerate(frequencies):
            share = min(max((pair - low) / (high - low), 0.0), 1.0)  # 0: keep, 1: divide by the factor
            slowed.append(frequency * (1 - share) + frequency / self.factor * share)
        return slowed

    @property
    def factor_on_weights(self) -> float:
        if self.sharpness is not None:
            return self.sharpness
        return 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


Factors = Annotated[tuple[PositiveFloat, ...], Field(strict=False)]  # files have lists, not tuples


class LongScaling(Scaling):
    """A divisor for each pair, one set within the trained length and one beyond it (LongRoPE, Ding et al. 2024)."""

    kind: Literal["long"] = "long"
    short_factors: Factors
    long_factors: Factors
    trained: int = Field(ge=1)
    sharpness: float = Field(default=1.0, gt=0)

    def slow(self, frequencies: list[float], base: float, length: int | None = None) -> list[float]:
        for factors in (self.short_factors, self.long_factors):
            if len(factors) != len(frequencies):
                raise ConfigError(
                    "scaling",
                    f"'long' needs a factor for each of the {len(frequencies)} pairs of a head; found {len(factors)}.",
                )
        factors = self.long_factors if length is not None and length > self.trained else self.short_factors
        return [frequency / factor for frequency, factor in zip(frequencies, factors, strict=True)]

    @property
    def factor_on_weights(self) -> float:
        return self.sharpness

    @property
    def changes_at(self) -> int | None:
        return self.trained


class BandScaling(Scaling):
    """Slow turns divided by `factor`, fast ones kept, bands by wavelength (Llama 3.1)."""

    kind: Literal["band"] = "band"
    factor: float = Field(gt=0)
    trained: int = Field(ge=1)
    low: float = Field(default=1.0, gt=0)
    high: float = Field(default=4.0, gt=0)

    @model_validator(mode="after")
    def _band(self) -> Self:
        if self.high <= self.low:
            raise ConfigError("high", f"found {self.high}; expected more than low, which is {self.low}.")
        return self

    def slow(self, frequencies: list[float], base: float, length: int | None = None) -> list[float]:
        slowed = []
        for frequency in frequencies:
            turns = self.trained * frequency / (2 * math.pi)  # over the trained length
            keep = min(max((turns - self.low) / (self.high - self.low), 0.0), 1.0)
            slowed.append(frequency * keep + frequency / self.factor * (1 - keep))
        return slowed


AnyScaling = Annotated[
    LinearScaling | DynamicScaling | YarnScaling | LongScaling | BandScaling, Field(discriminator="kind")
]


class Frequencies(nn.Module):
    """Constants that follow a model to its device but stay in float32: an angle of 8 bits would be of no use."""

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
    """Turns queries and keys of heads `width` wide; has no parameters."""

    def __init__(self, width: int, base: float = 10_000.0, scaling: Scaling | None = None) -> None:
        super().__init__()
        if width % 2:
            raise ConfigError("kind", f"rotary turns pairs of features, so a head's width must be even; found {width}.")
        self.width, self.base = width, base
        self.scaling = scaling or Scaling()
        self.frequencies = Frequencies(self.scaling.slow(_frequencies(width, base), base))

    @property
    def fixed(self) -> bool:
        """Whether a token's angles never change while the text grows."""
        return self.scaling.changes_at is None

    def rotation(self, positions: Tensor, lengths: int | Tensor) -> Rotation:
        """Cosine and sine for these positions, in rows of these lengths.

        positions: # (positions,) or (rows, positions); lengths: one number, or # (rows,)
        """
        if self.scaling.changes_at is None:
            frequencies = self.frequencies.values  # (width/2,)
        elif isinstance(lengths, int):
            frequencies = self._for_length(lengths)
        else:
            each = [self._for_length(int(length)) for length in lengths.tolist()]
            frequencies = torch.stack(each)[:, None]  # (rows, 1, width/2)
        angles = positions[..., None].to(torch.float32) * frequencies
        factor = self.scaling.factor_on_weights
        return angles.cos() * factor, angles.sin() * factor

    def _for_length(self, length: int) -> Tensor:
        exact = self.scaling.slow(_frequencies(self.width, self.base), self.base, length)
        return torch.tensor(exact, dtype=torch.float32, device=self.frequencies.values.device)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn each pair of features by its angle.  x: # (batch, heads, positions, width)"""
    cosine, sine = (part.to(x.dtype) for part in rotation)
    if cosine.dim() == 3:
        cosine, sine = cosine[:, None], sine[:, None]  # (rows, 1, positions, width/2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def _frequencies(width: int, base: float) -> list[float]:
    return [base ** (-pair / width) for pair in range(0, width, 2)]
