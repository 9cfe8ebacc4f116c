"""A translator ready to use: text of any length and layout in, the same layout in the other language out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from regard.data.sentences import Split, split_sentences
from regard.data.tokenizer import TextTokenizer
from regard.decode import DecodeConfig
from regard.errors import UserError
from regard.model import EncoderDecoder
from regard.run import Loaded, find, load, read_facts
from regard.task.translate import Translation, translate_lines

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
    """An encoder–decoder with its tokenizers. `decode` is the search it was made for."""

    def __init__(self, loaded: Loaded, decode: DecodeConfig) -> None:
        if not isinstance(loaded.model, EncoderDecoder):
            raise UserError("This is no translator: its model has no encoder to read a source with.")
        if loaded.tokenizer is None or loaded.target_tokenizer is None:
            raise UserError("This model has no tokenizer, so it can take ids but no text.")
        super().__init__(loaded.model, loaded.tokenizer, loaded.target_tokenizer)
        special = loaded.model.config.tokens.plain()
        self.decode = decode
        self.encoder_decoder = loaded.model
        self.source_text = TextTokenizer(loaded.tokenizer, **special)
        same = loaded.target_tokenizer is loaded.tokenizer
        self.target_text = self.source_text if same else TextTokenizer(loaded.target_tokenizer, **special)

    def search(self, beams: int | None) -> DecodeConfig:
        """The search it was made for, with another number of beams where one is given."""
        return self.decode if beams is None else DecodeConfig.read(self.decode.plain() | {"beams": beams})

    def to(self, device: torch.device | str) -> "Translator":
        self.model.to(device)
        return self

    def translate(self, text: str, *, beams: int | None = None) -> str:
        """A text in the other language, its layout kept. One beam is greedy search."""
        return self.translate_all([text], self.search(beams))[0].text

    def translate_all(
        self, texts: Sequence[str], decode: DecodeConfig | None = None, progress: Callable[[int], None] | None = None
    ) -> list[Translated]:
        """Each text with its sentences and their candidates. `progress` hears how many sentences are done."""
        splits = [split_sentences(text, longest=LONGEST) for text in texts]
        sentences = [sentence for split in splits for sentence in split.sentences]
        found = iter(self.translate_sentences(sentences, decode, progress))
        return [
            Translated(text, tuple((sentence, tuple(next(found))) for sentence in split.sentences), split)
            for text, split in zip(texts, splits, strict=True)
        ]

    def translate_sentences(
        self,
        sentences: Sequence[str],
        decode: DecodeConfig | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Translation]]:
        """Sentences as they stand, one by one: how a model is scored."""
        return translate_lines(
            self.encoder_decoder,
            self.source_text,
            self.target_text,
            sentences,
            decode or self.decode,
            progress=progress,
        )


def open_model(name: str | Path) -> Loaded:
    """A model from a run folder, or one that ships by its name, as what it is: a `Translator` where it can be one."""
    loaded = load(name)
    if isinstance(loaded.model, EncoderDecoder) and loaded.tokenizer is not None:
        return _translator(loaded, find(name))
    return loaded


def load_translator(name: str | Path, device: torch.device | str = "cpu") -> Translator:
    """A translator from a run folder, or one that ships with the package by its name; computes in float32."""
    place = find(name)
    return _translator(load(place), place).to(device)


def _translator(loaded: Loaded, place: Path) -> Translator:
    """With the search that its folder says it was made for."""
    origin = read_facts(place).get("origin", {})
    decode = origin.get("decode") if isinstance(origin, dict) else None
    settings = DecodeConfig() if decode is None else DecodeConfig.read(decode, f"{place / 'run.json'}: origin.decode")
    try:
        translator = Translator(loaded, settings)
    except UserError as error:
        raise UserError(f"{place}: {error}") from None
    translator.model.float()
    return translator
