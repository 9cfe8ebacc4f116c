"""The parsing recipe: trees, an encoder–decoder from words to brackets, and how trees are searched."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from regard.config import Config
from regard.cost import Workload
from regard.data.batching.item_weights import MAX_WEIGHT, refuse_weights
from regard.data.source import DataSource, NonEmpty
from regard.data.tokenizers.training import TokenizerConfig
from regard.data.trees.cleaning import clean_tree, with_root
from regard.data.trees.tree import Tree, read_trees
from regard.decode import DecodeConfig, LengthPenalty
from regard.files import check_plain_file
from regard.model import SEQ2SEQ_MODELS, GenerativeConfig
from regard.run import LoadedModel
from regard.score import BracketScore
from regard.task.backend import recorded_search
from regard.task.base import SPECIAL_IDS, Recipe
from regard.task.held_out import HELD_OUT_TREES, DevSize

SYMBOLS = "symbols.json"
"""The file in a run folder with the target vocabulary: the symbols that trees are written in."""
_EXPECTED_WORDS, _EXPECTED_SYMBOLS_PER_WORD, _EXPECTED_SYMBOLS = 25, 3, 80
"""Tokens of a sentence, symbols of its tree per token, and size of the target vocabulary, before the data is read."""


class TreesConfig(DataSource):
    """A treebank file in Penn bracket format."""

    path: NonEmpty
    """A treebank file, compressed or not."""
    weight: float = Field(default=1.0, gt=0, le=MAX_WEIGHT)
    """The number of times that each tree occurs in one epoch; of 0.3, three tenths of the trees, others each time."""

    file_keys: ClassVar[tuple[str, ...]] = ("weight",)

    @property
    def file(self) -> Path:
        """The file on this machine (`DataSource.resolve`). It is read several times, so a pipe is refused."""
        (path,) = self.resolve(self.path)
        check_plain_file(path)
        return path

    def trees(self) -> Iterator[Tree]:
        """The trees without function tags and empty elements, each under one root."""
        cleaned = (clean_tree(tree) for tree in read_trees(self.file))
        return (with_root(tree) for tree in cleaned if tree is not None)


class ParsingDataConfig(Config):
    """The trees to train, validate and test on."""

    train: tuple[TreesConfig, ...] = Field(strict=False, min_length=1)
    """The treebanks to train on."""
    valid: TreesConfig | None = None
    """The treebank to validate on during training. If not given, some trees are held out of the training data."""
    test: dict[str, TreesConfig] = Field(default_factory=dict)
    """Test sets by name, evaluated once, after training; if there are none, the validation set is."""
    dev_size: DevSize = 1000
    """At most how many trees, and at most a twentieth, are held out of the training data for validation if `valid` is
    not given. 0 holds nothing out."""
    tags: bool = True
    """Whether the linearized tree has a part-of-speech tag for each word, or one symbol for all words."""
    max_length: int = Field(default=256, ge=1, le=100_000_000)
    """Sentences with more tokens, or whose tree has more symbols, are not trained on."""

    @model_validator(mode="after")
    def _only_training_data_has_weights(self) -> Self:
        refuse_weights({"valid": self.valid, **{f"test.{name}": source for name, source in self.test.items()}})
        return self


class ParsingTokenizerConfig(TokenizerConfig):
    """How words are tokenized. The target side has a vocabulary of tree symbols."""

    vocab_size: int | None = Field(default=None, ge=1, le=10_000_000)
    """The maximum number of tokens, special ones included. By default 4,000 for bpe and unigram, otherwise
    unlimited."""

    default_vocab_size: ClassVar[int] = 4000


class ParsingRecipe(Recipe):
    """Everything a parsing run depends on."""

    task: Literal["parsing"] = "parsing"
    data: ParsingDataConfig
    tokenizer: ParsingTokenizerConfig = ParsingTokenizerConfig()
    model: dict[str, Any] = Field(default_factory=dict)
    """The settings of an encoder–decoder, or of another model with a source and a target; its vocabularies and special
    tokens come from the data. With `init_from`, omitted settings are those of that model."""
    decode: DecodeConfig = DecodeConfig(beam_size=4, length_penalty=LengthPenalty(kind="none"), max_length_ratio=4.0)

    usage_example: ClassVar[str] = 'Parse with it: `regard parse THIS-FOLDER "The cat ate the mouse."`'
    prepared_files: ClassVar[tuple[str, ...]] = ("tokenizer.json", SYMBOLS, HELD_OUT_TREES)
    held_out_file: ClassVar[str] = HELD_OUT_TREES
    score_type: ClassVar[type[BracketScore]] = BracketScore
    model_keys_from_data: ClassVar[tuple[str, ...]] = ("vocab_size", "source_vocab_size", "special_tokens")
    model_kinds: ClassVar[tuple[Mapping[str, Any], ...]] = (SEQ2SEQ_MODELS,)

    @model_validator(mode="before")
    @classmethod
    def _decode_keeps_defaults(cls, values: Any) -> Any:
        """Keys of [decode] that are left out have the defaults of parsing, also if others are given."""
        given = values.get("decode") if isinstance(values, dict) else None
        if not isinstance(given, dict):
            return values
        defaults = cls.model_fields["decode"].default.model_dump(mode="json", exclude_unset=True)
        return {**values, "decode": defaults | given}

    @property
    def expected_model_config(self) -> GenerativeConfig:
        vocab_size = self.initial_vocab_size("source_vocab_size") or self.tokenizer.expected_vocab_size
        return self.make_model_config(self.initial_vocab_size() or _EXPECTED_SYMBOLS, vocab_size)

    def make_model_config(self, symbols: int, vocab_size: int) -> GenerativeConfig:
        """The model's config for a number of tree symbols and of source tokens. Errors name the key in the recipe."""
        sizes = {"vocab_size": symbols, "source_vocab_size": vocab_size}
        return self.read_model_kind(SEQ2SEQ_MODELS, "encoder-decoder", **sizes, special_tokens=SPECIAL_IDS)

    def held_out_config(self, path: str) -> TreesConfig:
        return TreesConfig(path=path)

    @classmethod
    def for_model(cls, loaded: LoadedModel, path: str) -> Self:
        return super().for_model(loaded, path).model_copy(update={"decode": recorded_search(loaded)})

    def describe_score(self, score: BracketScore) -> str:
        return f"{score.gold:,} brackets in {score.sentences:,} sentences"

    def score_settings(self) -> dict[str, Any]:
        return {"beam_size": self.decode.beam_size}

    def expected_workload(self) -> Workload:
        config = self.train
        target = min(_EXPECTED_WORDS * _EXPECTED_SYMBOLS_PER_WORD, config.batch_tokens)
        return Workload(
            batch_size=max(1, config.batch_tokens // target),
            target_length=target,
            source_length=min(_EXPECTED_WORDS, target),
            steps=config.steps,
            grad_accumulation=config.grad_accumulation,
            forward_passes=config.loss.passes,
        )
