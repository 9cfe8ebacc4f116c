"""The translation recipe: sentence pairs, an encoder–decoder, and how translations are searched and scored."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from regard.config import Config, ConfigError
from regard.cost import Workload
from regard.data.batching.item_weights import refuse_weights
from regard.data.text.augment import TextAugmentConfig
from regard.data.text.corpus import CorpusConfig
from regard.data.text.filters import FilterConfig
from regard.data.tokenizers.training import TokenizerConfig
from regard.decode import DecodeConfig
from regard.errors import UserError
from regard.model import CAUSAL_MODELS, SEQ2SEQ_MODELS, EncoderDecoderConfig, GenerativeConfig
from regard.model.before.recurrent.bidirectional_lm import BidirectionalLMConfig
from regard.score import TranslationScore
from regard.task.base import SPECIAL_IDS, Recipe
from regard.task.held_out import HELD_OUT, DevSize
from regard.task.initial_embeddings import TranslationWordVectorsConfig, check_word_vectors
from regard.task.recipe_io import read_recipe

_EXPECTED_LENGTH = 25
"""Tokens of a sentence, before the data has been read."""


class TranslationDataConfig(Config):
    """The sentence pairs to train, validate and test on."""

    train: tuple[CorpusConfig, ...] = Field(strict=False, min_length=1)
    """The sentence pairs to train on: one or more sources, each with a weight."""
    valid: CorpusConfig | None = None
    """The sentence pairs to validate on during training. If not given, some pairs are held out of the training data."""
    test: dict[str, CorpusConfig] = Field(default_factory=dict)
    """Test sets by name, evaluated once, after training."""
    dev_size: DevSize = 1000
    """At most how many pairs are held out of the training data for validation if `valid` is not given."""
    filter: FilterConfig = FilterConfig()
    augment: TextAugmentConfig = TextAugmentConfig()
    """Changed copies of pairs to train on as well: in upper or lower case, or without final punctuation."""
    max_length: int = Field(default=256, ge=1, le=100_000_000)
    """Pairs with more tokens on either side are not trained on."""

    @model_validator(mode="after")
    def _only_training_data_has_weights(self) -> Self:
        refuse_weights({"valid": self.valid, **{f"test.{name}": source for name, source in self.test.items()}})
        return self


class TranslationTokenizerConfig(TokenizerConfig):
    """How both sides are tokenized."""

    shared: bool = True
    """Whether one vocabulary serves both languages."""
    max_examples: int | None = Field(default=None, ge=1, le=1_000_000_000_000)
    """Train the tokenizer on the first pairs only: this many."""
    new_tokens: int = Field(default=0, ge=0, le=10_000_000)
    """With `init_from`: extend the vocabulary of that model by so many tokens (each of the two, if not shared), learned
    from the training data with its augmentations. Old tokens keep their ids and embeddings."""


class ScoreConfig(Config):
    """How outputs are compared with references."""

    tokenized: bool = False
    """Whether the text is already tokenized, so that it is compared as it is."""
    lowercase: bool = False
    """Whether case is ignored."""


class TranslationRecipe(Recipe):
    """Everything a translation run depends on."""

    task: Literal["translation"] = "translation"
    data: TranslationDataConfig
    tokenizer: TranslationTokenizerConfig = TranslationTokenizerConfig()
    model: dict[str, Any] = Field(default_factory=dict)
    """The settings of an encoder–decoder, of another model with a source and a target, or of a language model
    (kind = "language-model") whose prompt is the source sentence; the vocabulary and the special tokens come from the
    tokenizer. With `init_from`, omitted settings are those of that model."""
    lowercase_capitals: bool = False
    """Translate a sentence in capitals in lower case, except for its first letter, and write its translation in
    capitals again. The languages are those of `data.augment`."""
    word_vectors: TranslationWordVectorsConfig | None = None
    decode: DecodeConfig = DecodeConfig()
    score: ScoreConfig = ScoreConfig()

    usage_example: ClassVar[str] = 'Translate with it: `regard translate THIS-FOLDER "Some text."`'
    data_options: ClassVar[str] = "--source FILE --target FILE"
    prepared_files: ClassVar[tuple[str, ...]] = ("tokenizer.json", "target_tokenizer.json", "dictionary.tsv", HELD_OUT)
    held_out_file: ClassVar[str] = HELD_OUT
    score_type: ClassVar[type[TranslationScore]] = TranslationScore
    model_keys_from_data: ClassVar[tuple[str, ...]] = ("vocab_size", "source_vocab_size", "special_tokens")
    model_kinds: ClassVar[tuple[Mapping[str, Any], ...]] = (SEQ2SEQ_MODELS, CAUSAL_MODELS)

    @property
    def expected_model_config(self) -> GenerativeConfig:
        new = self.tokenizer.new_tokens
        if (size := self.initial_vocab_size()) is not None:
            source = self.initial_vocab_size("source_vocab_size")
            return self.make_model_config(size + new, None if source is None else source + new)
        size = self.tokenizer.expected_vocab_size + new
        return self.make_model_config(size, None if self.tokenizer.shared else size)

    @model_validator(mode="after")
    def _new_tokens_extend_a_vocabulary(self) -> Self:
        if self.tokenizer.new_tokens and self.init_from is None:
            problem = (
                "they extend the vocabulary of the model in init_from, and there is none; raise vocab_size instead."
            )
            raise ConfigError("tokenizer.new_tokens", problem)
        return self

    @model_validator(mode="after")
    def _model_can_start_from_word_vectors(self) -> Self:
        if self.word_vectors is not None:
            check_word_vectors(self.expected_model_config, self.word_vectors.tables(), self.init_from)
        return self

    def make_model_config(self, vocab_size: int, source_vocab_size: int | None = None) -> GenerativeConfig:
        """The model's config for a vocabulary. Errors name the key in the recipe."""
        if self.has_source:
            sizes = {"vocab_size": vocab_size, "source_vocab_size": source_vocab_size}
            return self.read_model_kind(SEQ2SEQ_MODELS, "encoder-decoder", **sizes, special_tokens=SPECIAL_IDS)
        if source_vocab_size is not None:
            problem = "a language model has one vocabulary for both languages: set tokenizer.shared to true."
            raise ConfigError("model.kind", problem)
        config = self.read_model_kind(
            CAUSAL_MODELS, "language-model", vocab_size=vocab_size, special_tokens=SPECIAL_IDS
        )
        if isinstance(config, BidirectionalLMConfig):
            problem = f"{config.kind!r} would only learn its forward direction from pairs; choose 'recurrent-lm'."
            raise ConfigError("model.kind", problem)
        return config

    def make_encoder_decoder_config(
        self, vocab_size: int, source_vocab_size: int | None = None
    ) -> EncoderDecoderConfig:
        """The same for the Transformer's encoder–decoder; an error if the recipe is for another model."""
        config = self.make_model_config(vocab_size, source_vocab_size)
        if not isinstance(config, EncoderDecoderConfig):
            raise ConfigError("model.kind", f"found {config.kind!r}; an encoder–decoder is needed here.")
        return config

    @property
    def has_source(self) -> bool:
        """Whether the model has a source and a target, or one sequence of both."""
        return self.model_settings.get("kind", "encoder-decoder") not in CAUSAL_MODELS

    def expected_workload(self) -> Workload:
        config, length = self.train, min(_EXPECTED_LENGTH, self.train.batch_tokens)
        return Workload(
            batch_size=max(1, config.batch_tokens // length),
            target_length=length if self.has_source else 2 * length,
            source_length=length if self.has_source else 0,
            steps=config.steps,
            grad_accumulation=config.grad_accumulation,
            forward_passes=config.loss.passes,
        )

    def test_sets(self, folder: Path) -> dict[str, CorpusConfig]:
        """Everything that a finished run can be evaluated on, by name: the test sets and the validation pairs."""
        sets = dict(self.data.test)
        if self.data.valid is not None:
            sets.setdefault("valid", self.data.valid)
        elif (held_out := self.held_out_source(folder)) is not None:
            sets.setdefault("held-out", held_out)
        return sets

    def held_out_config(self, path: str) -> CorpusConfig:
        return CorpusConfig(path=path)


def read_translation_recipe(
    name: str | Path, overrides: Sequence[str] = (), pairs: CorpusConfig | None = None
) -> TranslationRecipe:
    """A recipe by its name or path; an error if it is not for translation."""
    recipe = read_recipe(name, overrides, pairs)
    if not isinstance(recipe, TranslationRecipe):
        raise UserError(f"{name}: this recipe is for {recipe.task}, not for translation.")
    return recipe
