"""Augmented sentence pairs: the same pairs in upper case, in lower case, or without final punctuation.

Users write "THE CAT ATE THE MOUSE" and leave out the period; a corpus of edited sentences hardly has that. Each kind of
change is applied to both sides of every pair, and an epoch has a fraction of the changed pairs, another one each time,
in addition to the unchanged ones: changed pairs are items with a small weight (data/batching/item_weights.py).
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, NamedTuple

from pydantic import Field

from regard.config import Config
from regard.data.text.pairs import Pair

Fraction = Annotated[float, Field(ge=0, le=1)]
Language = Annotated[str, Field(pattern="^[a-z]{2,3}$")]

_FINAL_PUNCTUATION = re.compile(r"\s*[.!?…。！？؟۔।]+\s*$")
_DOTLESS = ("tr", "tur", "az", "aze")
"""Languages in which i and ı are two letters, with the capitals İ and I (Unicode SpecialCasing.txt)."""


class TextAugmentConfig(Config):
    """Changed pairs to train on in addition to the unchanged ones, as fractions of the pairs of an epoch."""

    uppercase: Fraction = 0.0
    """The fraction in upper case: THE CAT ATE THE MOUSE."""
    lowercase: Fraction = 0.0
    """The fraction in lower case: the cat ate the mouse."""
    drop_final_punctuation: Fraction = 0.0
    """The fraction without final punctuation: The cat ate the mouse"""
    source_language: Language | None = None
    """The ISO 639 code of the source language, such as "en". Case depends on it in Turkish ("tr") and Azerbaijani
    ("az") only."""
    target_language: Language | None = None
    """The ISO 639 code of the target language."""

    def augmentations(self) -> list["Augmentation"]:
        """The kinds of change in use."""
        return [
            Augmentation(kind, getattr(self, kind), change)
            for kind, change in (
                ("uppercase", self._uppercase),
                ("lowercase", self._lowercase),
                ("drop_final_punctuation", _without_final_punctuation),
            )
            if getattr(self, kind)
        ]

    def key(self) -> list[object]:
        """What the changed pairs depend on; empty if there are none."""
        kinds = [augmentation.kind for augmentation in self.augmentations()]
        return [kinds, self.source_language, self.target_language] if kinds else []

    def _uppercase(self, pair: Pair) -> Pair:
        return Pair(uppercase(pair.source, self.source_language), uppercase(pair.target, self.target_language))

    def _lowercase(self, pair: Pair) -> Pair:
        return Pair(lowercase(pair.source, self.source_language), lowercase(pair.target, self.target_language))


class Augmentation(NamedTuple):
    """A kind of change to pairs, and the fraction of an epoch's pairs that occur in this form as well."""

    kind: str
    fraction: float
    change: Callable[[Pair], Pair]

    def apply(self, pair: Pair) -> Pair | None:
        """The changed pair; None if there is nothing to change."""
        changed = self.change(pair)
        return None if changed == pair else changed


def add_augmented(pairs: Iterable[Pair], augmentations: list[Augmentation]) -> Iterator[Pair]:
    """The pairs with some changed ones between them, spread evenly: each kind as often as its fraction says."""
    for number, pair in enumerate(pairs):
        yield pair
        for augmentation in augmentations:
            if int((number + 1) * augmentation.fraction) > int(number * augmentation.fraction):
                changed = augmentation.apply(pair)
                if changed is not None:
                    yield changed


def uppercase(text: str, language: str | None = None) -> str:
    """The text in capitals as they are written in a language, which may take more letters: ß becomes SS."""
    return text.replace("i", "İ").upper() if language in _DOTLESS else text.upper()


def lowercase(text: str, language: str | None = None) -> str:
    """The text in small letters as they are written in a language."""
    return text.replace("I", "ı").replace("İ", "i").lower() if language in _DOTLESS else text.lower()


def _without_final_punctuation(pair: Pair) -> Pair:
    """Both sides without their final punctuation, if both have it and something is left."""
    stripped = Pair(*(_FINAL_PUNCTUATION.sub("", side) for side in pair))
    changed = all(short and short != side for short, side in zip(stripped, pair, strict=True))
    return stripped if changed else pair
