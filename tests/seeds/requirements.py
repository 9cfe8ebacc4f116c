"""001 "Position Encoding Requirement", computed: does a scheme give every word a code that is unique, keeps its
distances in sentences of other lengths, goes on in longer ones, is bounded and is deterministic?

Every scheme is built by its own config, 8 features wide, as for sentences of at most 64 words. What a scheme that has
no code for a later word (learned) is asked about uniqueness and bounds, it is asked about the words it has codes for.
"""

import torch
from torch import Tensor

from regard import UserError
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


def codes(scheme: PositionConfig, words: int, seed: int = 0) -> Tensor:
    """What the scheme says about each word of a sentence of so many words.  # (words, features)

    Rotary puts nothing into the embeddings; what it says are the cosines and sines it turns queries and keys by.
    """
    torch.manual_seed(seed)
    rotary = scheme.rotary(FEATURES)
    if rotary is not None:
        return torch.cat(rotary.rotation(torch.arange(words), words), dim=-1)
    nothing = torch.zeros(1, words, FEATURES)
    with torch.no_grad():
        return scheme.build(FEATURES).join(nothing, torch.arange(words))[0]


def requirements(scheme: PositionConfig) -> dict[str, bool]:
    """The five requirements, answered from the codes alone."""
    longer = _has_codes(scheme, LONG)
    short, long = codes(scheme, KNOWN), codes(scheme, LONG if longer else KNOWN)
    seven, eight = codes(scheme, 7), codes(scheme, 8)[:7]  # "Dark horses …", the slide's two sentences
    answers = (
        float(torch.pdist(long).min()) > 1e-4,
        torch.allclose(torch.pdist(seven), torch.pdist(eight)),
        longer,
        float(long.abs().max()) <= float(short.abs().max()),
        torch.equal(codes(scheme, KNOWN, seed=1), short),
    )
    return dict(zip(REQUIREMENTS, answers, strict=True))


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
