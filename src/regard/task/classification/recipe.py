"""Recipes for text classification and token classification: an encoder with a classification head.

With `init_from` the encoder comes from another run, preferably a masked language model: that is fine-tuning.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from regard.config import Config, ConfigError
from regard.cost import Workload
from regard.data.labels.labeled_texts import LabeledConfig, LabeledText, read_labeled
from regard.data.labels.tagged_sentences import TaggedConfig, TaggedSentence, read_tagged
from regard.data.tokenizers.training import EncoderTokenizerConfig
from regard.model import EncoderConfig
from regard.run import LoadedModel
from regard.score import AccuracyScore
from regard.task.base import Recipe
from regard.task.held_out import HELD_OUT, DevSize
from regard.task.text_encoder import EXPECTED_SPECIAL_IDS, KEYS_FROM_DATA, MAX_TOKENS, NEW_KEYS, read_encoder_config

_EXPECTED_LABELS = ("one", "two")
"""Stand-ins for the labels before the data is read."""
_EXPECTED_LENGTH = 25
"""Tokens per sentence before the data is read."""


class TextClassificationDataConfig(Config):
    """The labeled texts of a run: training, validation and test data."""

    train: tuple[LabeledConfig, ...] = Field(strict=False, min_length=1)
    """The labeled texts to train on."""
    valid: LabeledConfig | None = None
    """The labeled texts to validate on during training. If not given, some are held out of the training data."""
    test: dict[str, LabeledConfig] = Field(default_factory=dict)
    """Test sets by name, evaluated once after training; the validation set if there are none."""
    dev_size: DevSize = 1000
    """At most how many texts, and at most a twentieth, are held out of the training data for validation if `valid` is
    not given. 0 holds nothing out."""
    max_length: int = Field(default=256, ge=3, le=100_000_000)
    """Longer texts are truncated to this many tokens, in training and inference."""


class TokenClassificationDataConfig(Config):
    """The tagged sentences of a run: training, validation and test data."""

    train: tuple[TaggedConfig, ...] = Field(strict=False, min_length=1)
    """The tagged sentences to train on."""
    valid: TaggedConfig | None = None
    """The tagged sentences to validate on during training. If not given, some are held out of the training data."""
    test: dict[str, TaggedConfig] = Field(default_factory=dict)
    """Test sets by name, evaluated once after training; the validation set if there are none."""
    dev_size: DevSize = 1000
    """At most how many sentences, and at most a twentieth, are held out of the training data for validation if `valid`
    is not given. 0 holds nothing out."""
    max_length: int = Field(default=256, ge=3, le=100_000_000)
    """Sentences of more tokens are dropped from training."""


class ClassificationRecipe(Recipe):
    """What text classification and token classification share."""

    tokenizer: EncoderTokenizerConfig = EncoderTokenizerConfig()
    """How texts are tokenized."""
    model: dict[str, Any] = Field(default_factory=dict)
    """The settings of an encoder; vocabulary and special tokens come from the tokenizer, labels from the data. With
    `init_from`, omitted settings are those of that model."""

    prepared_files: ClassVar[tuple[str, ...]] = ("tokenizer.json", HELD_OUT)
    held_out_file: ClassVar[str] = HELD_OUT
    score_type: ClassVar[type[AccuracyScore]] = AccuracyScore
    model_keys_from_data: ClassVar[tuple[str, ...]] = (*KEYS_FROM_DATA, "head.labels")
    model_kinds: ClassVar[tuple[Mapping[str, Any], ...]] = ({"encoder": EncoderConfig},)
    new_model_keys: ClassVar[tuple[str, ...]] = NEW_KEYS

    @property
    def parts(self) -> TextClassificationDataConfig | TokenClassificationDataConfig:
        """The data, of whichever kind."""
        raise NotImplementedError

    def sentences(self, part: Any) -> Iterator[LabeledText | TaggedSentence]:
        """What a part of the data holds."""
        raise NotImplementedError

    @property
    def expected_model_config(self) -> EncoderConfig:
        """The model's config, with the vocabulary that was asked for, or is likely."""
        vocab_size = self.initial_vocab_size() or self.tokenizer.expected_vocab_size
        return self.make_model_config(vocab_size, EXPECTED_SPECIAL_IDS, _EXPECTED_LABELS)

    def make_model_config(
        self, vocab_size: int, tokens: Mapping[str, int | None], labels: Sequence[str]
    ) -> EncoderConfig:
        """The model's config for a vocabulary, its special tokens and labels. Errors name their key in the recipe."""
        given = self.model.get("head", {})
        if not isinstance(given, Mapping):
            raise ConfigError("model.head", f"found {given!r}; expected a table of settings.")
        if "labels" in given:
            raise ConfigError("model.head.labels", "this follows from the data; leave this key out.")
        kind = self.head["kind"]
        if given.get("kind", kind) != kind:
            raise ConfigError("model.head.kind", f"found {given['kind']!r}; for {self.task} it must be {kind!r}.")
        head = {**self.head, **given, "labels": list(labels)}
        known = {role: number for role, number in tokens.items() if role in EXPECTED_SPECIAL_IDS}
        values = self.model_settings
        return read_encoder_config(values | {"head": head, "vocab_size": vocab_size, "special_tokens": known})

    def expected_workload(self) -> Workload:
        """Full batches, rows of ordinary sentences."""
        config, length = self.train, min(_EXPECTED_LENGTH, self.train.batch_tokens)
        rows = max(1, config.batch_tokens // length)
        return Workload(
            rows,
            length,
            steps=config.steps,
            grad_accumulation=config.grad_accumulation,
            forward_passes=config.loss.passes,
        )

    def describe_score(self, score: AccuracyScore) -> str:
        return score.describe_items()

    @classmethod
    def user_data_config(cls, path: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Read as the recipe's own data is."""
        first = data.get("train", [{}])[0]
        return {"train": [{key: value for key, value in first.items() if key != "dataset"} | {"path": path}]}

    def resolved(self) -> dict[str, Any]:
        values = super().resolved()
        values["model"]["head"].pop("labels")  # they follow from the data
        return values


class TextClassificationRecipe(ClassificationRecipe):
    """Everything the training of a model that labels texts depends on."""

    task: Literal["text-classification"] = "text-classification"
    data: TextClassificationDataConfig

    usage_example: ClassVar[str] = 'Label a text with it: `regard classify THIS-FOLDER "What a film!"`'
    counted_unit: ClassVar[str] = "texts"
    head: ClassVar[Mapping[str, str]] = {"kind": "classification", "pooling": "mean"}

    @classmethod
    def evaluation_settings(cls, loaded: LoadedModel) -> dict[str, Any]:
        """Texts are truncated where the model's positions end, if they do."""
        limits = (loaded.origin.get("max_length"), loaded.model.embedding.embed_positions.max_length, MAX_TOKENS)
        return {"max_length": next(length for length in limits if type(length) is int)}

    @property
    def parts(self) -> TextClassificationDataConfig:
        return self.data

    def sentences(self, part: LabeledConfig) -> Iterator[LabeledText | TaggedSentence]:
        return read_labeled(part)

    def held_out_config(self, path: str) -> LabeledConfig:
        return LabeledConfig(path=path)


class TokenClassificationRecipe(ClassificationRecipe):
    """Everything the training of a model that tags words depends on."""

    task: Literal["token-classification"] = "token-classification"
    data: TokenClassificationDataConfig

    usage_example: ClassVar[str] = 'Tag words with it: `regard tag THIS-FOLDER "The cat ate the mouse."`'
    counted_unit: ClassVar[str] = "words"
    head: ClassVar[Mapping[str, str]] = {"kind": "token_classification"}

    @classmethod
    def evaluation_settings(cls, loaded: LoadedModel) -> dict[str, Any]:
        """A word and its tag per line, as most tagged data is written."""
        return {"format": "columns"}

    @property
    def parts(self) -> TokenClassificationDataConfig:
        return self.data

    def sentences(self, part: TaggedConfig) -> Iterator[LabeledText | TaggedSentence]:
        return read_tagged(part)

    def held_out_config(self, path: str) -> TaggedConfig:
        return TaggedConfig(path=path)
