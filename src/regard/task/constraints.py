"""Lexical constraints as tokens: what an output must begin with, contain, and not contain."""

from collections.abc import Sequence

from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.decode import Constraints
from regard.errors import UserError

_NAMES = {"begin with": "The prefix", "contain": "A required word", "exclude": "A forbidden word"}


def make_constraints(
    tokenizer: TextTokenizer,
    *,
    prefix: str = "",
    required: Sequence[str] = (),
    forbidden: Sequence[str] = (),
    seed: int | None = None,
) -> Constraints:
    """The constraints for an output in the ids of a tokenizer.

    Inside a text a word has a space before it, at the beginning it has none. If the tokenizer distinguishes the two,
    a required word is the one inside a text, and a forbidden word is forbidden in both forms.
    """
    return Constraints(
        prefix=tuple(_encode(tokenizer, prefix, "begin with")) if prefix else (),
        required=tuple(tuple(_encode(tokenizer, _inside_text(tokenizer, word), "contain")) for word in required),
        forbidden=tuple(sorted({tuple(ids) for word in forbidden for ids in _both_forms(tokenizer, word) if ids})),
        seed=seed,
    )


def _inside_text(tokenizer: TextTokenizer, word: str) -> str:
    """The word as it is written inside a text: with a space before it, if the tokenizer keeps that."""
    spaced = f" {word.strip()}"
    return spaced if tokenizer.decode(tokenizer.encode(spaced)) == spaced else word.strip()


def _both_forms(tokenizer: TextTokenizer, word: str) -> list[list[int]]:
    bare = word.strip()
    return [_encode(tokenizer, form, "exclude") for form in (bare, _inside_text(tokenizer, bare))]


def _encode(tokenizer: TextTokenizer, text: str, purpose: str) -> list[int]:
    if not text.strip():
        raise UserError(f"{_NAMES[purpose]} is empty; leave it out.")
    lost = tokenizer.round_trip_loss(text)
    if lost.unknown:
        raise UserError(f"{text.strip()!r} cannot be written by this model, so no output can {purpose} it: {lost}.")
    return tokenizer.encode(text)
