"""Recipes for labels: one for a whole text, or one for each of its words. Both put a head on an encoder.

With `init_from` it is the encoder of another run, best one that learnt to fill gaps: that is fine-tuning.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from regard.config import Config, ConfigError
from regard.cost import Work
from regard.data.labelled import Labelled, LabelledConfig, Tagged, read_labelled
from regard.data.tagged import TaggedConfig, read_tagged
from regard.data.tokenizer_training import EncoderTokenizerConfig
from regard.model import EncoderConfig
from regard.score import AccuracyScore
from regard.task.encoders import FROM_DATA, LIKELY_TOKENS, encoder_settings, read_settings
from regard.task.passes import passes
from regard.task.recipe import Place, Recipe, Say
from regard.train.world import World

if TYPE_CHECKING:
    from regard.task.labelling import LabellingTask

_LIKELY = ("one", "two")
"""Labels, where nothing is known of them."""
_ORDINARY = 25
"""Tokens of a sentence, where nothing is known of it."""


class ClassificationDataConfig(Config):
    """Which labelled texts a run learns from, watches and is judged by."""

    train: tuple[LabelledConfig, ...] = Field(strict=False, min_length=1)
    valid: LabelledConfig | None = None
    test: dict[str, LabelledConfig] = Field(default_factory=dict)
    """Test sets by name, looked at once, when training is over; the validation part, if there are none."""
    longest: int = Field(default=256, ge=3)
    """Texts of more tokens are cut at their end, in training and in use."""


class TaggingDataConfig(Config):
    """Which tagged sentences a run learns from, watches and is judged by."""

    train: tuple[TaggedConfig, ...] = Field(strict=False, min_length=1)
    valid: TaggedConfig | None = None
    test: dict[str, TaggedConfig] = Field(default_factory=dict)
    """Test sets by name, looked at once, when training is over; the validation part, if there are none."""
    longest: int = Field(default=256, ge=3)
    """Sentences of more tokens are left out of training."""


class LabellingRecipe(Recipe):
    """What both kinds have in common."""

    tokenizer: EncoderTokenizerConfig = EncoderTokenizerConfig()
    model: dict[str, Any] = Field(default_factory=dict)
    """The settings of an encoder; its vocabulary and special tokens come from the tokenizer, labels from the data. With
    `init_from` they are those of that model where they are left out."""

    written: ClassVar[tuple[str, ...]] = ("tokenizer.json",)
    score_type: ClassVar[type[AccuracyScore]] = AccuracyScore
    head: ClassVar[Mapping[str, str]]
    """What the head is, and how it is where the recipe says nothing."""

    @property
    def parts(self) -> ClassificationDataConfig | TaggingDataConfig:
        """The data, of whichever kind."""
        raise NotImplementedError

    def sentences(self, part: Any, known: Sequence[str] | None = None) -> Iterator[Labelled | Tagged]:
        """What a part of the data holds; any other label than those `known` is an error."""
        raise NotImplementedError

    @property
    def settings(self) -> EncoderConfig:
        """The model's config, with the vocabulary that was asked for, or is likely."""
        return self.model_settings(self.tokenizer.likely_vocabulary, LIKELY_TOKENS, _LIKELY)

    def model_settings(self, vocabulary: int, tokens: Mapping[str, int | None], labels: Sequence[str]) -> EncoderConfig:
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
        known = {role: number for role, number in tokens.items() if role in LIKELY_TOKENS}
        values = encoder_settings(self.model, self.init_from)
        return read_settings(values | {"head": head, "vocabulary": vocabulary, "tokens": known})

    def likely_work(self) -> Work:
        """Full batches, rows of ordinary sentences."""
        config, length = self.train, min(_ORDINARY, self.train.tokens)
        rows = max(1, config.tokens // length)
        return Work(rows, length, steps=config.steps, accumulate=config.accumulate, passes=passes(config))

    def places(self) -> Mapping[str, Sequence[Place]]:
        data = self.parts
        places: dict[str, Sequence[Place]] = {"train": data.train}
        places |= {name: (part,) for name, part in data.test.items()}
        return places if data.valid is None else places | {"valid": (data.valid,)}

    @classmethod
    def own_data(cls, path: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Read as the recipe's own data is."""
        first = data.get("train", [{}])[0]
        return {"train": [{key: value for key, value in first.items() if key != "set"} | {"path": path}]}

    def begin(self, folder: Path, say: Say, world: World) -> "LabellingTask":
        from regard.task.labelling import LabellingTask

        return LabellingTask.begin(self, folder, say, world)

    def resolved(self) -> dict[str, Any]:
        model = {key: value for key, value in self.settings.plain().items() if key not in FROM_DATA}
        model["head"] = {key: value for key, value in model["head"].items() if key != "labels"}
        return self.plain() | {"model": model}


class ClassificationRecipe(LabellingRecipe):
    """Everything the training of a model that labels texts depends on."""

    task: Literal["classification"] = "classification"
    data: ClassificationDataConfig

    usage: ClassVar[str] = 'Label a text with it: `regard classify THIS-FOLDER "What a film!"`'
    counted: ClassVar[str] = "texts"
    head: ClassVar[Mapping[str, str]] = {"kind": "classify", "pooling": "mean"}

    @property
    def parts(self) -> ClassificationDataConfig:
        return self.data

    def sentences(self, part: LabelledConfig, known: Sequence[str] | None = None) -> Iterator[Labelled | Tagged]:
        return read_labelled(part, known)


class TaggingRecipe(LabellingRecipe):
    """Everything the training of a model that tags words depends on."""

    task: Literal["tagging"] = "tagging"
    data: TaggingDataConfig

    usage: ClassVar[str] = 'Tag words with it: `regard tag THIS-FOLDER "The cat ate the mouse."`'
    counted: ClassVar[str] = "words"
    head: ClassVar[Mapping[str, str]] = {"kind": "tag"}

    @property
    def parts(self) -> TaggingDataConfig:
        return self.data

    def sentences(self, part: TaggedConfig, known: Sequence[str] | None = None) -> Iterator[Labelled | Tagged]:
        return read_tagged(part, known)
