"""A recipe for translation: pairs of sentences, an encoder–decoder, and how translations are searched and judged."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from regard.config import Config, ConfigError
from regard.cost import Work
from regard.data.corpus import CorpusConfig
from regard.data.filter import FilterConfig
from regard.data.tokenizer_training import TokenizerConfig
from regard.decode import DecodeConfig
from regard.model import EncoderDecoderConfig, LanguageModelConfig, ModelConfig
from regard.score import TranslationScore
from regard.task.passes import passes
from regard.task.recipe import SPECIAL, Place, Recipe, Say
from regard.train.world import World

if TYPE_CHECKING:
    from regard.task.translation import TranslationTask

HELD_OUT = "held-out.jsonl"
"""The file in a run's folder with the pairs that were taken out of the training part."""
_FROM_TOKENIZER = ("vocabulary", "source_vocabulary", "tokens")
_ORDINARY = 25
"""Tokens of a sentence, where nothing is known of it."""


class DataConfig(Config):
    """Which pairs a run learns from, watches and is judged by."""

    train: tuple[CorpusConfig, ...] = Field(strict=False, min_length=1)
    valid: CorpusConfig | None = None
    """Without it, some pairs are taken out of the training part."""
    test: dict[str, CorpusConfig] = Field(default_factory=dict)
    """Test sets by name. They are looked at once, when training is over."""
    hold_out: int = Field(default=1000, ge=0)
    """How many pairs at most are taken out of the training part to watch the run, where `valid` is not given."""
    filter: FilterConfig = FilterConfig()
    longest: int = Field(default=256, ge=1)
    """Pairs with a side of more tokens are left out of training."""


class SharedTokenizerConfig(TokenizerConfig):
    """How text becomes tokens, on both sides."""

    shared: bool = True
    """One vocabulary for both languages."""
    sample: int | None = Field(default=None, ge=1)
    """Learn from the first so many pairs only."""


class ScoreConfig(Config):
    """How outputs are compared with references."""

    tokenised: bool = False
    """The text is tokenised already and is taken as it stands."""
    lowercase: bool = False
    """Case does not count."""


class TranslationRecipe(Recipe):
    """Everything a translation run depends on."""

    task: Literal["translation"] = "translation"
    data: DataConfig
    tokenizer: SharedTokenizerConfig = SharedTokenizerConfig()
    model: dict[str, Any] = Field(default_factory=dict)
    """The settings of an encoder–decoder, or of a language model (kind = "language-model"), for which the sentence is a
    prompt; vocabulary and special tokens come from the tokenizer."""
    decode: DecodeConfig = DecodeConfig()
    score: ScoreConfig = ScoreConfig()

    usage: ClassVar[str] = 'Translate with it: `regard translate THIS-FOLDER "Some text."`'
    written: ClassVar[tuple[str, ...]] = ("tokenizer.json", "target_tokenizer.json", HELD_OUT)
    score_type: ClassVar[type[TranslationScore]] = TranslationScore

    @property
    def settings(self) -> ModelConfig:
        """The model's config, with the vocabulary that was asked for, or is likely."""
        size = self.tokenizer.likely_vocabulary
        return self.model_settings(size, None if self.tokenizer.shared else size)

    def model_settings(self, vocabulary: int, source_vocabulary: int | None = None) -> ModelConfig:
        """The model's config for a vocabulary. Errors name their key in the recipe."""
        for key in _FROM_TOKENIZER:
            if key in self.model:
                raise ConfigError(f"model.{key}", "this follows from the tokenizer; leave this key out.")
        values = {**self.model, "vocabulary": vocabulary, "tokens": SPECIAL}
        try:
            if not self._apart:
                if source_vocabulary is not None:
                    raise ConfigError("kind", "a language model reads what it writes: set tokenizer.shared to true.")
                return LanguageModelConfig(**values)
            return EncoderDecoderConfig(**values, source_vocabulary=source_vocabulary)
        except ConfigError as error:
            raise ConfigError(f"model.{error.key}", error.problem) from None

    def encoder_decoder_settings(self, vocabulary: int, source_vocabulary: int | None = None) -> EncoderDecoderConfig:
        """The same, refused where the recipe is for a language model."""
        settings = self.model_settings(vocabulary, source_vocabulary)
        if not isinstance(settings, EncoderDecoderConfig):
            raise ConfigError("model.kind", f"found {settings.kind!r}; an encoder–decoder is needed here.")
        return settings

    @property
    def _apart(self) -> bool:
        """Whether source and target are read apart, or as one text."""
        return bool(self.model.get("kind") != "language-model")

    def likely_work(self) -> Work:
        """Full batches, rows of ordinary sentences."""
        config, length = self.train, min(_ORDINARY, self.train.tokens)
        sides = (length, length) if self._apart else (2 * length, 0)
        return Work(max(1, config.tokens // length), *sides, config.steps, config.accumulate, passes=passes(config))

    def places(self) -> Mapping[str, Sequence[Place]]:
        places: dict[str, Sequence[Place]] = {"train": self.data.train}
        places |= {name: (part,) for name, part in self.data.test.items()}
        return places if self.data.valid is None else places | {"valid": (self.data.valid,)}

    @property
    def watched(self) -> bool:
        return self.data.valid is not None or self.data.hold_out > 0

    def begin(self, folder: Path, say: Say, world: World) -> "TranslationTask":
        from regard.task.translation import TranslationTask

        return TranslationTask.begin(self, folder, say, world)

    def resolved(self) -> dict[str, Any]:
        model = {key: value for key, value in self.settings.plain().items() if key not in _FROM_TOKENIZER}
        return self.plain() | {"model": model}
