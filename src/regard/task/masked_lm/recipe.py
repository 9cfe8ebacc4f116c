"""Recipes for masked language modeling: a text, how it is cut into rows and masked, and an encoder."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from regard.config import ConfigError
from regard.cost import Workload
from regard.data.batching.masking import MaskingConfig
from regard.data.batching.row_batch import scored_size
from regard.data.text.documents import TextConfig
from regard.data.tokenizers.training import EncoderTokenizerConfig
from regard.model import EncoderConfig, MaskedLMHeadConfig
from regard.run import LoadedModel
from regard.score import MaskedLMScore
from regard.task.base import Recipe
from regard.task.held_out import HELD_OUT
from regard.task.language_modeling.recipe import (
    ONE_LENGTH,
    LanguageModelingDataConfig,
    LanguageModelingRecipe,
    check_row_fits,
    model_context_length,
)
from regard.task.text_encoder import EXPECTED_SPECIAL_IDS, KEYS_FROM_DATA, NEW_KEYS, read_encoder_config


class MaskedLMTokenizerConfig(EncoderTokenizerConfig):
    """How text is tokenized."""

    max_examples: int | None = Field(default=None, ge=1, le=1_000_000_000_000)
    """Train the tokenizer on the first documents only: this many."""


class MaskedLMRecipe(Recipe):
    """Everything that the training of a masked language model depends on."""

    task: Literal["masked-lm"] = "masked-lm"
    data: LanguageModelingDataConfig
    masking: MaskingConfig = MaskingConfig()
    """How tokens are masked in training. For evaluation as many are selected, and all become the mask token."""
    tokenizer: MaskedLMTokenizerConfig = MaskedLMTokenizerConfig()
    model: dict[str, Any] = Field(default_factory=dict)
    """The settings of an encoder; vocabulary and special tokens come from the tokenizer. With `init_from`, omitted
    settings are those of that model."""

    usage_example: ClassVar[str] = 'Fill in masked words: `regard fill THIS-FOLDER "The [MASK] ate the mouse."`'
    counted_unit: ClassVar[str] = "masked tokens"
    prepared_files: ClassVar[tuple[str, ...]] = ("tokenizer.json", HELD_OUT)
    held_out_file: ClassVar[str] = HELD_OUT
    score_type: ClassVar[type[MaskedLMScore]] = MaskedLMScore
    unused_train_keys: ClassVar[Mapping[str, str]] = {"length_buckets": ONE_LENGTH}
    model_keys_from_data: ClassVar[tuple[str, ...]] = KEYS_FROM_DATA
    model_kinds: ClassVar[tuple[Mapping[str, Any], ...]] = ({"encoder": EncoderConfig},)
    new_model_keys: ClassVar[tuple[str, ...]] = NEW_KEYS
    head: ClassVar[Mapping[str, str]] = {"kind": "masked_lm"}

    @model_validator(mode="after")
    def _row_fits_batch(self) -> Self:
        check_row_fits(self.train.batch_tokens, self.data.context_length)
        return self

    @property
    def rows(self) -> int:
        """Rows per batch."""
        return self.train.batch_tokens // self.data.context_length

    @property
    def expected_model_config(self) -> EncoderConfig:
        """The model's config with the configured or expected vocabulary size."""
        vocab_size = self.initial_vocab_size() or self.tokenizer.expected_vocab_size
        return self.make_model_config(vocab_size, EXPECTED_SPECIAL_IDS)

    def make_model_config(self, vocab_size: int, tokens: Mapping[str, int | None]) -> EncoderConfig:
        """The model's config for a vocabulary and its special tokens. Errors name the recipe's key."""
        missing = () if self.data.packing == "packed" else ("cls",) if self.data.append_eos else ("cls", "sep")
        known = {
            role: number for role, number in tokens.items() if role in EXPECTED_SPECIAL_IDS and role not in missing
        }
        values = self.model_settings
        head = values.get("head", {})
        values["head"] = {**self.head, **head} if isinstance(head, Mapping) else head
        config = read_encoder_config(values | {"vocab_size": vocab_size, "special_tokens": known})
        if not isinstance(config.head, MaskedLMHeadConfig):
            raise ConfigError("model.head.kind", f'found {config.head.kind!r}; for masked-lm it must be "masked_lm".')
        return config

    @property
    def expected_targets(self) -> int:
        """How many tokens of a row are usually masked at most; whole-word masking may mask more."""
        return int(self.masking.probability * self.data.context_length) + 1

    def expected_workload(self) -> Workload:
        config, length = self.train, self.data.context_length
        return Workload(
            self.rows,
            length,
            steps=config.steps,
            grad_accumulation=config.grad_accumulation,
            forward_passes=config.loss.passes,
            predicted_tokens=scored_size(self.expected_targets, length),
        )

    @classmethod
    def evaluation_settings(cls, loaded: LoadedModel) -> dict[str, Any]:
        """Each line is a text of its own, between the model's special tokens."""
        return {"context_length": model_context_length(loaded), "packing": "packed", "unit": "line"}

    def describe_score(self, score: MaskedLMScore) -> str:
        return f"{100 * self.masking.probability:g} % of the tokens masked, windows of {self.data.context_length:,}"

    def score_settings(self) -> dict[str, Any]:
        return {"context_length": self.data.context_length, "masked_fraction": self.masking.probability}

    @classmethod
    def user_data_config(cls, path: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """The user's text, read in each way that the recipe reads its own."""
        parts = data.get("train", [{}])
        configs = [LanguageModelingRecipe.user_data_config(path, {"train": [part]}) for part in parts]
        return {"train": [part for config in configs for part in config["train"]]}

    def held_out_config(self, path: str) -> TextConfig:
        return TextConfig(path=path)
