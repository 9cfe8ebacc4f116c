"""A recipe for telling pictures apart: labelled pictures, how they are changed in training, a vision transformer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from regard.config import Config, ConfigError
from regard.cost import Work
from regard.data.augment import AugmentConfig
from regard.data.pictures import PicturesConfig
from regard.data.registry import dataset
from regard.model import VisionTransformerConfig
from regard.run import find, read_facts
from regard.score import AccuracyScore
from regard.task.passes import passes
from regard.task.recipe import Place, Recipe, Say
from regard.train.world import World

if TYPE_CHECKING:
    from regard.task.pictures import PicturesTask

_FROM_DATA = ("image", "channels", "classes")
_SHARED = ("size", "channels", "fit")
"""What all pictures of a recipe have in common."""
_PATCH, _SIDE, _CHANNELS, _CLASSES = 16, 8, 3, 10
"""The size of a patch, patches to a side, channels and classes, where nothing is known of them."""


class PicturesDataConfig(Config):
    """Which pictures a run learns from, watches and is judged by."""

    train: PicturesConfig
    valid: PicturesConfig | None = None
    """`size`, `channels` and `fit` are those of `train` where they are left out, here and for test sets."""
    test: dict[str, PicturesConfig] = Field(default_factory=dict)
    """Test sets by name, looked at once, when training is over; the validation part, if there are none."""

    @model_validator(mode="before")
    @classmethod
    def _alike(cls, values: Any) -> Any:
        """Written once, meant for all."""
        if not (isinstance(values, dict) and isinstance(values.get("train"), dict)):
            return values
        shared = {key: value for key, value in values["train"].items() if key in _SHARED}

        def filled(part: Any) -> Any:
            return shared | part if isinstance(part, dict) else part

        made = dict(values)
        if "valid" in made:
            made["valid"] = filled(made["valid"])
        if isinstance(made.get("test"), dict):
            made["test"] = {name: filled(part) for name, part in made["test"].items()}
        return made


class PicturesRecipe(Recipe):
    """Everything the training of a classifier depends on."""

    task: Literal["pictures"] = "pictures"
    data: PicturesDataConfig
    augment: AugmentConfig = AugmentConfig()
    model: dict[str, Any] = Field(default_factory=dict)
    """The settings of a vision transformer; the size of pictures, channels and classes come from the data. With
    `init_from` they are those of that model where they are left out."""

    usage: ClassVar[str] = "Show it a picture: `regard classify THIS-FOLDER picture.png`"
    counted: ClassVar[str] = "pictures"
    score_type: ClassVar[type[AccuracyScore]] = AccuracyScore
    unused: ClassVar[Mapping[str, str]] = {"shapes": "all pictures have one size, so that batches have one shape"}

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.data.train.size is not None:
            self.rows(self.settings)
        return self

    @property
    def settings(self) -> VisionTransformerConfig:
        """The model's config for pictures as they were asked for, or are likely."""
        part, patch = self.data.train, self._model.get("patch", _PATCH)
        side = _SIDE * patch if type(patch) is int else _SIDE
        known = part.classes or (() if part.set is None else dataset(part.set).classes)
        return self.model_settings(part.frame.size or (side, side), part.channels or _CHANNELS, known or _CLASSES)

    def model_settings(
        self, size: tuple[int, int], channels: int, classes: int | tuple[str, ...]
    ) -> VisionTransformerConfig:
        """The model's config for pictures of a size. Errors name their key in the recipe."""
        for key in _FROM_DATA:
            if key in self.model:
                raise ConfigError(f"model.{key}", "this follows from the data; leave this key out.")
        try:
            return VisionTransformerConfig(**self._model, image=size, channels=channels, classes=classes)
        except ConfigError as error:
            key = "patch" if error.key == "image" else error.key
            raise ConfigError(f"model.{key}", error.problem) from None

    @property
    def _model(self) -> dict[str, Any]:
        """The settings that were given; of the model to start from where there are none."""
        if self.model or self.init_from is None:
            return self.model
        first = read_facts(find(self.init_from)).get("model")
        if not isinstance(first, dict) or first.get("kind") != "vision":
            raise ConfigError("init_from", f"{self.init_from} holds no model that takes pictures.")
        return {key: value for key, value in first.items() if key not in _FROM_DATA}

    def rows(self, config: VisionTransformerConfig) -> int:
        """Rows of a batch."""
        found = self.train.tokens // config.tokens
        if not found:
            height, width = config.size
            raise ConfigError(
                "train.tokens",
                f"found {self.train.tokens}; one picture of {height} × {width} alone has {config.tokens} tokens.",
            )
        return found

    def likely_work(self) -> Work:
        return self.work(self.settings)

    def work(self, settings: VisionTransformerConfig) -> Work:
        """The batches of a model for pictures of a size."""
        config = self.train
        return Work(
            max(1, config.tokens // settings.tokens),
            settings.tokens,
            steps=config.steps,
            accumulate=config.accumulate,
            passes=passes(config),
        )

    def places(self) -> Mapping[str, Sequence[Place]]:
        places: dict[str, Sequence[Place]] = {"train": (self.data.train,)}
        places |= {name: (part,) for name, part in self.data.test.items()}
        return places if self.data.valid is None else places | {"valid": (self.data.valid,)}

    @classmethod
    def own_data(cls, path: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """In the size and colour of the recipe's own pictures; about a tenth is kept aside to watch the run."""
        shared = {key: value for key, value in data.get("train", {}).items() if key in _SHARED}
        part = {"path": path, "shares": [0.9, 0.1, 0.0]}
        return {"train": {**part, **shared, "split": "train"}, "valid": {**part, "split": "valid"}}

    def begin(self, folder: Path, say: Say, world: World) -> "PicturesTask":
        from regard.task.pictures import PicturesTask

        return PicturesTask.begin(self, say, world)

    def resolved(self) -> dict[str, Any]:
        model = {key: value for key, value in self.settings.plain().items() if key not in _FROM_DATA}
        return self.plain() | {"model": model}
