"""The translation task: train on sentence pairs, evaluate by BLEU and chrF."""

from pathlib import Path
from typing import Any, Self

import torch

from regard.config import ConfigError
from regard.data.text.corpus import Corpus
from regard.data.text.pairs import Pair
from regard.data.tokenizers.extension import replaced_tokens
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.decode import DecodeConfig
from regard.model import CausalLM
from regard.progress import phase
from regard.score import TranslationScore, score_translations
from regard.task.base import score_test_sets
from regard.task.init_from import extend_vocabulary, start_from
from regard.task.initial_embeddings import check_dimensions, start_from_word_vectors
from regard.task.seq2seq import Seq2SeqModel, Seq2SeqTask
from regard.task.translation.capitals import Capitals
from regard.task.translation.pipeline import LineTranslator, Translator
from regard.task.translation.prepare import PreparedPairs, prepare_pairs
from regard.task.translation.prompt_tokenizer import source_tokenizer_for
from regard.task.translation.recipe import TranslationRecipe
from regard.task.translation.unknown_words import check_replaceable
from regard.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from regard.train.task import Evaluation, LogFn, Score


class TranslationTask(Seq2SeqTask):
    """Sentence pairs, an encoder–decoder, the cross-entropy of the target, and the BLEU of translations."""

    def __init__(
        self,
        recipe: TranslationRecipe,
        prepared: PreparedPairs,
        model: Seq2SeqModel,
        process_group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self.recipe, self.prepared = recipe, prepared
        valid = prepared.valid if prepared.valid_pairs else None
        stores = prepared.train, valid
        super().__init__(recipe.train, recipe.data.max_length, *stores, model, process_group, prepared.groups)

    @classmethod
    def prepare(cls, recipe: TranslationRecipe, folder: Path, log: LogFn, process_group: ProcessGroup) -> Self:
        """Train or load the tokenizers, tokenize the pairs, and build the model with its initial weights."""
        prepared, model = process_group.rank0_first(lambda: _data_and_model(recipe, folder, log))
        if recipe.decode.replace_unk != "off":
            check_replaceable(model, prepared.target)
        return cls(recipe, prepared, model, process_group)

    def evaluate(self) -> Evaluation | None:
        """BLEU and chrF of greedy translations: faster than beam search, and close to it."""
        if not self.prepared.valid_pairs:
            return None
        scored = self.score(self.prepared.valid_pairs, self.recipe.decode.greedy())
        return Evaluation(scored.bleu, {"bleu": scored.bleu, "chrf": scored.chrf})

    def score(self, pairs: list[Pair], decode: DecodeConfig) -> TranslationScore:
        """Translate the sources and score the outputs; several processes share the work."""
        how = self.recipe.score
        lines = [pair.source for pair in self.process_group.shard(pairs)]
        with phase("Translating", "sentences", len(lines)) as translating:
            translator = self._line_translator(len(lines))
            found = translator.translate(lines, decode.only_best(), progress=translating.update)
        outputs = self.process_group.gather_interleaved([best.text for best, *_ in found])
        references = [pair.target for pair in pairs]
        return score_translations(outputs, references, tokenized=how.tokenized, lowercase=how.lowercase)

    def test(self, log: LogFn) -> dict[str, Score]:
        """The test sets, with the recipe's search settings; if there are none, the validation pairs."""
        recipe, data = self.recipe, self.recipe.data
        sets = {name: list(Corpus(name, (source,)).read()) for name, source in data.test.items()}
        if not sets and self.prepared.valid_pairs:
            sets = {"valid" if data.valid is not None else "held-out": self.prepared.valid_pairs}
        return score_test_sets(recipe, sets, lambda pairs: self.score(pairs, recipe.decode), log)

    def metadata(self) -> dict[str, Any]:
        metadata = {"data": self.prepared.fingerprints, "decode": self.recipe.decode.plain()}
        if not self.recipe.lowercase_capitals:
            return metadata
        augment = self.recipe.data.augment
        capitals = Capitals(source_language=augment.source_language, target_language=augment.target_language)
        return metadata | {"capitals": capitals.plain()}

    def _line_translator(self, sentences: int) -> LineTranslator:
        tokenizer = source_tokenizer_for(self.model, self.prepared.source)
        model, prepared = self.decoder_model(sentences), self.prepared
        return LineTranslator(model, tokenizer, prepared.target, dictionary=prepared.dictionary)


def _data_and_model(recipe: TranslationRecipe, folder: Path, log: LogFn) -> tuple[PreparedPairs, Seq2SeqModel]:
    if recipe.init_from is None:
        vectors = {} if recipe.word_vectors is None else recipe.word_vectors.tables()
        check_dimensions(recipe.expected_model_config, vectors, folder)
        prepared = prepare_pairs(recipe, folder, log, None)
        shared = prepared.source is prepared.target
        sizes = (prepared.target.vocab_size, None if shared else prepared.source.vocab_size)
        torch.manual_seed(recipe.train.seed)
        model = recipe.make_model_config(*sizes).build()
        tokenizers = {"source": prepared.source, "target": prepared.target}
        start_from_word_vectors(model, vectors, tokenizers, folder, log)
        return prepared, model
    config, pretrained = recipe.initial_model_config, Translator.load(recipe.init_from)
    target = pretrained.target_tokenizer
    # The source tokenizer of a language model makes prompts; its training pairs are tokenized as plain text.
    source = target if isinstance(pretrained.seq2seq_model, CausalLM) else pretrained.source_tokenizer
    log(f"Starting from the weights and tokenizers of {recipe.init_from}.")
    model = start_from(pretrained.seq2seq_model, config, recipe.init_from, log)
    prepared = prepare_pairs(recipe, folder, log, (source, target))
    if recipe.tokenizer.new_tokens:
        model = _extended(model, (source, target), prepared, recipe)
        log(f"The vocabulary is extended from {target.vocab_size:,} to {prepared.target.vocab_size:,} tokens.")
    torch.manual_seed(recipe.train.seed)
    return prepared, model.train()


def _extended(
    model: Seq2SeqModel, old: tuple[TextTokenizer, TextTokenizer], prepared: PreparedPairs, recipe: TranslationRecipe
) -> Seq2SeqModel:
    """The model with the new tokens of the tokenizers."""
    size = model.config.vocab_size
    for tokenizer, rows in zip(old, (getattr(model.config, "source_vocab_size", None) or size, size), strict=True):
        if tokenizer.vocab_size != rows:
            raise ConfigError(
                "tokenizer.new_tokens",
                f"{recipe.init_from} has {rows:,} embeddings for the {tokenizer.vocab_size:,} ids of its tokenizer, so "
                "its vocabulary cannot be extended; leave this key out.",
            )
    languages = recipe.data.augment.source_language, recipe.data.augment.target_language
    if prepared.source is prepared.target:
        return extend_vocabulary(model, replaced_tokens(old[1], prepared.target, languages))
    target = replaced_tokens(old[1], prepared.target, languages[1:])
    return extend_vocabulary(model, target, replaced_tokens(old[0], prepared.source, languages[:1]))
