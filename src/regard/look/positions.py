"""How schemes tell positions apart: their codes, how alike two positions are, and what 001 asks of them."""

from functools import lru_cache

from torch import Tensor

from regard.attention import LearnedConfig
from regard.errors import UserError
from regard.look.requirements import SCHEMES, codes, judged
from regard.look.wire import Positions, Requirement, Scheme

LONGEST, WIDEST = 512, 512

_ABOUT = {
    "sinusoidal": "Sines and cosines of the position, slower from pair to pair, added to the word's vector.",
    "learned": "A vector for each position, trained like all other weights; here as it is before any training.",
    "index": "The number of the word, from 1, in every feature.",
    "normalised": "The number of the word over the number of words, in every feature.",
    "binary": "The position in binary digits, highest first.",
    "rotary": "Queries and keys are turned by an angle that grows with the position; nothing is added to the input.",
    "none": "Nothing says where a word stands.",
}
_PRODUCTS = "the dot product of the codes of two positions, divided by their width"
_TURNED = "the score of a query and a key of ones at these positions, divided by their width: it depends on distance"


def positions(length: int, width: int) -> Positions:
    """Every scheme for sentences of `length` words and models of this width."""
    if not 2 <= length <= LONGEST:
        raise UserError(f"length is the number of positions, 2 to {LONGEST}; found {length}.")
    if not 2 <= width <= WIDEST or width % 2:
        raise UserError(f"width is the number of features, an even number from 2 to {WIDEST}; found {width}.")
    return Positions(length=length, width=width, schemes=[_scheme(name, length, width) for name in SCHEMES])


def _scheme(name: str, length: int, width: int) -> Scheme:
    config = LearnedConfig(limit=length) if name == "learned" else SCHEMES[name]
    code = codes(config, length, features=width)  # (length, width)
    turns = config.rotary(width) is not None
    return Scheme(
        name=name,
        about=_ABOUT[name],
        encoding=[] if turns or name == "none" else code.tolist(),
        similarity=(_turned_likeness(code) if turns else code @ code.T / width).tolist(),
        similarity_of=_TURNED if turns else _PRODUCTS,
        requirements=_requirements(name),
    )


def _turned_likeness(code: Tensor) -> Tensor:
    """Σ cos((i − j) · frequency) over the pairs of features: what a query and a key of ones score.  # (length, length)

    code: # (length, pairs · 2), all cosines first
    """
    return code @ code.T * 2 / code.shape[1]


@lru_cache(maxsize=len(SCHEMES))
def _requirements(name: str) -> list[Requirement]:
    """The answers of `docs/seeds.md`: for codes of 8 features, made for 64 words, whatever is asked for here."""
    found = judged(SCHEMES[name])
    return [Requirement(name=each, holds=answer.holds, found=answer.found) for each, answer in found.items()]
