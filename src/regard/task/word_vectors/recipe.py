"""The recipe of word vectors: texts, how words and their contexts are taken from them, and a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from regard.config import Config
from regard.cost import Workload
from regard.data.batching.word_blocks import ContextWindow
from regard.data.source import DataSource
from regard.data.text.documents import TextConfig
from regard.data.text.vocabulary import VOCABULARY
from regard.data.text.words import WordsConfig
from regard.model import STATIC_VECTORS, StaticVectorsConfig
from regard.task.base import Recipe
from regard.train.word_vectors.config import VectorTrainConfig

_EXPECTED_VOCAB_SIZE = 30_000
"""How many words a text is assumed to have before it has been read."""


class WordVectorsDataConfig(Config):
    """The texts to train on, their words, and which words are a word's context."""

    train: tuple[TextConfig, ...] = Field(strict=False, min_length=1)
    """The texts to train on. A line is a sentence, which no context leaves."""
    words: WordsConfig = WordsConfig()
    window: int = Field(default=5, ge=1, le=1000)
    """The most words on either side of a word that are its context."""
    dynamic_window: bool = True
    """Whether the size of the window is drawn from 1 to `window` for each word, so that near words count more."""
    subsample: float = Field(default=1e-3, ge=0, le=1)
    """Words that make up more than this fraction of the text are left out at random, before windows are taken; 0 leaves
    out none."""

    @property
    def context_window(self) -> ContextWindow:
        return ContextWindow(self.window, self.dynamic_window, self.subsample)


@dataclass(frozen=True)
class NoScore:
    """Word vectors have no test set of their own kind of data."""

    def __str__(self) -> str:
        return "not scored"

    def rounded(self) -> dict[str, Any]:
        return {}


class WordVectorsRecipe(Recipe):
    """Everything a run that trains word vectors depends on."""

    task: Literal["word-vectors"] = "word-vectors"
    data: WordVectorsDataConfig
    model: dict[str, Any] = Field(default_factory=dict)
    """The settings of a model of word vectors; its vocabulary comes from the data."""
    train: VectorTrainConfig

    init_from: ClassVar[None] = None  # type: ignore[misc]  # word vectors always start from random ones
    usage_example: ClassVar[str] = (
        'Use the vectors: `regard.load("THIS-FOLDER").keyed["house"]`, or `regard vectors THIS-FOLDER near house`'
    )
    counted_unit: ClassVar[str] = "words"
    prepared_files: ClassVar[tuple[str, ...]] = (VOCABULARY,)
    score_type: ClassVar[type[NoScore]] = NoScore
    model_keys_from_data: ClassVar[tuple[str, ...]] = ("vocab_size",)
    model_kinds: ClassVar[tuple[Mapping[str, Any], ...]] = (STATIC_VECTORS,)

    @property
    def expected_model_config(self) -> Any:  # a StaticVectorsConfig
        return self.make_model_config(self.data.words.vocab_size or _EXPECTED_VOCAB_SIZE)

    def make_model_config(self, vocab_size: int) -> StaticVectorsConfig:
        """The model's config for a vocabulary. Errors name the key in the recipe."""
        return self.read_model_kind(STATIC_VECTORS, "skip-gram", vocab_size=vocab_size)

    def expected_workload(self) -> Workload:
        return Workload(self.train.batch_tokens, 1, steps=max(self.train.steps, 1))

    def data_sources(self) -> Mapping[str, Sequence[DataSource]]:
        return {"train": self.data.train}

    def test_sources(self) -> dict[str, Any]:
        return {}

    def held_out_source(self, folder: Path) -> None:
        return None
