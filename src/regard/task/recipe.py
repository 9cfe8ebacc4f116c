"""A recipe is a file: all that a run depends on, and what to expect of it.

What every recipe says stands here. Each task has a recipe of its own with its data, its model and how it is judged
(`translation_recipe.py` …), which `kinds.py` knows by the name of the task.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from pydantic import Field, model_validator

from regard.config import Config, ConfigError
from regard.cost import Work
from regard.model import AnyModelConfig
from regard.train.settings import TrainConfig
from regard.train.world import World

if TYPE_CHECKING:
    from regard.task.job import Job, Score

Say = Callable[[str], None]

SPECIAL = {"padding": 0, "start": 1, "end": 2}
"""The ids that our tokenizers give."""


class ExpectedScore(Config):
    """What a test set should give: the mean over seeds, and the standard deviation where there are several."""

    bleu: float | None = Field(default=None, ge=0, le=100)
    chrf: float | None = Field(default=None, ge=0, le=100)
    loss: float | None = Field(default=None, ge=0)
    """Nats a token, as are the spreads of losses."""
    bits_per_byte: float | None = Field(default=None, ge=0)
    f1: float | None = Field(default=None, ge=0, le=100)
    accuracy: float | None = Field(default=None, ge=0, le=100)
    """Per cent."""
    spread: float | None = Field(default=None, ge=0)
    """Of the first of these that is given."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.numbers:
            raise ConfigError("", f"no score is given; give one of {', '.join(MEASURES)}.")
        return self

    @property
    def numbers(self) -> dict[str, float]:
        """What is expected, by the name of the measure."""
        return {name: value for name in MEASURES if (value := getattr(self, name)) is not None}

    def __str__(self) -> str:
        told = [f"{MEASURES[name][0]} {value:.{MEASURES[name][1]}f}" for name, value in self.numbers.items()]
        if self.spread is not None:
            told[0] += f" ± {self.spread:.{MEASURES[next(iter(self.numbers))][1] + 1}f}"
        return ", ".join(told)


MEASURES = {
    "bleu": ("BLEU", 1),
    "chrf": ("chrF", 1),
    "f1": ("F1", 1),
    "accuracy": ("accuracy", 1),
    "loss": ("loss", 3),
    "bits_per_byte": ("bits per byte", 3),
}
"""How measures are called, and with how many decimals they are expected; of several, the one that counts first."""


class ExpectConfig(Config):
    """What number should I get? Measured by this recipe, or taken from where `source` says."""

    measured: bool
    scores: dict[str, ExpectedScore] = Field(default_factory=dict)
    """By the name of the test set."""
    seeds: int | None = Field(default=None, ge=1)
    minutes: float | None = Field(default=None, gt=0)
    hardware: str | None = None
    source: str | None = None

    @model_validator(mode="after")
    def _says_where_from(self) -> Self:
        if self.measured and not (self.scores and self.hardware and self.minutes and self.seeds):
            raise ConfigError("measured", "a measured recipe gives scores, seeds, minutes and hardware.")
        if not self.measured and self.scores and self.source is None:
            raise ConfigError("source", "scores that were not measured need their source.")
        return self


class Place(Protocol):
    """Where some data is: a config such as `CorpusConfig`."""

    @property
    def set(self) -> str | None: ...

    @property
    def place(self) -> str: ...


class Recipe(Config):
    """What every recipe has, whatever its task."""

    name: str = ""
    """What the recipe is called; its file's name if it does not say."""
    description: str
    task: str
    init_from: str | None = None
    """A run folder or model whose weights (and tokenizers) this run starts from."""
    train: TrainConfig
    expect: ExpectConfig | None = None

    usage: ClassVar[str]
    """How a person uses the model, for its card: a command, with THIS-FOLDER for where it is."""
    counted: ClassVar[str] = "target words"
    """What a run counts: what the loss is a mean over."""
    written: ClassVar[tuple[str, ...]] = ()
    """Files that `begin` may write into a run's folder, besides the recipe."""
    score_type: ClassVar["type[Score]"]
    """What test sets give."""
    unused: ClassVar[Mapping[str, str]] = {}
    """Keys of [train] that mean nothing here, and why: a recipe that gives one of them expects something of it."""

    @model_validator(mode="after")
    def _model_can_be_built(self) -> Self:
        _ = self.settings
        return self

    @model_validator(mode="after")
    def _every_key_does_something(self) -> Self:
        for key, why in self.unused.items():
            found = getattr(self.train, key)
            if found != TrainConfig.model_fields[key].default:
                raise ConfigError(f"train.{key}", f"found {found!r}, but {why}; leave this key out.")
        if self.train.loss.consistency and self.init_from is None and not _drops(self.settings.plain()):
            raise ConfigError(
                "train.loss.consistency",
                "two passes differ by what dropout leaves out, and this model has none; give it some, or leave this "
                "key out.",
            )
        return self

    @property
    def settings(self) -> AnyModelConfig:
        """The model's config, with what follows from the data as it was asked for, or is likely."""
        raise NotImplementedError

    def likely_work(self) -> Work:
        """The batches that are likely, where nothing is known of the data."""
        raise NotImplementedError

    def places(self) -> Mapping[str, Sequence[Place]]:
        """Where each part of the data comes from."""
        raise NotImplementedError

    @property
    def watched(self) -> bool:
        """Whether some data is kept aside to watch the run."""
        return "valid" in self.places()

    @classmethod
    def own_data(cls, path: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """The parts of the data, where a person has a file or folder of their own; `data` is the recipe's."""
        return {"train": [{"path": path}]}

    def begin(self, folder: Path, say: Say, world: World) -> "Job[Any]":
        """Read the data, build the model. In each of several processes; what is written is written once."""
        raise NotImplementedError

    def resolved(self) -> dict[str, Any]:
        """As plain data, everything left out filled in."""
        return self.plain()


def _drops(settings: Mapping[str, Any]) -> bool:
    """Whether some part of a model has dropout."""
    return any(
        _drops(value) if isinstance(value, Mapping) else key.endswith("dropout") and value > 0
        for key, value in settings.items()
    )


def tell(recipe: Recipe, test: str, score: object) -> str:
    """How a test went, beside what the recipe says to expect: for whoever asks what number they should get."""
    expect = recipe.expect
    expected = None if expect is None else expect.scores.get(test)
    if expect is None or expected is None:
        return f"{test}: {score}."
    source = "" if expect.measured else f"; {expect.source}"
    return f"{test}: {score} (expected: {expected}{source})."
