"""A parser ready to use: words in, one well-formed tree over exactly these words out, whatever the model thinks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.data.tokenizer import TextTokenizer
from regard.data.trees import END, Tree, TreeSymbols, word_for_file, word_for_people
from regard.data.words import split_words
from regard.decode import DecodeConfig, Request, TreeWish, Wish, Worker, search_all
from regard.errors import UserError
from regard.model import EncoderDecoder
from regard.run import Loaded, find, load, read_facts
from regard.task.forms import Forms
from regard.task.parsing_recipe import SYMBOLS
from regard.task.translate import BATCH_TOKENS, threads_for


@dataclass(frozen=True)
class Parsed:
    """A tree over a sentence. `log_probability` is the model's own."""

    words: tuple[str, ...]
    tree: Tree
    score: float
    log_probability: float


class Parser(Loaded):
    """An encoder–decoder with a tokenizer for words and symbols for trees."""

    def __init__(self, loaded: Loaded, symbols: TreeSymbols, decode: DecodeConfig) -> None:
        if not isinstance(loaded.model, EncoderDecoder) or loaded.tokenizer is None:
            raise UserError("This is no parser: it needs an encoder–decoder and a tokenizer.")
        if len(symbols) != loaded.model.config.vocabulary:
            raise UserError(
                f"The model writes {loaded.model.config.vocabulary} symbols, and {SYMBOLS} has {len(symbols)}; "
                "the two do not belong together."
            )
        super().__init__(loaded.model, loaded.tokenizer, place=loaded.place)
        self.encoder_decoder, self.symbols, self.decode = loaded.model, symbols, decode
        self.forms = Forms(loaded.model)
        self.text = TextTokenizer(loaded.tokenizer, **loaded.model.config.tokens.plain())

    def to(self, device: torch.device | str) -> "Parser":
        self.model.to(device)
        self.forms.forget()
        return self

    def search(self, beams: int | None) -> DecodeConfig:
        """The search it was made for, with another number of beams where one is given."""
        return self.decode if beams is None else DecodeConfig.read(self.decode.plain() | {"beams": beams})

    def parse(self, text: str, *, beams: int | None = None) -> Tree:
        """The tree of a sentence, split into words as treebanks have them."""
        words = split_words(text)
        if not words:
            raise UserError("There is no word to parse; give a sentence.")
        return self.parse_words([words], self.search(beams))[0].tree

    def parse_words(
        self,
        sentences: Sequence[Sequence[str]],
        decode: DecodeConfig | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[Parsed]:
        """Trees of sentences that are split into words already. `progress` hears how many are done."""
        worker = self.forms.worker(len(sentences))
        return parse_words(worker, self.text, self.symbols, sentences, decode or self.decode, progress)


def parse_words(
    model: Worker[Any],
    text: TextTokenizer,
    symbols: TreeSymbols,
    sentences: Sequence[Sequence[str]],
    decode: DecodeConfig,
    progress: Callable[[int], None] | None = None,
) -> list[Parsed]:
    """The best tree over each sentence's words. Words may be as people write them, or as files do."""
    lines = text.encode_batch([reading(words) for words in sentences])
    requests = [
        tree_request(ids, len(words), symbols, decode.only_best()) for words, ids in zip(sentences, lines, strict=True)
    ]
    found = search_all(
        model,
        requests,
        END,
        batch_tokens=BATCH_TOKENS.get(model.device.type, 2048),
        threads=threads_for(model, len(requests)),
        progress=progress,
    )
    return [
        Parsed(
            tuple(words),
            symbols.decode_tree(best.tokens, [word_for_file(word) for word in words]),
            best.score,
            best.log_probability,
        )
        for words, (best, *_) in zip(sentences, found, strict=True)
    ]


def tree_request(
    ids: Sequence[int], words: int, symbols: TreeSymbols, decode: DecodeConfig, longest: int | None = None
) -> Request:
    """The request for a tree over so many words that are read as these ids, in `longest` symbols if that can be."""
    wish = TreeWish.over(words, symbols)
    limit = decode.limit(words) if longest is None else min(decode.limit(words), longest)
    return Request(tuple(ids), min(max(limit, wish.smallest_limit), wish.largest_limit), decode, Wish(tree=wish))


def reading(words: Sequence[str]) -> str:
    """Words as the model reads them."""
    return " ".join(map(word_for_people, words))


def load_parser(name: str | Path, device: torch.device | str = "cpu") -> Parser:
    """A parser from a run folder; computes in float32."""
    place = find(name)
    loaded = load(place)
    if not (place / SYMBOLS).is_file():
        raise UserError(f"{place}: this is no parser: it has no {SYMBOLS}.")
    origin = read_facts(place).get("origin", {})
    decode = DecodeConfig.read(origin.get("decode", {}), f"{place / 'run.json'}: origin.decode")
    parser = Parser(loaded, TreeSymbols.load(place / SYMBOLS), decode)
    parser.model.float()
    return parser.to(device)
