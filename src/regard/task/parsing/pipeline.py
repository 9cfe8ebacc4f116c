"""The parser: words in, one well-formed tree over exactly these words out.

The tree is guaranteed by constrained decoding: the search allows only symbols that lead to one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, overload

import torch

from regard.data.text.treebank_tokenizer import treebank_tokenize
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.data.trees.linearization import EOS_ID, TreeVocabulary
from regard.data.trees.tree import Tree, escape_brackets, unescape_brackets
from regard.decode import BatchDecoderModel, Constraints, DecodeConfig, Request, TreeConstraint, search_all
from regard.errors import UserError
from regard.model import Seq2SeqLM
from regard.run import LoadedModel
from regard.task.backend import Backend, batch_tokens_for, recorded_search, threads_for
from regard.task.parsing.recipe import SYMBOLS
from regard.task.pipeline import Pipeline

MAX_SENTENCE_TOKENS = 1 << 13
"""The longest sentence, even if a model has no limit of its own: time grows with the square of the length."""
Texts = list[str] | tuple[str, ...]


@dataclass(frozen=True, repr=False)
class ParsedSentence:
    """The tree over a sentence: `parser.parse(text, details=True)`.

    `logprob` is the log-probability of the tree, and `score` is what it was ranked by.
    """

    words: tuple[str, ...]
    tree: Tree
    score: float
    logprob: float

    def __repr__(self) -> str:
        return f"ParsedSentence({str(self.tree)!r}, score={self.score:.4f}, logprob={self.logprob:.4f})"


class Parser(Pipeline):
    """A constituency parser: an encoder–decoder with a tokenizer for words and a vocabulary of tree symbols."""

    def __init__(
        self, loaded: LoadedModel, symbols: TreeVocabulary | None = None, decode: DecodeConfig | None = None
    ) -> None:
        """`symbols` and `decode` are by default those in the run folder."""
        super().__init__(loaded)
        assert isinstance(loaded.model, Seq2SeqLM)
        assert loaded.tokenizer is not None
        if symbols is None:
            assert loaded.path is not None
            symbols = TreeVocabulary.load(loaded.path / SYMBOLS)
        if len(symbols) != loaded.model.config.vocab_size:
            raise UserError(
                f"The model has {loaded.model.config.vocab_size} symbols, and {SYMBOLS} has {len(symbols)}; they do "
                "not belong together."
            )
        self.encoder_decoder, self.symbols, self.decode = loaded.model, symbols, decode or recorded_search(loaded)
        self.backend = Backend(loaded.model)
        """Which implementation of the decoder runs, and in which precision."""
        self.tokenizer = TextTokenizer(loaded.tokenizer, **loaded.model.config.special_tokens.plain())

    @classmethod
    def unsupported_reason(cls, loaded: LoadedModel) -> str | None:
        if not isinstance(loaded.model, Seq2SeqLM) or loaded.tokenizer is None:
            return "This is not a parser: it needs an encoder–decoder and a tokenizer."
        if loaded.path is not None and not (loaded.path / SYMBOLS).is_file():
            return f"This is not a parser: it has no {SYMBOLS}."
        return None

    def to(self, device: torch.device | str) -> Self:
        self.model.to(device)
        self.backend.reset()
        return self

    def search(self, beam_size: int | None) -> DecodeConfig:
        """The search settings, with another beam size if one is given."""
        return self.decode if beam_size is None else self.decode.updated({"beam_size": beam_size})

    @overload
    def parse(self, text: str, *, details: Literal[True], **options: Any) -> ParsedSentence: ...
    @overload
    def parse(self, text: Texts, *, details: Literal[True], **options: Any) -> list[ParsedSentence]: ...
    @overload
    def parse(self, text: str, **options: Any) -> Tree: ...
    @overload
    def parse(self, text: Texts, **options: Any) -> list[Tree]: ...

    def parse(
        self,
        text: str | Texts,
        *,
        tokenized: bool = False,
        details: bool = False,
        progress: Callable[[int], None] | None = None,
        **options: Any,
    ) -> Any:
        """The tree of a sentence, or the trees of a list of sentences, in batches.

            parser.parse("The cat ate the mouse.")
            parser.parse(["The cat slept .", "Dogs bark ."], tokenized=True, beam_size=4)

        Sentences are split into words as in the Penn Treebank; if they are `tokenized`, their words are separated by
        spaces. `options` are fields of `DecodeConfig`, such as `beam_size`. The result is a `Tree`, or with `details` a
        `ParsedSentence`, which also has its score. A list of sentences gives a list of results. `progress` is called
        with the number of finished sentences.
        """
        decode = self.decode.with_options(options, self.parse)
        if options.get("nbest") not in (None, 1):
            raise UserError(f"nbest: found {options['nbest']!r}, but a parser finds the best tree only; leave it out.")
        sentences = [
            each.split() if tokenized else treebank_tokenize(each)
            for each in ([text] if isinstance(text, str) else text)
        ]
        if not all(sentences):
            raise UserError("There is no word to parse; give a sentence.")
        found = self.parse_words(sentences, decode, progress)
        results = found if details else [one.tree for one in found]
        return results[0] if isinstance(text, str) else results

    def parse_words(
        self,
        sentences: Sequence[Sequence[str]],
        decode: DecodeConfig | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[ParsedSentence]:
        """The trees of sentences that are already split into words. `progress` is called with the number finished."""
        model = self.backend.decoder_model(len(sentences))
        return parse_words(model, self.tokenizer, self.symbols, sentences, decode or self.decode, progress)


def parse_words(
    model: BatchDecoderModel[Any],
    tokenizer: TextTokenizer,
    symbols: TreeVocabulary,
    sentences: Sequence[Sequence[str]],
    decode: DecodeConfig,
    progress: Callable[[int], None] | None = None,
) -> list[ParsedSentence]:
    """The best tree over each sentence's words, which may be spelled as in text or escaped as in treebank files."""
    sources = tokenizer.encode_batch([source_text(words) for words in sentences])
    if (longest := max(map(len, sources), default=0)) > MAX_SENTENCE_TOKENS:
        raise UserError(
            f"A sentence has {longest:,} tokens, and at most {MAX_SENTENCE_TOKENS:,} are parsed; give one per line."
        )
    requests = [
        tree_request(ids, len(words), symbols, decode.only_best())
        for words, ids in zip(sentences, sources, strict=True)
    ]
    found = search_all(
        model,
        requests,
        EOS_ID,
        batch_tokens=batch_tokens_for(model),
        threads=threads_for(model, len(requests)),
        progress=progress,
    )
    return [
        ParsedSentence(
            tuple(words),
            symbols.decode_tree(best.tokens, [escape_brackets(word) for word in words]),
            best.score,
            best.logprob,
        )
        for words, (best, *_) in zip(sentences, found, strict=True)
    ]


def tree_request(
    ids: Sequence[int], words: int, symbols: TreeVocabulary, decode: DecodeConfig, max_symbols: int | None = None
) -> Request:
    """The request for a tree over `words` words with these ids, of at most `max_symbols` symbols if possible."""
    decode.check_no_translation()
    tree = TreeConstraint.over(words, symbols)
    limit = decode.max_length(words) if max_symbols is None else min(decode.max_length(words), max_symbols)
    return Request(tuple(ids), min(max(limit, tree.min_length), tree.max_length), decode, Constraints(tree=tree))


def source_text(words: Sequence[str]) -> str:
    """The text that is tokenized for a sentence's words."""
    return " ".join(map(unescape_brackets, words))
