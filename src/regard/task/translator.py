"""A translator ready to use: text of any length and layout in, the same layout in the other language out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.data.sentences import Split, split_sentences
from regard.data.tokenizer import TextTokenizer
from regard.decode import DecodeConfig, Ensemble, Wish, Worker
from regard.decode.shortlist import Shortlist
from regard.errors import UserError
from regard.model import LanguageModel
from regard.run import Loaded, find, load, read_facts
from regard.task.forms import Forms
from regard.task.prompts import Translating, reading
from regard.task.translate import Translation, score_lines, translate_lines
from regard.task.words import make_wish

LONGEST = 500
"""Characters of a sentence; a longer one is cut where it does least harm."""


@dataclass(frozen=True)
class Translated:
    """A text and what became of it: of each sentence in it the best translations, best first."""

    source: str
    sentences: tuple[tuple[str, tuple[Translation, ...]], ...]
    split: Split

    @property
    def text(self) -> str:
        return self.candidate(0)

    def candidate(self, number: int) -> str:
        """The text made of each sentence's best translation but `number` (or of its last, where there are fewer)."""
        return self.split.join([found[min(number, len(found) - 1)].text for _, found in self.sentences])

    @property
    def candidates(self) -> int:
        """How many different texts there are."""
        return max((len(found) for _, found in self.sentences), default=1)


