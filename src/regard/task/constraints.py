"""Lexical constraints as tokens: what an output must begin with, contain, and not contain.

Required and forbidden words are strings: *kedi* is also contained in *kediler*. Each is meant as given, and with a
capital first letter: at the beginning of the output (required), or anywhere (forbidden). A required word begins a word
of the output, so inside a text there is a space before it, unless its script has none.
"""

import unicodedata
from collections.abc import Iterator, Sequence

from regard.data.tokenizers.token_bytes import token_bytes
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.decode import Constraints, ForbiddenText, RequiredWord
from regard.errors import UserError

_NAMES = {"begin with": "The prefix", "contain": "A required word", "exclude": "A forbidden word"}
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
"""Scripts without spaces between words, by how the names of their letters begin."""


def make_constraints(
    tokenizer: TextTokenizer,
    *,
    prefix: str | Sequence[int] = "",
    required: Sequence[str] = (),
    forbidden: Sequence[str] = (),
    seed: int | None = None,
    continues: bool = False,
) -> Constraints:
    """The constraints for an output in the ids of a tokenizer. The prefix is a text, or its ids.

    If the output `continues` another text, a required word at its beginning is one inside a text.
    """
    if isinstance(prefix, str):
        text, ids = prefix, tuple(_encode(tokenizer, prefix, "begin with")) if prefix else ()
    else:
        text, ids = tokenizer.decode(prefix), tuple(prefix)
    strings = {form for word in forbidden for form in _forbidden_forms(tokenizer, word)}
    for string in strings:
        if string in text:
            raise UserError(f"The prefix contains a forbidden word ({string!r}); leave out one of the two.")
        if any(string in word.strip() for word in required):
            raise UserError(f"A required word contains a forbidden word ({string!r}); leave out one of the two.")
    forbidden_text = None
    if strings:
        encoded = tuple(sorted(string.encode() for string in strings))
        forbidden_text = ForbiddenText(encoded, tokenizer.fingerprint, token_bytes(tokenizer))
    return Constraints(
        prefix=ids,
        required=tuple(_required_word(tokenizer, word.strip(), continues) for word in required),
        forbidden_text=forbidden_text,
        seed=seed,
    )


def _required_word(tokenizer: TextTokenizer, word: str, continues: bool) -> RequiredWord | tuple[int, ...]:
    """The word as it may be written inside a text, and at its beginning if that differs."""
    inside = tuple(_encode(tokenizer, word, "contain"))
    spaced = f" {word}"
    if not _needs_no_space(word[0]) and tokenizer.decode(tokenizer.encode(spaced)) == spaced:
        inside = tuple(tokenizer.encode(spaced))
    if continues:
        return inside
    forms = [form for form in (word, *_capitalized(word)) if not tokenizer.round_trip_loss(form).unknown]
    initial = tuple(dict.fromkeys(tuple(tokenizer.encode(form)) for form in forms))
    return inside if initial == (inside,) else RequiredWord((inside,), initial)


def _forbidden_forms(tokenizer: TextTokenizer, word: str) -> list[str]:
    bare = word.strip()
    _encode(tokenizer, bare, "exclude")
    return [bare, *_capitalized(bare)]


def _capitalized(word: str) -> Iterator[str]:
    """The word with a capital first letter; in Turkish, that of i is İ."""
    if word[:1].islower():
        yield word[0].upper() + word[1:]
        if word[0] == "i":
            yield f"İ{word[1:]}"


def _needs_no_space(letter: str) -> bool:
    """Whether a word that begins with this letter follows another without a space: in some scripts, and punctuation."""
    return not letter.isalnum() or unicodedata.name(letter, "").startswith(_UNSPACED)


def _encode(tokenizer: TextTokenizer, text: str, purpose: str) -> list[int]:
    if not text.strip():
        raise UserError(f"{_NAMES[purpose]} is empty; leave it out.")
    lost = tokenizer.round_trip_loss(text)
    if lost.unknown:
        raise UserError(f"{text.strip()!r} cannot be written by this model, so no output can {purpose} it: {lost}.")
    return tokenizer.encode(text)
