"""What the protocols of translation services share: finding translators by languages, and translating with them.

A pair of languages without a translator of its own goes through a third language, if two translators lead there. Codes
are compared without case, and one with a region (`EN-US`) stands for the language where no translator has that region.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from starlette.requests import Request

from regard.data.text.markup import MarkupRules, TextBlock, split_markup
from regard.errors import UserError
from regard.serve.api.middleware import note
from regard.serve.api.native.translate import count_tokens
from regard.serve.api.service import Service
from regard.serve.languages.identification import Guess, identify
from regard.serve.languages.names import base_language, same_language
from regard.serve.models.registry import ModelRegistry
from regard.serve.models.served_model import ServedModel
from regard.task.translation.markup import translate_markup
from regard.task.translation.pipeline import Translator

Chain = tuple[ServedModel, ...]
"""Translators that are applied one after the other; none from a language to itself."""
_BREAKS = re.compile(r"[ \t]*[\r\n]\s*")


@dataclass(frozen=True)
class TextOptions:
    """How texts are translated."""

    markup: MarkupRules | None = None
    """If given, the texts are HTML or XML."""
    nbest: int = 1
    split: bool = True
    """Whether texts are split into sentences."""
    line_breaks: bool = True
    """Whether a line break ends a sentence."""


def source_languages(models: ModelRegistry) -> list[str]:
    """The languages that can be translated from."""
    return sorted({model.languages.source for model in models if model.languages is not None})


def target_languages(models: ModelRegistry, source: str) -> list[str]:
    """The languages that a language can be translated into, through another one if need be."""
    direct = {pair[1] for pair in _pairs(models) if pair[0] == source}
    return sorted((direct | {pair[1] for pair in _pairs(models) if pair[0] in direct}) - {source})


def all_languages(models: ModelRegistry) -> list[str]:
    return sorted({code for pair in _pairs(models) for code in pair})


def find_language(code: str, known: Iterable[str]) -> str:
    """The language of a server that a code means."""
    known = list(known)
    matches: tuple[Callable[[str], bool], ...] = (
        lambda language: same_language(language, code),
        lambda language: language.lower() == base_language(code),
        lambda language: base_language(language) == code.lower(),
    )
    for is_same in matches:
        for language in known:
            if is_same(language):
                return language
    raise UserError(f"The language {code[:20]!r} is not supported by this server; it has {', '.join(known) or 'none'}.")


def find_chain(models: ModelRegistry, source: str, target: str) -> Chain:
    """The translators from one language to another: none if they are the same, one, or two."""
    if source == target:
        return ()
    translators = [model for model in models if model.languages is not None]
    for model in translators:
        if model.languages == (source, target):
            return (model,)
    for first in translators:
        for second in translators:
            if first.languages[0] == source and second.languages == (first.languages[1], target):  # type: ignore[index]
                return first, second
    raise UserError(f"This server does not translate from {source!r} to {target!r}; ask for its languages.")


async def identify_all(
    models: ModelRegistry, texts: Sequence[str], target: str | None = None, markup: MarkupRules | None = None
) -> list[list[Guess]]:
    """The languages that each text may be written in, likeliest first: those that the server translates from, and
    translates into `target`, or `target` itself."""
    languages = source_languages(models)
    if target is not None:
        languages = [one for one in languages if one == target or target in target_languages(models, one)]
    if not languages or languages == [target]:
        what = "" if target is None else f" into {target!r}"
        raise UserError(f"This server does not translate{what}; ask for its languages.")
    return await asyncio.to_thread(lambda: [identify(_without_markup(text, markup), languages) for text in texts])


async def translate_texts(
    service: Service, request: Request, texts: Sequence[str], sources: Sequence[str], target: str, options: TextOptions
) -> list[tuple[str, ...]]:
    """The translations of each text, best first. `sources` are the languages of the texts."""
    chains = {source: find_chain(service.models, source, target) for source in sources}
    note(request, items=len(texts), model=" ".join(dict.fromkeys(each.name for one in chains.values() for each in one)))
    found: list[tuple[str, ...]] = [(text,) * options.nbest for text in texts]
    for source, chain in chains.items():
        indices = [index for index, language in enumerate(sources) if language == source]
        for number, model in enumerate(chain, start=1):
            nbest = options.nbest if number == len(chain) else 1
            function = _translation([found[index][0] for index in indices], options, nbest)
            results, tokens = await service.compute(request, model, "translate", function)
            note(request, tokens=getattr(request.state, "tokens", 0) + tokens)
            for index, each in zip(indices, results, strict=True):
                found[index] = each
    return found


def _without_markup(text: str, markup: MarkupRules | None) -> str:
    if markup is None:
        return text
    return " ".join(part.text for part in split_markup(text, markup) if isinstance(part, TextBlock))


def _translation(
    texts: Sequence[str], options: TextOptions, nbest: int
) -> Callable[[Translator], tuple[list[tuple[str, ...]], int]]:
    """A function that gives the translations of each text, and the number of their tokens."""

    def translate(translator: Translator) -> tuple[list[tuple[str, ...]], int]:
        decode = translator.decode.only_best() if nbest == 1 else translator.decode.with_options({"nbest": nbest})
        if options.markup is not None:
            marked = translate_markup(translator, texts, decode, rules=options.markup, split=options.split)
            return [_exactly(nbest, each) for each in marked], 0
        given = texts if options.line_breaks else [_BREAKS.sub(" ", text) for text in texts]
        found = translator.translate_batch(given, decode, seed_offsets=range(len(given)), split=options.split)
        return [_exactly(nbest, one.texts) for one in found], count_tokens(found)

    return translate


def _exactly(count: int, texts: Sequence[str]) -> tuple[str, ...]:
    """So many texts; what is missing repeats the last."""
    return (*texts, *[texts[-1]] * count)[:count]


def _pairs(models: ModelRegistry) -> list[tuple[str, str]]:
    return [model.languages for model in models if model.languages is not None]