class Translator(Loaded):
    """An encoder–decoder, or a language model that was taught to, with its tokenizers. `decode` is its search."""

    def __init__(self, loaded: Loaded, decode: DecodeConfig) -> None:
        if not isinstance(loaded.model, Translating):
            raise UserError("This is no translator: its model does not write.")
        if loaded.tokenizer is None or loaded.target_tokenizer is None:
            raise UserError("This model has no tokenizer, so it can take ids but no text.")
        super().__init__(loaded.model, loaded.tokenizer, loaded.target_tokenizer, place=loaded.place)
        special = loaded.model.config.tokens.plain()
        self.decode = decode
        self.translating = loaded.model
        self.worker: Worker[Any] = loaded.model
        """What is searched: this model, or an ensemble with others."""
        self.forms = Forms(loaded.model)
        """How it is laid out for the hardware, and in which precision it computes."""
        self.shortlist: Shortlist | None = None
        """The tokens to search among, where not the whole vocabulary is wanted."""
        text = TextTokenizer(loaded.tokenizer, **special)
        same = loaded.target_tokenizer is loaded.tokenizer
        self.source_text = reading(text, loaded.model)
        self.target_text = text if same else TextTokenizer(loaded.target_tokenizer, **special)

    def search(self, beams: int | None) -> DecodeConfig:
        """The search it was made for, with another number of beams where one is given."""
        return self.decode if beams is None else DecodeConfig.read(self.decode.plain() | {"beams": beams})

    def to(self, device: torch.device | str) -> "Translator":
        self.model.to(device)
        self.forms.forget()
        return self

    def pays_to_compile(self, sentences: int) -> bool:
        """Whether so many sentences are worth compiled kernels. The first time they cost some seconds."""
        return self.worker is self.translating and self.forms.pays_to_compile(sentences)

    def _worker_for(self, sentences: int) -> Worker[Any]:
        """The model in the form that is best for so many sentences; an ensemble as it is."""
        return self.forms.worker(sentences) if self.worker is self.translating else self.worker

    def joined(self, others: "Sequence[Translator]") -> "Translator":
        """An ensemble of this one and others that were trained with the same tokenizers."""
        for other in others:
            if (other.source_text.json, other.target_text.json) != (self.source_text.json, self.target_text.json):
                raise UserError("Models of an ensemble must share their tokenizers; these were trained with others.")
        joined = Translator(Loaded(self.model, self.tokenizer, self.target_tokenizer), self.decode)
        joined.worker = Ensemble([self.worker, *(other.worker for other in others)])
        joined.shortlist = self.shortlist
        return joined

    def translate(
        self,
        text: str,
        *,
        beams: int | None = None,
        prefix: str = "",
        required: Sequence[str] = (),
        forbidden: Sequence[str] = (),
    ) -> str:
        """A text in the other language, its layout kept. One beam is greedy search.

        `prefix` is what the translation begins with, `required` and `forbidden` are words that it has and has not.
        """
        wish = make_wish(self.target_text, prefix=prefix, required=required, forbidden=forbidden)
        return self.translate_all([text], self.search(beams).only_best(), wish=wish)[0].text

    def translate_all(
        self,
        texts: Sequence[str],
        decode: DecodeConfig | None = None,
        progress: Callable[[int], None] | None = None,
        *,
        wish: Wish | None = None,
        alternatives: int = 0,
        numbers: Sequence[int] | None = None,
    ) -> list[Translated]:
        """Each text with its sentences and their candidates. `progress` hears how many sentences are done.

        `numbers`: of each text's first sentence, where these are some of many texts; words are drawn by them.
        """
        splits = [split_sentences(text, longest=LONGEST) for text in texts]
        if wish is not None and (wish.prefix or wish.required):
            for split in splits:
                if len(split.sentences) > 1:
                    raise UserError(
                        f"A beginning or required words go with one sentence, and this text has "
                        f"{len(split.sentences)}: {split.sentences[0]!r} …; translate them one by one."
                    )
        sentences = [sentence for split in splits for sentence in split.sentences]
        each = None
        if numbers is not None:
            each = [
                first + at for first, split in zip(numbers, splits, strict=True) for at in range(len(split.sentences))
            ]
        found = iter(
            self.translate_sentences(sentences, decode, progress, wish=wish, alternatives=alternatives, numbers=each)
        )
        return [
            Translated(text, tuple((sentence, tuple(next(found))) for sentence in split.sentences), split)
            for text, split in zip(texts, splits, strict=True)
        ]

    def translate_sentences(
        self,
        sentences: Sequence[str],
        decode: DecodeConfig | None = None,
        progress: Callable[[int], None] | None = None,
        *,
        wish: Wish | None = None,
        alternatives: int = 0,
        numbers: Sequence[int] | None = None,
    ) -> list[list[Translation]]:
        """Sentences as they stand, one by one: how a model is scored. Of some of many, `numbers` are theirs."""
        return translate_lines(
            self._worker_for(len(sentences)),
            self.source_text,
            self.target_text,
            sentences,
            decode or self.decode,
            wish=wish,
            alternatives=alternatives,
            numbers=numbers,
            shortlist=self.shortlist,
            progress=progress,
        )

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[tuple[float, ...]]:
        """How likely given translations are: the log-probability of each token, and of the end behind them."""
        if len(sources) != len(targets):
            raise UserError(f"There are {len(sources)} sources and {len(targets)} translations; give one for each.")
        return score_lines(self.worker, self.source_text, self.target_text, sources, targets)


def sentences_of(text: str) -> int:
    """How many sentences a text is translated by."""
    return len(split_sentences(text, longest=LONGEST).sentences)


def load_translator(name: str | Path, device: torch.device | str = "cpu") -> Translator:
    """A translator from a run folder, or one that ships with the package by its name; computes in float32."""
    place = find(name)
    return _translator(load(place), place).to(device)


def _translator(loaded: Loaded, place: Path) -> Translator:
    """With the search that its folder says it was made for."""
    origin = read_facts(place).get("origin", {})
    origin = origin if isinstance(origin, dict) else {}
    if isinstance(loaded.model, LanguageModel) and origin.get("task") != "translation":
        raise UserError(f"{place}: this is no translator, but a language model: use `regard generate` with it.")
    decode = origin.get("decode")
    settings = DecodeConfig() if decode is None else DecodeConfig.read(decode, f"{place / 'run.json'}: origin.decode")
    try:
        translator = Translator(loaded, settings)
    except UserError as error:
        raise UserError(f"{place}: {error}") from None
    translator.model.float()
    return translator
