"""Words that a person wants in an output, or does not want there, as tokens."""

from collections.abc import Sequence
from dataclasses import replace

from regard.data.tokenizer import TextTokenizer
from regard.decode import Wish
from regard.errors import UserError

_NAMES = {
    "begin with": "What an output should begin with",
    "contain": "A required word",
    "be kept from containing": "A forbidden word",
}


def make_wish(
    tokenizer: TextTokenizer,
    *,
    prefix: str = "",
    required: Sequence[str] = (),
    forbidden: Sequence[str] = (),
    seed: int | None = None,
) -> Wish:
    """What an output must begin with, contain, and not contain.

    A word in a text has a space before it, at its beginning not. Where a tokenizer tells the two apart, the first form
    is required, and both are forbidden.
    """
    return Wish(
        prefix=tuple(_known(tokenizer, prefix, "begin with")) if prefix else (),
        required=tuple(tuple(_known(tokenizer, _inside(tokenizer, word), "contain")) for word in required),
        forbidden=tuple(sorted({tuple(ids) for word in forbidden for ids in _forms(tokenizer, word) if ids})),
        seed=seed,
    )


def seeded(wish: Wish | None, seed: int) -> Wish:
    """The wish, with a seed to draw by where it has none of its own."""
    wish = wish or Wish()
    return wish if wish.seed is not None else replace(wish, seed=seed)


def _inside(tokenizer: TextTokenizer, word: str) -> str:
    """The word as it stands inside a text."""
    spaced = f" {word.strip()}"
    return spaced if tokenizer.decode(tokenizer.encode(spaced)) == spaced else word.strip()


def _forms(tokenizer: TextTokenizer, word: str) -> list[list[int]]:
    plain = word.strip()
    return [_known(tokenizer, form, "be kept from containing") for form in (plain, _inside(tokenizer, plain))]


def _known(tokenizer: TextTokenizer, text: str, purpose: str) -> list[int]:
    if not text.strip():
        raise UserError(f"{_NAMES[purpose]} is empty; leave it out.")
    lost = tokenizer.lost(text)
    if lost.unknown:
        raise UserError(f"{text.strip()!r} cannot be written by this model, so no output can {purpose} it: {lost}.")
    return tokenizer.encode(text)
