"""Every positional encoding scheme: its encodings, the similarity of two positions, and which requirements it meets."""

from functools import lru_cache

from torch import Tensor

from regard.attention import LearnedConfig
from regard.errors import UserError
from regard.look.positions.requirements import SCHEMES, encode_positions, evaluate_requirements
from regard.look.schema import Positions, Requirement, Scheme

MAX_LENGTH, MAX_WIDTH = 512, 512

_DESCRIPTIONS = {
    "sinusoidal": "Sines and cosines of the position, at a lower frequency for each pair of dimensions, are added to "
    "the embedding.",
    "learned": "A trained vector for each position is added to the embedding; shown here before training.",
    "index": "The position, counted from 1, is added to every dimension of the embedding.",
    "normalized": "The position divided by the sequence length is added to every dimension of the embedding.",
    "binary": "The binary digits of the position, highest first, are added to the embedding.",
    "rotary": "Queries and keys are rotated by an angle proportional to the position; nothing is added to the "
    "embedding.",
    "none": "The model has no information about positions.",
}
_DOT_PRODUCT = "dot product of the encodings of two positions, divided by their width"
_ROTARY_SCORE = (
    "score of a query and a key of ones at two positions, divided by their width; it depends on the distance"
)


def positions(length: int, width: int) -> Positions:
    """All schemes for sequences of `length` tokens and encodings of `width` dimensions."""
    if not 2 <= length <= MAX_LENGTH:
        raise UserError(f"length: expected 2 to {MAX_LENGTH} positions, found {length}.")
    if not 2 <= width <= MAX_WIDTH or width % 2:
        raise UserError(f"width: expected an even number of dimensions from 2 to {MAX_WIDTH}, found {width}.")
    return Positions(length=length, width=width, schemes=[_scheme(name, length, width) for name in SCHEMES])


def _scheme(name: str, length: int, width: int) -> Scheme:
    config = LearnedConfig(max_length=length) if name == "learned" else SCHEMES[name]
    encoding = encode_positions(config, length, width=width)  # (length, width)
    is_rotary = config.rotary(width) is not None
    return Scheme(
        name=name,
        description=_DESCRIPTIONS[name],
        encoding=[] if is_rotary or name == "none" else encoding.tolist(),
        similarity=(_rotary_similarity(encoding) if is_rotary else encoding @ encoding.T / width).tolist(),
        similarity_description=_ROTARY_SCORE if is_rotary else _DOT_PRODUCT,
        requirements=_requirements(name),
    )


def _rotary_similarity(encoding: Tensor) -> Tensor:
    """The score of a query and a key of ones: the mean of cos((i − j) · frequency) over pairs.  # (length, length)

    encoding: # (length, pairs · 2), all cosines first
    """
    return encoding @ encoding.T * 2 / encoding.shape[1]


@lru_cache(maxsize=len(SCHEMES))
def _requirements(name: str) -> list[Requirement]:
    """The verdicts of `docs/lectures.md`: for encodings of 8 dimensions made for 64 tokens, whatever size is shown."""
    results = evaluate_requirements(SCHEMES[name])
    return [Requirement(name=key, holds=result.holds, evidence=result.evidence) for key, result in results.items()]
