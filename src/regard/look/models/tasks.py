"""The traced models of single text tasks: translation, language modeling, parsing, masked LM and classification.

`TASK_MODELS` maps each pipeline class to its traced model. A pipeline that is not in it is traced by the generic
classes of `autoregressive.py` and `encoder.py`.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.data.labels.batches import encode_words
from regard.data.labels.labeled_texts import LabeledText
from regard.data.labels.tagged_sentences import TaggedSentence
from regard.data.registry import dataset_info, find_dataset, list_datasets
from regard.data.text.corpus import CorpusConfig, read_corpus
from regard.data.text.pairs import Pair
from regard.data.text.sentence_splitting import split_sentences
from regard.data.text.treebank_tokenizer import treebank_tokenize
from regard.data.trees.cleaning import clean_tree, with_root
from regard.data.trees.linearization import linearize
from regard.data.trees.tree import Tree, escape_brackets
from regard.decode import DecodeConfig, Request
from regard.errors import UserError
from regard.look.models import examples
from regard.look.models.autoregressive import MAX_EXAMPLE_LENGTH, Source, TracedAutoregressiveModel
from regard.look.models.detokenizer import TextDetokenizer, TreeDetokenizer
from regard.look.models.encoder import (
    MAX_PREDICTIONS,
    EncoderInput,
    EncoderOutput,
    TracedTextEncoder,
    likeliest_labels,
)
from regard.look.models.images import TracedImageClassifier
from regard.look.models.traced_model import IGNORE, Example, TracedModel
from regard.look.schema import Choice, Prediction, RunRequest, Sentences, Token
from regard.model import CausalLM, ClassificationHeadConfig
from regard.task.base import Recipe
from regard.task.classification.pipeline import TextLabeler
from regard.task.classification.recipe import ClassificationRecipe
from regard.task.held_out import HELD_OUT
from regard.task.image_classification.pipeline import ImageClassifier
from regard.task.language_modeling.pipeline import SAMPLING, TextGenerator
from regard.task.masked_lm.pipeline import MASK, FillMask, MaskedRow
from regard.task.parsing.pipeline import Parser, source_text, tree_request
from regard.task.pipeline import Pipeline
from regard.task.translation.pipeline import MAX_CHARACTERS, LineTranslator, Translator, split_text, translation_search
from regard.task.translation.recipe import ScoreConfig, TranslationRecipe

MASK_INTERVAL = 7
"""In a dev set for masked LM, every so many tokens one is masked."""


class TracedTranslator(TracedAutoregressiveModel):
    """A translator: an encoder–decoder, or a language model trained to translate."""

    task = "translation"
    metrics = ("loss", "bleu")
    line_format = "sentence, tab, translation"
    splits_sentences = True
    pipeline: Translator

    def __init__(self, translator: Translator, name: str) -> None:
        super().__init__(translator, name)
        if translator.target_tokenizer.eos is None:
            raise UserError(f"{name} cannot be traced: it has no eos token, so it cannot be decoded.")
        self.source_tokenizer, self.target_tokenizer = translator.source_tokenizer, translator.target_tokenizer
        self.source_detokenizer = TextDetokenizer(self.source_tokenizer)
        self.target_detokenizer = TextDetokenizer(self.target_tokenizer)

    def default_decode(self) -> DecodeConfig:
        return translation_search(super().default_decode())

    @property
    def language(self) -> str | None:
        return self._languages[0]

    @property
    def target_language(self) -> str | None:
        return self._languages[1]

    @property
    def _languages(self) -> tuple[str | None, str | None]:
        pair = re.search(r"(?<![a-z])([a-z]{2})-([a-z]{2})(?![a-z])", self.name)
        return (None, None) if pair is None else (pair[1], pair[2])

    @property
    def examples(self) -> Sequence[str]:
        return examples.TRANSLATION.get(self.language or "en", ())

    def split_text(self, text: str) -> Sentences:
        """The sentences as `regard translate` splits them."""
        sentences = split_text(text).sentences
        if len(sentences) == len(split_sentences(text).sentences):
            return Sentences(sentences=list(sentences))
        note = f"A sentence of more than {MAX_CHARACTERS} characters is divided, as it is by regard translate."
        return Sentences(sentences=list(sentences), note=note)

    def encode_request(self, request: RunRequest) -> Source:
        if not request.text.strip() and not request.source_tokens:
            raise UserError("There is nothing to translate; enter a sentence.")
        is_prompt = isinstance(self.model, CausalLM)
        tokenizer = self.target_tokenizer if is_prompt else self.source_tokenizer
        capitals = self.pipeline.capitals
        text = (
            request.text if capitals is None else capitals.sentence_case([request.text])[0]
        )  # what the model translates
        ids = self.source_detokenizer.edited_ids(
            request.source_tokens, tokenizer.encode(text), (0, 2 if is_prompt else 1)
        )
        if not ids:
            raise UserError("There is nothing to translate; enter a sentence.")
        if not is_prompt:
            return Source(tuple(ids))
        bos = self.source_tokenizer.bos
        assert bos is not None
        return Source((*ids, self.eos, bos))

    def search_request(self, source: Source, config: DecodeConfig, max_new_tokens: int) -> Request:
        return Request(source.ids, min(config.max_length(len(source.ids) + 1), max_new_tokens), config)

    def parse_line(self, line: str) -> Pair:
        source, tab, target = line.partition("\t")
        if not tab or not source.strip() or not target.strip():
            raise UserError(f"{line[:60]!r} is not a pair; write the sentence, a tab, and its translation.")
        return Pair(source.strip(), target.strip())

    def read_items(self, recipe: Recipe, source: Any) -> Iterator[Pair]:
        return read_corpus(source)

    def fallback_items(self, recipe: Recipe | None, folder: Path | None) -> Iterator[Pair] | None:
        """Pairs held out of the training data, or the part of the training data that ships with the package."""
        held_out = None if folder is None else folder / HELD_OUT
        if held_out is not None and held_out.is_file():
            return iter(read_corpus(CorpusConfig(path=str(held_out))))
        known = {dataset.name for dataset in list_datasets()}
        for source in recipe.data_sources().get("train", ()) if recipe is not None else ():
            name = f"{source.dataset}-small"
            if name in known and (path := find_dataset(name)) is not None:
                file = next(file.name for file in dataset_info(name).files)
                return iter(read_corpus(CorpusConfig(path=str(path / file))))
        return None

    def make_example(self, item: Pair) -> Example | None:
        if not item.source.strip():
            return None
        return self.pair_example(self.source_tokenizer.encode(item.source), self.target_tokenizer.encode(item.target))

    def bleu(self, items: Sequence[Pair], recipe: Recipe | None) -> float:
        score = recipe.score if isinstance(recipe, TranslationRecipe) else ScoreConfig()
        tokenizers = self.source_tokenizer, self.target_tokenizer
        return LineTranslator(self.model, *tokenizers).score_pairs(items, self.pipeline.decode, score).bleu


class TracedTextGenerator(TracedAutoregressiveModel):
    """A language model that continues a prompt."""

    task = "language-modeling"
    default_max_new_tokens = 40
    continues_prompt = True
    pipeline: TextGenerator

    def __init__(self, generator: TextGenerator, name: str) -> None:
        super().__init__(generator, name)
        self.eos = generator.end_id

    @property
    def examples(self) -> Sequence[str]:
        return examples.PROMPTS

    def default_decode(self) -> DecodeConfig:
        return SAMPLING

    def prompt(self, ids: Sequence[int]) -> list[int]:
        return self.pipeline.prompt_ids(ids)


class TracedParser(TracedAutoregressiveModel):
    """A parser, whose output is always a tree over the words of its input."""

    task = "parsing"
    line_format = "a tree in brackets"
    reads_words = True
    pipeline: Parser

    def __init__(self, parser: Parser, name: str) -> None:
        super().__init__(parser, name)
        self.target_detokenizer = TreeDetokenizer(parser.symbols)

    def encode_request(self, request: RunRequest) -> Source:
        ids = self.source_tokenizer.encode(source_text(treebank_tokenize(request.text)))
        ids = self.source_detokenizer.edited_ids(request.source_tokens, ids, (0, 1))
        words = treebank_tokenize(request.text if request.source_tokens is None else self.source_tokenizer.decode(ids))
        if not words:
            raise UserError("There is no word to parse; enter a sentence.")
        return Source(tuple(ids), tuple(words))

    def search_request(self, source: Source, config: DecodeConfig, max_new_tokens: int) -> Request:
        return tree_request(source.ids, len(source.words), self.pipeline.symbols, config, max_new_tokens)

    def source_tokens(self, source: Source) -> list[Token]:
        """Tokens with the words of the tree, which are not always those of a text: `doesn't` is two.

        A space belongs to the word after it, as in the tokens that begin with one.
        """
        tokens, text = super().source_tokens(source), source_text(source.words)
        ids, spans = self.source_tokenizer.encode_with_offsets(text)
        if tuple(ids) != source.ids:
            return tokens
        starts = list(accumulate((len(word) + 1 for word in text.split(" ")), initial=0))[:-1]
        first_letters = (first + text[first : first + 1].isspace() for first, _ in spans)
        of_tree = iter([bisect_right(starts, letter) - 1 for letter in first_letters])
        return [token if token.special else token.model_copy(update={"word": next(of_tree)}) for token in tokens]

    def output_text(self, source: Source, ids: Sequence[int]) -> str:
        return str(self.pipeline.symbols.decode_tree(ids, [escape_brackets(word) for word in source.words]))

    def parse_line(self, line: str) -> Tree:
        tree = clean_tree(Tree.parse(line))
        if tree is None:
            raise UserError(f"{line[:60]!r} is a tree without words.")
        return with_root(tree)

    def read_items(self, recipe: Recipe, source: Any) -> Iterator[Tree]:
        return iter(source.trees())

    def make_example(self, item: Tree) -> Example | None:
        symbols = self.pipeline.symbols
        target = linearize(item, symbols.has_tags)
        if any(symbol not in symbols for symbol in target):
            return None  # the model cannot generate it
        return self.pair_example(self.source_tokenizer.encode(source_text(item.words())), symbols.encode(target))


class TracedFillMask(TracedTextEncoder):
    """A masked language model."""

    task = "masked-lm"
    pipeline: FillMask

    def __init__(self, fill_mask: FillMask, name: str) -> None:
        super().__init__(fill_mask, name, fill_mask.tokenizer)

    @property
    def examples(self) -> Sequence[str]:
        return examples.MASKED

    def encode_request(self, request: RunRequest) -> EncoderInput:
        before, after = map(len, self.frame)
        row = self.pipeline.encode_masked(request.text) if MASK in request.text else None
        ids = self.tokenizer.encode(request.text) if row is None else row.ids[before : len(row.ids) - after]
        encoded = self.encode_ids(self.edited_ids(request, ids))
        all_ids = encoded.tensor[0].tolist()
        masks = [range(index, index + 1) for index, each in enumerate(all_ids) if each == self.pipeline.mask_id]
        unchanged = row is not None and len(row.masks) == len(masks)
        places = (row.after_space, row.preceding) if row is not None and unchanged else None
        encoded.metadata["row"] = MaskedRow(all_ids, masks, *(places or ([False] * len(masks), [""] * len(masks))))
        return encoded

    def interpret(self, request: RunRequest, encoded: EncoderInput, logits: Tensor) -> EncoderOutput:
        row: MaskedRow = encoded.metadata["row"]
        tokens = self.tokens(encoded)
        edited = request.source_tokens is not None or request.text.count(MASK) != len(row.masks)
        text = self._text_with_masks(row) if edited else request.text
        if not row.masks:
            return EncoderOutput(tokens, text, [], text)
        (fillers,) = self.pipeline.fill_rows([row], top=MAX_PREDICTIONS)
        predictions = [
            Prediction(
                item=f"mask {number}",
                choices=[Choice(label=guess.text, probability=guess.probability) for guess in guesses],
            )
            for number, guesses in enumerate(fillers, start=1)
        ]
        return EncoderOutput(tokens, self.pipeline.filled(text, fillers), predictions, text)

    def make_example(self, item: str) -> Example | None:
        """Every seventh token of the text is masked."""
        before, after = self.frame
        ids = self.tokenizer.encode(item)[: MAX_EXAMPLE_LENGTH - len(before) - len(after)]
        if not ids:
            return None
        row = [*before, *ids, *after]
        first = len(before) + min(len(ids) - 1, MASK_INTERVAL // 2)
        inputs, labels = torch.tensor(row), torch.full((len(row),), IGNORE)
        for position in range(first, len(before) + len(ids), MASK_INTERVAL):
            labels[position], inputs[position] = row[position], self.pipeline.mask_id
        return Example(inputs, labels)

    def _text_with_masks(self, row: MaskedRow) -> str:
        """The text of a row whose tokens were edited, with `[MASK]` at its masks."""
        parts, start = [], 0
        for mask, spaced in zip(row.masks, row.after_space, strict=True):
            parts.append(self.tokenizer.decode(row.ids[start : mask.start]) + (" " if spaced else ""))
            start = mask.stop
        return MASK.join([*parts, self.tokenizer.decode(row.ids[start:])])


class TracedTextLabeler(TracedTextEncoder):
    """A text classifier, or a tagger that classifies each word."""

    pipeline: TextLabeler

    def __init__(self, labeler: TextLabeler, name: str) -> None:
        super().__init__(labeler, name, labeler.tokenizer)
        self.labels = labeler.labels
        self.classifies_text = isinstance(labeler.encoder.config.head, ClassificationHeadConfig)
        self.task = "text-classification" if self.classifies_text else "token-classification"
        self.reads_words = not self.classifies_text
        self.line_format = "text, tab, label" if self.classifies_text else "word/TAG word/TAG …"

    @property
    def examples(self) -> Sequence[str]:
        return examples.PASSAGES if self.classifies_text else examples.SENTENCES

    def encode_request(self, request: RunRequest) -> EncoderInput:
        if self.classifies_text:
            ids = self.edited_ids(request, self.tokenizer.encode(request.text))
            max_length = self.pipeline.max_length
            room = None if max_length is None else max(max_length - sum(map(len, self.frame)), 0)
            encoded = self.encode_ids(ids[:room])
            if room is not None and len(ids) > room:
                encoded.metadata["cuts"] = [
                    f"The input was cut: of its {len(ids):,} tokens, this classifier reads the first {room:,}."
                ]
            return encoded
        words = treebank_tokenize(request.text)
        if not words:
            raise UserError("There is no word to tag; enter a sentence.")
        ((word_ids, firsts),) = encode_words([words], self.tokenizer)
        ids = self.edited_ids(request, word_ids)
        if ids != list(word_ids):  # edited: split into words again
            words = treebank_tokenize(self.tokenizer.decode(ids))
            ((ids, firsts),) = encode_words([words], self.tokenizer)
        return self.encode_ids(ids, words=words, firsts=[first + len(self.frame[0]) for first in firsts])

    def interpret(self, request: RunRequest, encoded: EncoderInput, logits: Tensor) -> EncoderOutput:
        if self.classifies_text:
            return super().interpret(request, encoded, logits)
        words, firsts = encoded.metadata["words"], encoded.metadata["firsts"]
        predictions = [
            Prediction(item=word, choices=likeliest_labels(logits[first], self.labels))
            for word, first in zip(words, firsts, strict=True)
        ]
        output = " ".join(f"{each.item}/{each.choices[0].label}" for each in predictions)
        return EncoderOutput(self.tokens(encoded), output, predictions, self.text(encoded))

    def parse_line(self, line: str) -> LabeledText | TaggedSentence:
        if self.classifies_text:
            text, tab, label = line.rpartition("\t")
            if not tab:
                raise UserError(f"{line[:60]!r} has no label; write the text, a tab, and its label.")
            return LabeledText(text, label.strip())
        tagged = [word.rpartition("/") for word in line.split()]
        if not all(slash for _, slash, _ in tagged):
            raise UserError(f"{line[:60]!r} has a word without a tag; write word/TAG word/TAG ….")
        return TaggedSentence([word for word, _, _ in tagged], [tag for _, _, tag in tagged])

    def read_items(self, recipe: Recipe, source: Any) -> Iterator[LabeledText | TaggedSentence]:
        assert isinstance(recipe, ClassificationRecipe)
        known = set(self.labels)
        return (
            item
            for item in recipe.sentences(source)
            if known.issuperset((item.label,) if isinstance(item, LabeledText) else item.tags)
        )

    def attention_example(self, item: LabeledText | TaggedSentence) -> Example:
        return self.make_example(item)

    def make_example(self, item: LabeledText | TaggedSentence) -> Example:
        before, after = self.frame
        if isinstance(item, LabeledText):
            ids = self.tokenizer.encode(item.text)[: MAX_EXAMPLE_LENGTH - len(before) - len(after)]
            return Example(torch.tensor([*before, *ids, *after]), torch.tensor(self.label_index(item.label)))
        ((ids, firsts),) = encode_words([item.words], self.tokenizer)
        row = [*before, *ids, *after]
        labels = torch.full((len(row),), IGNORE)
        for first, tag in zip(firsts, item.tags, strict=True):
            labels[len(before) + first] = self.label_index(tag)
        return Example(torch.tensor(row), labels)


TASK_MODELS: dict[type[Pipeline], type[TracedModel]] = {
    Parser: TracedParser,
    Translator: TracedTranslator,
    TextGenerator: TracedTextGenerator,
    FillMask: TracedFillMask,
    TextLabeler: TracedTextLabeler,
    ImageClassifier: TracedImageClassifier,
}
"""The traced model of each task's pipeline."""
