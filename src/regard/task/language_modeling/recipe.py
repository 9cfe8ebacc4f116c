"""The language modeling recipe: texts, how they are cut into rows, and a language model."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from regard.config import Config, ConfigError
from regard.cost import Workload
from regard.data.text.documents import TextConfig
from regard.data.tokenizers.training import TokenizerConfig
from regard.model import CAUSAL_MODELS, GenerativeConfig
from regard.run import LoadedModel
from regard.score import PerplexityScore
from regard.task.base import SPECIAL_IDS, Recipe
from regard.task.held_out import HELD_OUT, DevSize
from regard.task.initial_embeddings import WordVectorsConfig, check_word_vectors

ONE_LENGTH = "all rows have data.context_length tokens, so all batches have the same shape"
_DEFAULT_CONTEXT_LENGTH, _MAX_CONTEXT_LENGTH = 1024, 2048
"""Tokens read at once in the evaluation of a model without a recipe: if it does not say how many, and at most."""


class LanguageModelingDataConfig(Config):
    """The texts to train, validate and test on, and how they are cut into rows."""

    train: tuple[TextConfig, ...] = Field(strict=False, min_length=1)
    """The texts to train on."""
    valid: TextConfig | None = None
    """The text to validate on during training. If not given, a part of the training data is held out."""
    test: dict[str, TextConfig] = Field(default_factory=dict)
    """Test sets by name, evaluated once, after training; if there are none, the validation set is."""
    dev_size: DevSize = 1000
    """At most how many documents are held out of the training data for validation if `valid` is not given: a twentieth
    of them, or the last twentieth of a text in a few files. 0 holds nothing out."""
    context_length: int = Field(default=256, ge=1, le=100_000_000)
    """Tokens of a row: as far back as attention reaches in training."""
    packing: Literal["contiguous", "random", "packed"] = "contiguous"
    """How rows are cut from the text. contiguous: adjacent windows, so that an epoch predicts each token once. random:
    windows at random positions. packed: whole documents side by side, with attention kept within each document."""
    append_eos: bool = True
    """Whether each document ends with an end-of-sequence token, which is predicted like any other."""

    @model_validator(mode="after")
    def _packed_documents_end(self) -> Self:
        if self.packing == "packed" and not self.append_eos:
            raise ConfigError("append_eos", "packed documents need their end-of-sequence token; set this to true.")
        return self


class LanguageModelingTokenizerConfig(TokenizerConfig):
    """How text is tokenized."""

    max_examples: int | None = Field(default=None, ge=1, le=1_000_000_000_000)
    """Train the tokenizer on the first documents only: this many."""


class LanguageModelingRecipe(Recipe):
    """Everything a language modeling run depends on."""

    task: Literal["language-modeling"] = "language-modeling"
    data: LanguageModelingDataConfig
    tokenizer: LanguageModelingTokenizerConfig = LanguageModelingTokenizerConfig()
    model: dict[str, Any] = Field(default_factory=dict)
    """The settings of a language model; its vocabulary and special tokens come from the tokenizer. With `init_from`,
    omitted settings are those of that model."""

    word_vectors: WordVectorsConfig | None = None

    usage_example: ClassVar[str] = 'Write with it: `regard generate THIS-FOLDER "Once upon a time"`'
    prepared_files: ClassVar[tuple[str, ...]] = ("tokenizer.json", HELD_OUT)
    held_out_file: ClassVar[str] = HELD_OUT
    score_type: ClassVar[type[PerplexityScore]] = PerplexityScore
    unused_train_keys: ClassVar[Mapping[str, str]] = {
        "length_buckets": ONE_LENGTH,
        "monitor": "a language model is evaluated by its loss only",
    }
    model_keys_from_data: ClassVar[tuple[str, ...]] = ("vocab_size", "special_tokens")
    model_kinds: ClassVar[tuple[Mapping[str, Any], ...]] = (CAUSAL_MODELS,)

    @model_validator(mode="after")
    def _a_row_fits_the_batch(self) -> Self:
        check_row_fits(self.train.batch_tokens, self.data.context_length)
        return self

    @model_validator(mode="after")
    def _model_can_start_from_word_vectors(self) -> Self:
        if self.word_vectors is not None:
            check_word_vectors(self.expected_model_config, {"text": self.word_vectors}, self.init_from)
        return self

    @property
    def rows(self) -> int:
        """Rows of a batch."""
        return self.train.batch_tokens // self.data.context_length

    @property
    def expected_model_config(self) -> GenerativeConfig:
        return self.make_model_config(self.initial_vocab_size() or self.tokenizer.expected_vocab_size)

    def make_model_config(self, vocab_size: int) -> GenerativeConfig:
        """The model's config for a vocabulary. Errors name the key in the recipe.

        A packed document begins with a start token. In windows, the end token of the document before it serves as one.
        """
        data = self.data
        absent = () if data.packing == "packed" else ("bos",) if data.append_eos else ("bos", "eos")
        special = {role: number for role, number in SPECIAL_IDS.items() if role not in absent}
        return self.read_model_kind(CAUSAL_MODELS, "language-model", vocab_size=vocab_size, special_tokens=special)

    def expected_workload(self) -> Workload:
        config, length = self.train, self.data.context_length
        return Workload(
            self.rows,
            length,
            steps=config.steps,
            grad_accumulation=config.grad_accumulation,
            forward_passes=config.loss.passes,
        )

    @classmethod
    def evaluation_settings(cls, loaded: LoadedModel) -> dict[str, Any]:
        """Adjacent windows of the text alone; if the model has a start token, the text is between start and end."""
        packed = loaded.config.special_tokens.bos is not None
        rows = {"packing": "packed"} if packed else {"append_eos": False}
        return {"context_length": model_context_length(loaded), **rows}

    def describe_score(self, score: PerplexityScore) -> str:
        length = self.data.context_length
        return f"{score.tokens:,} tokens in windows of {length:,}, {score.bytes:,} bytes"

    def score_settings(self) -> dict[str, Any]:
        return {"context_length": self.data.context_length}

    @classmethod
    def user_data_config(cls, path: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """A user's text is read as the recipe's own."""
        unit = {key: value for source in data.get("train", [])[:1] for key, value in source.items() if key == "unit"}
        return {"train": [{"path": path, **unit}]}

    def held_out_config(self, path: str) -> TextConfig:
        return TextConfig(path=path)


def model_context_length(loaded: LoadedModel) -> int:
    """How many tokens a model that has no recipe reads at once in an evaluation: as many as it can, within reason."""
    imported = loaded.origin.get("config", {})
    known = (
        loaded.model.max_positions,
        loaded.origin.get("context_length"),
        imported.get("max_position_embeddings") if isinstance(imported, Mapping) else None,
    )
    lengths = [length for length in known if type(length) is int and length > 0]
    return min(_MAX_CONTEXT_LENGTH, *lengths) if lengths else _DEFAULT_CONTEXT_LENGTH


def check_row_fits(batch_tokens: int, context_length: int) -> None:
    """Refuse batches that are smaller than one row."""
    if context_length > batch_tokens:
        raise ConfigError(
            "train.batch_tokens",
            f"found {batch_tokens}; a single row has {context_length} tokens (data.context_length).",
        )
