"""Recipes for image classification: labeled images, augmentation, a vision transformer."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from regard.config import Config, ConfigError
from regard.cost import Workload
from regard.data.images.augment import AugmentConfig
from regard.data.images.dataset import ImagesConfig
from regard.data.registry import dataset_info
from regard.model import VisionTransformerConfig
from regard.run import LoadedModel
from regard.score import AccuracyScore
from regard.task.base import Recipe
from regard.task.held_out import HELD_OUT_IMAGES, DevSize

_FROM_DATA = ("image_size", "channels", "classes")
_SHARED = ("size", "channels", "fit")
"""Keys that all images of a recipe share."""
_PATCH_SIZE, _GRID, _CHANNELS, _CLASSES = 16, 8, 3, 10
"""The expected patch size, patches per side, channels and classes before the data is read."""


class ImageClassificationDataConfig(Config):
    """The images of a run: training, validation and test data."""

    train: ImagesConfig
    """The images to train on."""
    valid: ImagesConfig | None = None
    """The images to validate on during training. If not given, some are held out of the training data. Here and in test
    sets, `size`, `channels` and `fit` are those of `train` unless given."""
    test: dict[str, ImagesConfig] = Field(default_factory=dict)
    """Test sets by name, evaluated once after training; the validation set if there are none."""
    dev_size: DevSize = 1000
    """At most how many images, and at most a twentieth, are held out of the training data for validation if `valid` is
    not given. 0 holds nothing out."""

    @model_validator(mode="before")
    @classmethod
    def _inherit_from_train(cls, values: Any) -> Any:
        """Copy the shared keys of `train` to the other sources."""
        if not (isinstance(values, dict) and isinstance(values.get("train"), dict)):
            return values
        shared = {key: value for key, value in values["train"].items() if key in _SHARED}

        def inherit(source: Any) -> Any:
            return shared | source if isinstance(source, dict) else source

        completed = dict(values)
        if "valid" in completed:
            completed["valid"] = inherit(completed["valid"])
        if isinstance(completed.get("test"), dict):
            completed["test"] = {name: inherit(source) for name, source in completed["test"].items()}
        return completed


class ImageClassificationRecipe(Recipe):
    """Everything that the training of an image classifier depends on."""

    task: Literal["image-classification"] = "image-classification"
    data: ImageClassificationDataConfig
    augment: AugmentConfig = AugmentConfig()
    model: dict[str, Any] = Field(default_factory=dict)
    """The settings of a vision transformer; image size, channels and classes come from the data. With `init_from`,
    omitted settings are those of that model."""

    usage_example: ClassVar[str] = "Classify an image: `regard classify THIS-FOLDER image.png`"
    data_options: ClassVar[str] = "--data FOLDER"
    counted_unit: ClassVar[str] = "images"
    prepared_files: ClassVar[tuple[str, ...]] = (HELD_OUT_IMAGES,)
    held_out_file: ClassVar[str] = HELD_OUT_IMAGES
    score_type: ClassVar[type[AccuracyScore]] = AccuracyScore
    model_keys_from_data: ClassVar[tuple[str, ...]] = _FROM_DATA
    model_kinds: ClassVar[tuple[Mapping[str, Any], ...]] = ({"vision": VisionTransformerConfig},)
    unused_train_keys: ClassVar[Mapping[str, str]] = {
        "length_buckets": "all images have the same size, so all batches have the same shape"
    }

    @model_validator(mode="after")
    def _image_fits_batch(self) -> Self:
        if self.data.train.size is not None:
            self.rows(self.expected_model_config)
        return self

    @property
    def expected_model_config(self) -> VisionTransformerConfig:
        """The model's config for the configured or expected image format."""
        part, patch_size = self.data.train, self.model_settings.get("patch_size", _PATCH_SIZE)
        side = _GRID * patch_size if type(patch_size) is int else _GRID
        known = part.classes or (() if part.dataset is None else dataset_info(part.dataset).classes)
        return self.make_model_config(part.format.size or (side, side), part.channels or _CHANNELS, known or _CLASSES)

    def make_model_config(
        self, size: tuple[int, int], channels: int, classes: int | tuple[str, ...]
    ) -> VisionTransformerConfig:
        """The model's config for an image format. Errors name the recipe's key."""
        settings = self.model_settings
        try:
            return VisionTransformerConfig(**settings, image_size=size, channels=channels, classes=classes)
        except ConfigError as error:
            key = "patch_size" if error.key == "image_size" else error.key
            raise ConfigError(f"model.{key}", error.problem) from None

    def rows(self, config: VisionTransformerConfig) -> int:
        """Images per batch."""
        rows = self.train.batch_tokens // config.sequence_length
        if not rows:
            height, width = config.size
            raise ConfigError(
                "train.batch_tokens",
                f"found {self.train.batch_tokens}; "
                f"one image of {height} × {width} has {config.sequence_length} tokens.",
            )
        return rows

    def expected_workload(self) -> Workload:
        return self.workload(self.expected_model_config)

    def workload(self, settings: VisionTransformerConfig) -> Workload:
        """The workload of training a model."""
        config = self.train
        return Workload(
            max(1, config.batch_tokens // settings.sequence_length),
            settings.sequence_length,
            steps=config.steps,
            grad_accumulation=config.grad_accumulation,
            forward_passes=config.loss.passes,
        )

    @classmethod
    def evaluation_settings(cls, loaded: LoadedModel) -> dict[str, Any]:
        """Images as `regard classify` prepares them: by an imported preprocessor, which stretches them, or our own."""
        config = loaded.model.config
        fit = "stretch" if loaded.origin.get("preprocessor") else loaded.origin.get("fit", "crop")
        return {"size": list(config.size), "channels": config.channels, "fit": fit}

    def describe_score(self, score: AccuracyScore) -> str:
        return score.describe_items()

    @classmethod
    def user_data_config(cls, path: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """The user's images in the recipe's format."""
        shared = {key: value for key, value in data.get("train", {}).items() if key in _SHARED}
        return {"train": {"path": path, **shared}}

    def held_out_config(self, path: str) -> ImagesConfig:
        return ImagesConfig(path=path)
