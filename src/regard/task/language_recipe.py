"""A recipe for language modelling: a text, how rows are cut from it, and a model that foretells its next token."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from regard.config import Config, ConfigError
from regard.cost import Work
from regard.data.texts import TextConfig
from regard.data.tokenizer_training import TokenizerConfig
from regard.model import LanguageModelConfig
from regard.score import LanguageScore
from regard.task.passes import passes
from regard.task.recipe import SPECIAL, Place, Recipe, Say
from regard.train.world import World

if TYPE_CHECKING:
    from regard.task.language import LanguageTask

_FROM_TOKENIZER = ("vocabulary", "tokens")
ONE_LENGTH = "all rows have data.context tokens, so that batches have one shape"
_ASIDE = 0.95
"""Where of a text that came without a validation part the one begins that is not learnt from."""


class LanguageDataConfig(Config):
    """Which texts a run learns from, watches and is judged by, and how rows are cut from them."""

    train: tuple[TextConfig, ...] = Field(strict=False, min_length=1)
    valid: TextConfig | None = None
    test: dict[str, TextConfig] = Field(default_factory=dict)
    """Test sets by name, looked at once, when training is over; the validation part, if there are none."""
    context: int = Field(default=256, ge=1)
    """How many tokens a row has: as far back as the model ever looks in training."""
    rows: Literal["contiguous", "random", "packed"] = "contiguous"
    """Windows side by side, each token predicted once an epoch; windows at random places; or whole documents laid one
    behind the other, none of which sees another."""
    ends: bool = True
    """Whether the end of a document is a token of its own, which is learnt like any other."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.rows == "packed" and not self.ends:
            raise ConfigError("ends", "documents that are packed begin and end somewhere; set this to true.")
        return self


class LanguageTokenizerConfig(TokenizerConfig):
    """How text becomes tokens."""

    sample: int | None = Field(default=None, ge=1)
    """Learn from the first so many documents only."""


class LanguageRecipe(Recipe):
    """Everything the training of a language model depends on."""

    task: Literal["language"] = "language"
    data: LanguageDataConfig
    tokenizer: LanguageTokenizerConfig = LanguageTokenizerConfig()
    model: dict[str, Any] = Field(default_factory=dict)
    """The settings of a language model; its vocabulary and special tokens come from the tokenizer."""

    usage: ClassVar[str] = 'Write with it: `regard generate THIS-FOLDER "Once upon a time"`'
    written: ClassVar[tuple[str, ...]] = ("tokenizer.json",)
    score_type: ClassVar[type[LanguageScore]] = LanguageScore
    unused: ClassVar[Mapping[str, str]] = {
        "shapes": ONE_LENGTH,
        "watch": "a language model is judged by its loss and nothing else",
    }

    @model_validator(mode="after")
    def _a_row_fits(self) -> Self:
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
    def settings(self) -> LanguageModelConfig:
        """The model's config, with the vocabulary that was asked for, or is likely."""
        return self.model_settings(self.tokenizer.likely_vocabulary)

    def model_settings(self, vocabulary: int) -> LanguageModelConfig:
        """The model's config for a vocabulary. Errors name their key in the recipe."""
        for key in _FROM_TOKENIZER:
            if key in self.model:
                raise ConfigError(f"model.{key}", "this follows from the tokenizer; leave this key out.")
        try:
            special: Any = self.special()
            return LanguageModelConfig(**self.model, vocabulary=vocabulary, tokens=special)
        except ConfigError as error:
            raise ConfigError(f"model.{error.key}", error.problem) from None

    def special(self) -> dict[str, int]:
        """A packed document has a start of its own. In windows the end of one stands before the next."""
        missing = () if self.data.rows == "packed" else ("start",) if self.data.ends else ("start", "end")
        return {role: number for role, number in SPECIAL.items() if role not in missing}

    def likely_work(self) -> Work:
        config, length = self.train, self.data.context
        return Work(self.rows, length, steps=config.steps, accumulate=config.accumulate, passes=passes(config))

    def places(self) -> Mapping[str, Sequence[Place]]:
        places: dict[str, Sequence[Place]] = {"train": self.data.train}
        places |= {name: (part,) for name, part in self.data.test.items()}
        return places if self.data.valid is None else places | {"valid": (self.data.valid,)}

    @classmethod
    def own_data(cls, path: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Read as the recipe's own text is; the last twentieth is kept aside to watch the run."""
        unit = {key: value for part in data.get("train", [])[:1] for key, value in part.items() if key == "unit"}
        return {"train": [{"path": path, "end": _ASIDE, **unit}], "valid": {"path": path, "begin": _ASIDE, **unit}}

    def begin(self, folder: Path, say: Say, world: World) -> "LanguageTask":
        from regard.task.language import LanguageTask

        return LanguageTask.begin(self, folder, say, world)

    def resolved(self) -> dict[str, Any]:
        model = {key: value for key, value in self.settings.plain().items() if key not in _FROM_TOKENIZER}
        return self.plain() | {"model": model}
