"""A recipe for parsing: trees, an encoder–decoder that reads words and writes brackets, and how those are searched."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from regard.config import Config, ConfigError
from regard.cost import Work
from regard.data.registry import get
from regard.data.tokenizer_training import TokenizerConfig
from regard.data.trees import Tree, clean, read_trees, rooted
from regard.decode import DecodeConfig
from regard.model import EncoderDecoderConfig
from regard.score import BracketScore
from regard.task.passes import passes
from regard.task.recipe import SPECIAL, Place, Recipe, Say
from regard.train.world import World

if TYPE_CHECKING:
    from regard.task.parsing import ParsingTask

SYMBOLS = "symbols.json"
"""The file in a run's folder with the symbols that trees are written in."""
_FROM_DATA = ("vocabulary", "source_vocabulary", "tokens")
_ORDINARY, _SYMBOLS_A_WORD, _KNOWN = 25, 3, 80
"""Tokens of a sentence, symbols of its tree for each, and how many symbols there are, where nothing is known of it."""


class TreesConfig(Config):
    """Where trees are, in Penn bracket format."""

    set: Annotated[str, Field(min_length=1)] | None = None
    """A named data set (`regard data list`) that the path is in; without it, it is a path of the file system."""
    path: Annotated[str, Field(min_length=1)]
    times: int = Field(default=1, ge=1)
    """How often each tree is learnt from in one round."""

    @property
    def place(self) -> str:
        """The path, for messages."""
        return self.path if self.set is None else f"{self.set}: {self.path}"

    @property
    def file(self) -> Path:
        """The file itself. That of a named set is found on this machine, or fetched."""
        return Path(self.path) if self.set is None else get(self.set, [self.path]) / self.path

    def trees(self) -> Iterator[Tree]:
        """Cleaned of functions and empty elements, under one root."""
        cleaned = (clean(tree) for tree in read_trees(self.file))
        return (rooted(tree) for tree in cleaned if tree is not None)


class ParsingDataConfig(Config):
    """Which trees a run learns from, watches and is judged by."""

    train: tuple[TreesConfig, ...] = Field(strict=False, min_length=1)
    valid: TreesConfig | None = None
    test: dict[str, TreesConfig] = Field(default_factory=dict)
    """Test sets by name, looked at once, when training is over; the validation part, if there are none."""
    tags: bool = True
    """Whether the tree that is written has a tag for each word, or only says that a word comes."""
    longest: int = Field(default=256, ge=1)
    """Sentences of more tokens, or whose tree has more symbols, are left out of training."""


class ParsingRecipe(Recipe):
    """Everything the training of a parser depends on."""

    task: Literal["parsing"] = "parsing"
    data: ParsingDataConfig
    tokenizer: TokenizerConfig = TokenizerConfig(vocabulary=4000)
    """How words become tokens. What is written has symbols of its own."""
    model: dict[str, Any] = Field(default_factory=dict)
    """The settings of an encoder–decoder; its vocabularies and special tokens come from the data."""
    decode: DecodeConfig = DecodeConfig(beams=4, penalty="none", longest_factor=4.0)

    usage: ClassVar[str] = 'Parse with it: `regard parse THIS-FOLDER "The cat ate the mouse."`'
    written: ClassVar[tuple[str, ...]] = ("tokenizer.json", SYMBOLS)
    score_type: ClassVar[type[BracketScore]] = BracketScore

    @property
    def settings(self) -> EncoderDecoderConfig:
        """The model's config, with the vocabulary that was asked for, or is likely."""
        return self.model_settings(_KNOWN, self.tokenizer.likely_vocabulary)

    def model_settings(self, symbols: int, vocabulary: int) -> EncoderDecoderConfig:
        """The model's config for so many symbols of trees and tokens of words. Errors name their key in the recipe."""
        for key in _FROM_DATA:
            if key in self.model:
                raise ConfigError(f"model.{key}", "this follows from the data; leave this key out.")
        try:
            sizes: dict[str, Any] = {"vocabulary": symbols, "source_vocabulary": vocabulary, "tokens": SPECIAL}
            return EncoderDecoderConfig(**self.model, **sizes)
        except ConfigError as error:
            raise ConfigError(f"model.{error.key}", error.problem) from None

    def likely_work(self) -> Work:
        config = self.train
        target = min(_ORDINARY * _SYMBOLS_A_WORD, config.tokens)
        source = min(_ORDINARY, target)
        rows = max(1, config.tokens // target)
        return Work(rows, target, source, config.steps, config.accumulate, passes=passes(config))

    def places(self) -> Mapping[str, Sequence[Place]]:
        places: dict[str, Sequence[Place]] = {"train": self.data.train}
        places |= {name: (part,) for name, part in self.data.test.items()}
        return places if self.data.valid is None else places | {"valid": (self.data.valid,)}

    def begin(self, folder: Path, say: Say, world: World) -> "ParsingTask":
        from regard.task.parsing import ParsingTask

        return ParsingTask.begin(self, folder, say, world)

    def resolved(self) -> dict[str, Any]:
        model = {key: value for key, value in self.settings.plain().items() if key not in _FROM_DATA}
        return self.plain() | {"model": model}
