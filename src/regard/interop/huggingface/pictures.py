"""How a vision model of theirs wants its pictures, as preprocessor_config.json says it: resized, scaled, normalised.

Scaling and normalising become our `PixelsConfig`, whatever their factors are. Resizing is Pillow's, where it is
installed, as theirs is. Without it pictures are arrays, and torch resizes them, which differs by rounding: by one grey
level now and then.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.errors import UserError
from regard.interop.huggingface.settings import Settings
from regard.model import PixelsConfig, VisionTransformerConfig, read_any_config
from regard.run import find, read_facts

_PER_LEVEL = 1 / 255
_NEAREST, _LANCZOS, _BILINEAR, _BICUBIC, _BOX, _HAMMING = range(6)
"""Ways of resizing, by Pillow's numbers."""
_TORCH = {_NEAREST: "nearest-exact", _BILINEAR: "bilinear", _BICUBIC: "bicubic"}


@dataclass(frozen=True)
class Preparation:
    """What is done to a picture before a model sees it."""

    size: tuple[int, int] | None = (224, 224)
    """Height and width it is resized to; None leaves it as it is."""
    resample: int = _BILINEAR
    pixels: PixelsConfig = field(default_factory=PixelsConfig)

    def __call__(self, picture: Any) -> Tensor:
        """What the model takes, in float32.  # (channels, height, width)

        picture: an image of Pillow, or an array or tensor of whole numbers from 0 to 255  # (height, width, channels)
        """
        levels = self._resized(picture)  # (height, width, channels)
        return self.pixels.apply(levels.permute(2, 0, 1).contiguous())

    def _resized(self, picture: Any) -> Tensor:
        pillow = _pillow()
        is_image = pillow is not None and isinstance(picture, pillow.Image)
        if is_image and picture.mode not in ("RGB", "L"):
            picture = picture.convert("RGB")
        levels = _levels(picture)
        if self.size is None or levels.shape[:2] == self.size:
            return levels
        height, width = self.size
        if pillow is None:
            return self._resized_by_torch(levels)
        image = picture if is_image else pillow.fromarray(levels.squeeze(2).numpy())
        return _levels(image.resize((width, height), self.resample))

    def _resized_by_torch(self, levels: Tensor) -> Tensor:
        assert self.size is not None
        if self.resample not in _TORCH:
            raise UserError(
                "Pictures for this model are resized in a way that only Pillow knows; pip install pillow, or give them "
                f"at {self.size[0]} × {self.size[1]} pixels."
            )
        mode = _TORCH[self.resample]
        smooth = {} if self.resample == _NEAREST else {"antialias": True, "align_corners": False}
        made = functional.interpolate(levels.permute(2, 0, 1)[None].float(), self.size, mode=mode, **smooth)
        return made[0].round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0)


def preparation_of(folder: Path | str) -> Preparation:
    """How the model of a run folder wants its pictures: as the folder says it was imported from, or at its own size."""
    place = find(folder)
    facts = read_facts(place)
    config = read_any_config(facts.get("model"), f"{place / 'run.json'}: model")
    if not isinstance(config, VisionTransformerConfig):
        raise UserError(f"{place} holds no model that takes pictures.")
    origin = facts.get("origin")
    table = origin.get("preprocessor") if isinstance(origin, dict) else None
    if isinstance(table, dict) and table:
        return read_preparation(Settings(table, str(place / "run.json")))
    return Preparation(config.size, pixels=config.pixels)


def read_preparation(settings: Settings | None) -> Preparation:
    """From the settings of an image processor; those of transformers' own where there are none."""
    given = settings or Settings({}, "")
    if given.flag("do_center_crop", False) or given.flag("do_pad", False):
        key = "do_center_crop" if given.flag("do_center_crop", False) else "do_pad"
        raise _refused(given, key, "pictures are resized as a whole")
    resample = given.whole("resample", _BILINEAR, least=0)
    if resample > _HAMMING:
        raise given.wrong("resample", f"a number from {_NEAREST} to {_HAMMING}")
    return Preparation(_size(given) if given.flag("do_resize", True) else None, resample, _pixels(given))


def write_preparation(preparation: Preparation, channels: int) -> dict[str, Any]:
    """The settings of an image processor of theirs, for a model of our own; it wants a number for every channel."""
    size = preparation.size
    mean, std = (each_channel(numbers, channels) for numbers in (preparation.pixels.mean, preparation.pixels.std))
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": size is not None,
        **({} if size is None else {"size": {"height": size[0], "width": size[1]}}),
        "resample": preparation.resample,
        "do_rescale": True,
        "rescale_factor": _PER_LEVEL,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
    }


def each_channel(numbers: Sequence[float], channels: int) -> list[float]:
    """A number for each channel, where there may be one for all."""
    return list(numbers) * (channels if len(numbers) == 1 else 1)


def _size(settings: Settings) -> tuple[int, int]:
    """Older files have one number for both sides."""
    if not isinstance(settings.values.get("size"), Mapping):
        return settings.sides("size", 224)
    table = settings.table("size") or Settings({}, f"{settings.where}: size")
    if not (table.has("height") and table.has("width")):
        raise _refused(settings, "size", "a picture gets a height and a width, not only one of its edges")
    return table.whole("height"), table.whole("width")


def _pixels(settings: Settings) -> PixelsConfig:
    """Theirs is (level · factor - mean) / std, ours (level / 255 - mean) / std."""
    factor = settings.number("rescale_factor", _PER_LEVEL) if settings.flag("do_rescale", True) else 1.0
    if factor <= 0:
        raise settings.wrong("rescale_factor", "a number above 0")
    normalised = settings.flag("do_normalize", True)
    means = _channels(settings, "image_mean") if normalised else (0.0,)
    stds = _channels(settings, "image_std") if normalised else (1.0,)
    if factor == _PER_LEVEL:
        return PixelsConfig(mean=means, std=stds)
    share = 255 * factor
    return PixelsConfig(mean=tuple(mean / share for mean in means), std=tuple(std / share for std in stds))


def _channels(settings: Settings, key: str) -> tuple[float, ...]:
    if not settings.has(key):
        return (0.5,)
    single = type(settings.values[key]) in (int, float)
    return (settings.number(key),) if single else settings.numbers(key)


def _refused(settings: Settings, key: str, why: str) -> UserError:
    return UserError(
        f"{settings.where}: regard cannot do what {key} asks for ({why}); remove the file to import the model for "
        "pictures that are prepared already."
    )


def _levels(picture: Any) -> Tensor:
    """A picture as whole numbers.  # (height, width, channels)"""
    levels = picture.cpu() if isinstance(picture, Tensor) else torch.from_numpy(np.array(picture))
    levels = levels[..., None] if levels.dim() == 2 else levels
    if levels.dim() != 3 or levels.dtype != torch.uint8:
        raise UserError(
            "A picture must be whole numbers from 0 to 255 (torch.uint8) of the shape (height, width, channels); "
            f"found {tuple(levels.shape)} of {levels.dtype}."
        )
    return levels


def _pillow() -> Any:
    """Pillow's module for images, if it is installed."""
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        return None
