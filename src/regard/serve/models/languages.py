"""Which languages a translator translates between, so that requests find it by a pair of languages."""

import re
from typing import NamedTuple

from regard.errors import UserError
from regard.task.recipe_io import read_recipe
from regard.task.translation.pipeline import Translator
from regard.task.translation.recipe import TranslationRecipe

_CODE = re.compile(r"[a-z]{2,3}(?:_[A-Za-z]{2,4})?")
_PAIR_IN_NAME = re.compile(r"(?:^|[^A-Za-z])([a-z]{2,3})(?:-|2|_to_)([a-z]{2,3})(?=$|[^A-Za-z])")


class Languages(NamedTuple):
    """The codes of two languages, such as `en` and `tr`."""

    source: str
    target: str


def find_languages(translator: Translator, name: str) -> Languages | None:
    """The languages of a translator: those of its training files (train.en, train.de), else those in its name."""
    return _from_recipe(translator) or _from_name(name) or _from_name(str(translator.loaded.origin.get("recipe", "")))


def parse_languages(text: str) -> Languages:
    """A pair as it is written on the command line: `en:tr`."""
    source, _, target = text.partition(":")
    if not (_CODE.fullmatch(source) and _CODE.fullmatch(target)):
        raise UserError(f"{text!r} is not a pair of languages; write two codes with a colon, such as en:tr.")
    return Languages(source, target)


def _from_recipe(translator: Translator) -> Languages | None:
    path = translator.path
    if path is None or not (path / "recipe.toml").is_file():
        return None
    try:
        recipe = read_recipe(path)
    except UserError:  # a recipe of another version is no reason not to translate
        return None
    if not isinstance(recipe, TranslationRecipe) or not (suffixes := recipe.data.train[0].suffixes):
        return None
    return Languages(*suffixes) if all(map(_CODE.fullmatch, suffixes)) else None


def _from_name(name: str) -> Languages | None:
    """The pair in a name such as `en-tr` or `multi30k-en-de`."""
    found = _PAIR_IN_NAME.search(name)
    return None if found is None else Languages(*found.groups())
