"""001 "Position Encoding Requirement", computed: does a scheme give every word a code that is unique, keeps its
distances in sentences of other lengths, goes on in longer ones, is bounded and is deterministic?

Every scheme is built by its own config, 8 features wide, as for sentences of at most 64 words. What a scheme that has
no code for a later word (learned) is asked about uniqueness and bounds, it is asked about the words it has codes for.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention import (
    BinaryConfig,
    IndexConfig,
    LearnedConfig,
    NoPositionConfig,
    NormalisedConfig,
    RotaryConfig,
    SinusoidalConfig,
)
from regard.attention.position import PositionConfig
from regard.errors import UserError

FEATURES, KNOWN, LONG = 8, 64, 1024
"""Width of a code, the longest sentence a scheme is made for, and one that is longer by far."""

SCHEMES: dict[str, PositionConfig] = {
    "sinusoidal": SinusoidalConfig(),
    "learned": LearnedConfig(limit=KNOWN),
    "index": IndexConfig(),
    "normalised": NormalisedConfig(),
    "binary": BinaryConfig(),
    "rotary": RotaryConfig(),
    "none": NoPositionConfig(),
}
REQUIREMENTS = ("unique", "consistent distance", "longer sentences", "bounded", "deterministic")
_APART = 1e-4
"""Codes nearer to each other than this are the same."""


class Judged(NamedTuple):
    """An answer, and what was computed to find it."""

    holds: bool
    found: str


def codes(scheme: PositionConfig, words: int, seed: int = 0, features: int = FEATURES) -> Tensor:
    """What the scheme says about each word of a sentence of so many words.  # (words, features)

    Rotary puts nothing into the embeddings; what it says are the cosines and sines it turns queries and keys by.
    """
    rotary = scheme.rotary(features)
    if rotary is not None:
        return torch.cat(rotary.rotation(torch.arange(words), words), dim=-1)
    dice = torch.Generator().manual_seed(seed)  # its own: the threads of a server share PyTorch's
    made = scheme.code(features, dice) if isinstance(scheme, LearnedConfig) else scheme.build(features)
    with torch.no_grad():
        return made.join(torch.zeros(1, words, features), torch.arange(words))[0]


def judged(scheme: PositionConfig) -> dict[str, Judged]:
    """The five requirements, answered from the codes alone, with what was found."""
    longer = _has_codes(scheme, LONG)
    words = LONG if longer else KNOWN
    short, long = codes(scheme, KNOWN), codes(scheme, words)
    seven, eight = codes(scheme, 7), codes(scheme, 8)[:7]  # "Dark horses …", the slide's two sentences
    nearest, first, second = _nearest(long)
    before, after = torch.pdist(seven), torch.pdist(eight)
    largest = float(long.abs().max()), float(short.abs().max())
    again = codes(scheme, KNOWN, seed=1)
    answers = (
        Judged(
            nearest > _APART,
            f"Of {words:,} words, words {first} and {second} have the nearest codes: {nearest:.3g} apart.",
        ),
        Judged(
            torch.allclose(before, after),
            f"Distances in a sentence of 7 words and in one of 8 differ by up to {_difference(before, after):.3g}.",
        ),
        Judged(
            longer,
            f"There is a code for each of {LONG:,} words."
            if longer
            else f"Made for {KNOWN} words, it has no code for the next.",
        ),
        Judged(
            largest[0] <= largest[1],
            f"The largest number is {largest[0]:.3g} in {words:,} words, and {largest[1]:.3g} in {KNOWN}.",
        ),
        Judged(
            torch.equal(again, short),
            f"Made twice with different seeds, codes differ by up to {_difference(again, short):.3g}.",
        ),
    )
    return dict(zip(REQUIREMENTS, answers, strict=True))


def requirements(scheme: PositionConfig) -> dict[str, bool]:
    """The five requirements, answered yes or no."""
    return {name: answer.holds for name, answer in judged(scheme).items()}


def table() -> str:
    """The table as docs/seeds.md prints it."""
    lines = [("scheme", *REQUIREMENTS), ("---",) * (1 + len(REQUIREMENTS))]
    for name, scheme in SCHEMES.items():
        lines.append((name, *("yes" if answer else "no" for answer in requirements(scheme).values())))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _has_codes(scheme: PositionConfig, words: int) -> bool:
    try:
        codes(scheme, words)
    except UserError:
        return False
    return True


def _nearest(code: Tensor) -> tuple[float, int, int]:
    """How far the two nearest codes are apart, and whose they are, counted from 1."""
    apart, at = torch.pdist(code).min(dim=0)
    pairs = torch.triu_indices(len(code), len(code), offset=1)
    return float(apart), int(pairs[0, at]) + 1, int(pairs[1, at]) + 1


def _difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())
