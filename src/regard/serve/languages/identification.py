"""Language identification: which of some languages a short text is written in.

Each language has a character trigram model with stupid backoff (Brants et al. 2007) over single words. The n-grams and
their frequencies ship with the package (`scripts/language_profiles.py` makes the file), so texts are compared with
about fifty languages, whichever of them a server translates: the answer is the likeliest of those asked for, and its
confidence is its share among all, which is low for a text in a language that was not asked for.
"""

import gzip
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.serve.languages.names import base_language

PROFILES = Path(str(resources.files("regard") / "serve" / "languages" / "profiles.json.gz"))
MAX_CHARACTERS = 500
"""Characters of a text that are looked at."""
_BACKOFF = math.log(0.4)
_UNKNOWN = math.log(1e-6)
"""The log-probability of a character that the language does not have."""
_TEMPER = 0.5
"""Characters of a word depend on each other, so that the product of their probabilities is too certain. With this
exponent, answers about single words are right about as often as their confidence says."""

_WORD = re.compile(r"[^\W\d_]+")
_SCRIPTS = (
    (re.compile("[\u3041-\u309f]"), "あ"),
    (re.compile("[\u30a0-\u30ff]"), "ア"),
    (re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"), "一"),
    (re.compile("[\uac00-\ud7af]"), "가"),
    (re.compile("[\u1ea0-\u1eff]"), "ể"),
)
"""Scripts of many characters, which count as one each, and letters of Vietnamese alone."""
_WHOLE_SCRIPTS = "あア一가"
"""Characters that stand for scripts. How many there are says something, and their order does not."""
_SAME = str.maketrans({"İ": "i", "ș": "ş", "ț": "ţ", "ی": "ي"})


@dataclass(frozen=True)
class Guess:
    """A language, and how likely it is among all known ones."""

    language: str
    confidence: float


def identify(text: str, languages: Sequence[str]) -> list[Guess]:
    """The languages a text may be written in, likeliest first.

    One without statistics comes last, with no confidence.
    """
    words = [f" {word} " for word in _WORD.findall(fold(text[:MAX_CHARACTERS]))]
    total = np.zeros(len(_models()))
    for word in words:
        for at in range(1, len(word)):
            total += _logprobs(word[max(0, at - 2) : at + 1])
    odds = np.exp(_TEMPER * (total - total.max()))
    scores = dict(zip(_models(), total.tolist(), strict=True))
    shares = dict(zip(_models(), (odds / odds.sum()).tolist(), strict=True))
    found = sorted(dict.fromkeys(languages), key=lambda code: -scores.get(base_language(code), -math.inf))
    return [Guess(code, shares.get(base_language(code), 0.0)) for code in found]


def known_languages() -> frozenset[str]:
    """The languages that there are statistics of."""
    return frozenset(_models())


def fold(text: str) -> str:
    """A text in small letters, with one character for all those of a script that has thousands."""
    text = text.translate(_SAME).lower()
    for pattern, letter in _SCRIPTS:
        text = pattern.sub(letter, text)
    return text


@lru_cache(maxsize=20_000)
def _logprobs(text: str) -> NDArray[np.float64]:
    """The log-probability of the last of up to three characters after the others, in each language."""
    return np.array([_logprob(text, frequencies) for frequencies in _models().values()])


def _logprob(text: str, frequencies: Mapping[str, float]) -> float:
    penalty = 0.0
    text = text[-1] if text[-1] in _WHOLE_SCRIPTS else text
    while len(text) > 1:
        if text in frequencies and text[:-1] in frequencies:
            return penalty + min(0.0, math.log(frequencies[text] / frequencies[text[:-1]]))
        text, penalty = text[1:], penalty + _BACKOFF
    return penalty + (math.log(frequencies[text]) if text in frequencies else _UNKNOWN)


@cache
def _models() -> dict[str, dict[str, float]]:
    """The frequencies of n-grams by language, relative to all characters; that of " " is how often a word begins."""
    models = {}
    for language, levels in json.loads(gzip.decompress(PROFILES.read_bytes())).items():
        found = {text: 2.0 ** (-int(level) / 4) for level, texts in levels.items() for text in texts.split("|")}
        found[" "] = sum(value for text, value in found.items() if len(text) == 2 and text[0] == " ")
        models[language] = found
    return models
