"""The requirements of lecture 001, "Position Encoding Requirement", evaluated: is a positional encoding unique, with
distances independent of the sequence length, defined for longer sequences, bounded and deterministic?

Every scheme is built from its own config, 8 dimensions wide, for sequences of at most 64 tokens. A scheme without
encodings for longer sequences (learned) is judged for uniqueness and bounds by the positions it has.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention import (
    BinaryConfig,
    IndexConfig,
    LearnedConfig,
    NoPositionConfig,
    NormalizedConfig,
    RotaryConfig,
    SinusoidalConfig,
)
from regard.attention.positions.config import PositionConfig
from regard.errors import UserError

WIDTH, MAX_LENGTH, LONG = 8, 64, 1024
"""Dimensions of an encoding, the sequence length that schemes are built for, and a much longer one."""

SCHEMES: dict[str, PositionConfig] = {
    "sinusoidal": SinusoidalConfig(),
    "learned": LearnedConfig(max_length=MAX_LENGTH),
    "index": IndexConfig(),
    "normalized": NormalizedConfig(),
    "binary": BinaryConfig(),
    "rotary": RotaryConfig(),
    "none": NoPositionConfig(),
}
REQUIREMENTS = ("unique", "consistent distance", "longer sentences", "bounded", "deterministic")
_TOLERANCE = 1e-4
"""Encodings closer to each other than this count as equal."""


class RequirementResult(NamedTuple):
    """Whether a requirement holds, and the measurement behind the verdict."""

    holds: bool
    evidence: str


def encode_positions(scheme: PositionConfig, length: int, seed: int = 0, width: int = WIDTH) -> Tensor:
    """The encodings of all positions of a sequence.  # (length, width)

    Rotary adds nothing to the embeddings; its encodings are the cosines and sines that rotate queries and keys.
    """
    rotary = scheme.rotary(width)
    if rotary is not None:
        return torch.cat(rotary.rotation(torch.arange(length), length), dim=-1)
    generator = torch.Generator().manual_seed(seed)  # not the global one, which the server's threads share
    module = scheme.encoding(width, generator) if isinstance(scheme, LearnedConfig) else scheme.build(width)
    with torch.no_grad():
        return module.combine(torch.zeros(1, length, width), torch.arange(length))[0]


def evaluate_requirements(scheme: PositionConfig) -> dict[str, RequirementResult]:
    """The five requirements, judged by the encodings alone."""
    extrapolates = _has_encodings(scheme, LONG)
    length = LONG if extrapolates else MAX_LENGTH
    short, long = encode_positions(scheme, MAX_LENGTH), encode_positions(scheme, length)
    seven, eight = encode_positions(scheme, 7), encode_positions(scheme, 8)[:7]  # the slide's two sentences
    nearest, first, second = _nearest(long)
    before, after = torch.pdist(seven), torch.pdist(eight)
    largest = float(long.abs().max()), float(short.abs().max())
    other_seed = encode_positions(scheme, MAX_LENGTH, seed=1)
    results = (
        RequirementResult(
            nearest > _TOLERANCE,
            f"Among {length:,} positions, {first} and {second} have the closest encodings: distance {nearest:.3g}.",
        ),
        RequirementResult(
            torch.allclose(before, after),
            f"Distances in sequences of 7 and of 8 tokens differ by up to {_max_difference(before, after):.3g}.",
        ),
        RequirementResult(
            extrapolates,
            f"Each of {LONG:,} positions has an encoding."
            if extrapolates
            else f"Built for {MAX_LENGTH} positions, it has no encoding for the next.",
        ),
        RequirementResult(
            largest[0] <= largest[1],
            f"The largest value is {largest[0]:.3g} for {length:,} positions and {largest[1]:.3g} for {MAX_LENGTH}.",
        ),
        RequirementResult(
            torch.equal(other_seed, short),
            f"Built with two different seeds, encodings differ by up to {_max_difference(other_seed, short):.3g}.",
        ),
    )
    return dict(zip(REQUIREMENTS, results, strict=True))


def requirements(scheme: PositionConfig) -> dict[str, bool]:
    """The five requirements as verdicts only."""
    return {name: result.holds for name, result in evaluate_requirements(scheme).items()}


def _has_encodings(scheme: PositionConfig, length: int) -> bool:
    try:
        encode_positions(scheme, length)
    except UserError:
        return False
    return True


def _nearest(encoding: Tensor) -> tuple[float, int, int]:
    """The smallest distance between two encodings, and their positions counted from 1."""
    distance, index = torch.pdist(encoding).min(dim=0)
    pairs = torch.triu_indices(len(encoding), len(encoding), offset=1)
    return float(distance), int(pairs[0, index]) + 1, int(pairs[1, index]) + 1


def _max_difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())
