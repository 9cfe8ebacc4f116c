"""What can be looked into of the tasks whose models write: translating, language modelling, parsing."""

import re
from collections.abc import Sequence

from regard.data.trees import word_for_file
from regard.data.words import split_words
from regard.decode import DecodeConfig, Request
from regard.errors import UserError
from regard.look.tokens import TextSpeller, TreeSpeller
from regard.look.wire import RunRequest
from regard.look.writer import Source, WriterSubject
from regard.model import LanguageModel
from regard.model.language_model import EMPTY_PROMPT
from regard.task.generator import SAMPLING, Generator
from regard.task.parser import Parser, reading, tree_request
from regard.task.translator import Translator

EXAMPLES = {
    "en": "The cat ate the mouse.",
    "fr": "Je suis étudiant.",
    "de": "Die Katze hat die Maus gefressen.",
    "tr": "Kedi fareyi yedi.",
}
"""A sentence to translate, by the language it is in."""


class TranslationSubject(WriterSubject):
    """A translator: an encoder–decoder, or a language model that was taught to."""

    task = "translation"

    def __init__(self, translator: Translator, name: str) -> None:
        super().__init__(name)
        self.translator, self.model = translator, translator.translating
        end = translator.target_text.end
        if end is None:
            raise UserError("This model has no token for the end of a sentence, so it cannot be decoded.")
        self.end = end
        self.read_by, self.written_by = TextSpeller(translator.source_text), TextSpeller(translator.target_text)

    @property
    def example(self) -> str:
        language = re.search(r"(?<![a-z])([a-z]{2})-[a-z]{2}(?![a-z])", self.name)
        return EXAMPLES.get(language[1] if language else "en", "")

    def usual(self) -> DecodeConfig:
        return self.translator.decode

    def source(self, request: RunRequest) -> Source:
        if not request.text.strip() and not request.source_tokens:
            raise UserError("There is nothing to translate; give a sentence.")
        text = self.translator.target_text if self._joined else self.translator.source_text
        ids = self.ids(request, text.encode(request.text), (0, 2 if self._joined else 1))
        if not ids:
            raise UserError("There is nothing to translate; give a sentence.")
        if not self._joined:
            return Source(tuple(ids))
        start = self.translator.source_text.start
        assert start is not None
        return Source((*ids, self.end, start))

    @property
    def _joined(self) -> bool:
        """Whether source and translation are one text."""
        return isinstance(self.model, LanguageModel)

    def asked(self, source: Source, config: DecodeConfig, longest: int) -> Request:
        return Request(source.ids, min(config.limit(len(source.ids) + 1), longest), config)


class LanguageSubject(WriterSubject):
    """A language model: it reads a prompt and goes on."""

    task = "language"
    example = "Once upon a time"

    def __init__(self, generator: Generator, name: str) -> None:
        super().__init__(name)
        self.generator, self.model, self.end = generator, generator.language_model, generator.end
        self.read_by = self.written_by = TextSpeller(generator.text)

    def usual(self) -> DecodeConfig:
        return SAMPLING

    def source(self, request: RunRequest) -> Source:
        usual = self.generator.text.encode(request.text)
        ids = self.ids(request, usual, (len(self.generator.prompt(usual)) - len(usual), 0))
        prompt = self.generator.prompt(ids)
        if not prompt:
            raise UserError(EMPTY_PROMPT)
        return Source(tuple(prompt))

    def asked(self, source: Source, config: DecodeConfig, longest: int) -> Request:
        return Request(source.ids, longest, config)


class ParsingSubject(WriterSubject):
    """A parser: what it writes is always a tree over the words it has read."""

    task = "parsing"
    example = "The cat ate the mouse."

    def __init__(self, parser: Parser, name: str) -> None:
        super().__init__(name)
        self.parser, self.model = parser, parser.encoder_decoder
        end = parser.encoder_decoder.config.tokens.end
        assert end is not None
        self.end = end
        self.read_by, self.written_by = TextSpeller(parser.text), TreeSpeller(parser.symbols)

    def usual(self) -> DecodeConfig:
        return self.parser.decode

    def source(self, request: RunRequest) -> Source:
        ids = self.ids(request, self.parser.text.encode(reading(split_words(request.text))), (0, 1))
        words = split_words(request.text if request.source_tokens is None else self.parser.text.decode(ids))
        if not words:
            raise UserError("There is no word to parse; give a sentence.")
        return Source(tuple(ids), tuple(words))

    def asked(self, source: Source, config: DecodeConfig, longest: int) -> Request:
        return tree_request(source.ids, len(source.words), self.parser.symbols, config, longest)

    def answer(self, source: Source, tokens: Sequence[int]) -> str:
        return str(self.parser.symbols.decode_tree(tokens, [word_for_file(word) for word in source.words]))
