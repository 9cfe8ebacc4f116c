"""Sentences in capitals: translated in sentence case (small letters after the first), then put in capitals again.

A tokenizer that was trained on edited text cuts words in capitals into single letters, so a model would have to learn
every word a second time from its letters. In lower case it knows them, and names as well if it was trained on text in
lower case too (`data.augment.lowercase`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from regard.config import Config
from regard.data.text.augment import Language, lowercase, uppercase
from regard.run import LoadedModel

if TYPE_CHECKING:
    from regard.task.translation.result import Translation


class Capitals(Config):
    """The languages, by which small and capital letters correspond."""

    source_language: Language | None = None
    target_language: Language | None = None

    def sentence_case(self, sentences: Sequence[str]) -> list[str]:
        """The sentences; in those that are in capitals, all letters but the first become small."""
        return [self._sentence_case(each) if in_capitals(each) else each for each in sentences]

    def restore(self, sentences: Sequence[str], found: list[list["Translation"]]) -> list[list["Translation"]]:
        """The translations of sentences, with those of sentences in capitals in capitals. Their tokens stay."""
        return [
            [replace(one, text=uppercase(one.text, self.target_language)) for one in each]
            if in_capitals(sentence)
            else each
            for sentence, each in zip(sentences, found, strict=True)
        ]

    def _sentence_case(self, sentence: str) -> str:
        rest = next(index for index, letter in enumerate(sentence, start=1) if letter.isupper())
        return sentence[:rest] + lowercase(sentence[rest:], self.source_language)


def recorded_capitals(loaded: LoadedModel) -> Capitals | None:
    """As a run folder records it; None if sentences in capitals are translated as they are."""
    recorded = loaded.origin.get("capitals")
    where = "" if loaded.path is None else f"{loaded.path / 'run.json'}: "
    return None if recorded is None else Capitals.read(recorded, f"{where}origin.capitals")


def in_capitals(sentence: str) -> bool:
    """Whether all letters are capitals, and there are at least two: "I" is written like this anyway."""
    return sentence.isupper() and sum(map(str.isupper, sentence)) > 1
