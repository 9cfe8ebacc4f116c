"""A recipe for filling gaps: a text, rows cut from it, how words are hidden in them, and an encoder that finds them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from regard.config import ConfigError
from regard.cost import Work
from regard.data.asked import room_for
from regard.data.gaps import GapsConfig
from regard.data.tokenizer_training import EncoderTokenizerConfig
from regard.model import EncoderConfig, FillConfig
from regard.score import FillScore
from regard.task.encoders import FROM_DATA, LIKELY_TOKENS, encoder_settings, read_settings
from regard.task.language_recipe import ONE_LENGTH, LanguageDataConfig, LanguageRecipe
from regard.task.passes import passes
from regard.task.recipe import Place, Recipe, Say
from regard.train.world import World

if TYPE_CHECKING:
    from regard.task.filling import FillingTask


class FillingTokenizerConfig(EncoderTokenizerConfig):
    """How text becomes tokens."""

    sample: int | None = Field(default=None, ge=1)
    """Learn from the first so many documents only."""


class FillingRecipe(Recipe):
    """Everything the training of a model that fills gaps depends on."""

    task: Literal["filling"] = "filling"
    data: LanguageDataConfig
    gaps: GapsConfig = GapsConfig()
    """How words are hidden in training. To be judged, as many are, and all of them by the mask."""
    tokenizer: FillingTokenizerConfig = FillingTokenizerConfig()
    model: dict[str, Any] = Field(default_factory=dict)
    """The settings of an encoder; its vocabulary and special tokens come from the tokenizer. With `init_from` they are
    those of that model where they are left out."""

    usage: ClassVar[str] = 'Fill a gap with it: `regard fill THIS-FOLDER "The [MASK] ate the mouse."`'
    counted: ClassVar[str] = "hidden words"
    written: ClassVar[tuple[str, ...]] = ("tokenizer.json",)
    score_type: ClassVar[type[FillScore]] = FillScore
    unused: ClassVar[Mapping[str, str]] = {"shapes": ONE_LENGTH}

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.data.context > self.train.tokens:
            raise ConfigError(
                "train.tokens",
                f"found {self.train.tokens}; one row alone has {self.data.context} tokens (data.context).",
            )
        return self

    @property
    def rows(self) -> int:
        """Rows of a batch."""
        return self.train.tokens // self.data.context

    @property
    def settings(self) -> EncoderConfig:
        """The model's config, with the vocabulary that was asked for, or is likely."""
        return self.model_settings(self.tokenizer.likely_vocabulary, LIKELY_TOKENS)

    def model_settings(self, vocabulary: int, tokens: Mapping[str, int | None]) -> EncoderConfig:
        """The model's config for a vocabulary and its special tokens. Errors name their key in the recipe."""
        missing = () if self.data.rows == "packed" else ("classify",) if self.data.ends else ("classify", "separator")
        known = {role: number for role, number in tokens.items() if role in LIKELY_TOKENS and role not in missing}
        values = {"head": {"kind": "fill"}} | encoder_settings(self.model, self.init_from)
        config = read_settings(values | {"vocabulary": vocabulary, "tokens": known})
        if not isinstance(config.head, FillConfig):
            raise ConfigError("model.head.kind", f'found {config.head.kind!r}; to fill gaps it must be "fill".')
        return config

    @property
    def usual(self) -> int:
        """How many words of a row are hidden at most, as a rule; with whole words it may be more tokens."""
        return int(self.gaps.share * self.data.context) + 1

    def likely_work(self) -> Work:
        config, length = self.train, self.data.context
        return Work(
            self.rows,
            length,
            steps=config.steps,
            accumulate=config.accumulate,
            passes=passes(config),
            asked=room_for(self.usual, length),
        )

    def places(self) -> Mapping[str, Sequence[Place]]:
        places: dict[str, Sequence[Place]] = {"train": self.data.train}
        places |= {name: (part,) for name, part in self.data.test.items()}
        return places if self.data.valid is None else places | {"valid": (self.data.valid,)}

    @classmethod
    def own_data(cls, path: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Read in each way that the recipe's own text is; the last twentieth is kept aside to watch the run."""
        ways = [LanguageRecipe.own_data(path, {"train": [part]}) for part in data.get("train", [{}])]
        return {"train": [part for way in ways for part in way["train"]], "valid": ways[0]["valid"]}

    def begin(self, folder: Path, say: Say, world: World) -> "FillingTask":
        from regard.task.filling import FillingTask

        return FillingTask.begin(self, folder, say, world)

    def resolved(self) -> dict[str, Any]:
        model = {key: value for key, value in self.settings.plain().items() if key not in FROM_DATA}
        return self.plain() | {"model": model}
