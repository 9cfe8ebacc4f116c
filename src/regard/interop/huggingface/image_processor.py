"""The image preprocessing of a vision model, from preprocessor_config.json: resize, rescale, normalize.

Rescaling and normalization become our `PixelsConfig`, whatever their factors are. Pillow resizes, if it is installed,
as in transformers. Without it images are arrays that torch resizes, which differs by rounding: by one gray level now
and then.
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
from regard.interop.huggingface.hf_config import HFConfig
from regard.model import PixelsConfig, VisionTransformerConfig, read_any_config
from regard.run import find_model, read_metadata

_PER_LEVEL = 1 / 255
_NEAREST, _LANCZOS, _BILINEAR, _BICUBIC, _BOX, _HAMMING = range(6)
"""Resampling filters, by Pillow's numbers."""
_TORCH = {_NEAREST: "nearest-exact", _BILINEAR: "bilinear", _BICUBIC: "bicubic"}


@dataclass(frozen=True)
class ImageProcessor:
    """What is done to an image before a model sees it."""

    size: tuple[int, int] | None = (224, 224)
    """The height and width to resize to; None keeps the image as it is."""
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


def load_image_processor(folder: Path | str) -> ImageProcessor:
    """The image processor of a run folder's model: the imported one, or one for the model's own size."""
    model_folder = find_model(folder)
    metadata = read_metadata(model_folder)
    config = read_any_config(metadata.get("model"), f"{model_folder / 'run.json'}: model")
    if not isinstance(config, VisionTransformerConfig):
        raise UserError(f"{model_folder} holds no model that takes pictures.")
    origin = metadata.get("origin")
    table = origin.get("preprocessor") if isinstance(origin, dict) else None
    if isinstance(table, dict) and table:
        return read_image_processor(HFConfig(table, str(model_folder / "run.json")))
    return ImageProcessor(config.size, pixels=config.pixels)


def read_image_processor(hf_config: HFConfig | None) -> ImageProcessor:
    """From a preprocessor config; transformers' defaults without one."""
    given = hf_config or HFConfig({}, "")
    if given.flag("do_center_crop", False) or given.flag("do_pad", False):
        key = "do_center_crop" if given.flag("do_center_crop", False) else "do_pad"
        raise _refused(given, key, "pictures are resized as a whole")
    resample = given.integer("resample", _BILINEAR, minimum=0)
    if resample > _HAMMING:
        raise given.invalid("resample", f"a number from {_NEAREST} to {_HAMMING}")
    return ImageProcessor(_size(given) if given.flag("do_resize", True) else None, resample, _pixels(given))


def image_processor_config(preparation: ImageProcessor, channels: int) -> dict[str, Any]:
    """A preprocessor config for a model of our own, with a value for every channel."""
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
    """One value per channel, where there may be one for all."""
    return list(numbers) * (channels if len(numbers) == 1 else 1)


def _size(hf_config: HFConfig) -> tuple[int, int]:
    """Older files have one number for both sides."""
    if not isinstance(hf_config.values.get("size"), Mapping):
        return hf_config.height_and_width("size", 224)
    table = hf_config.table("size") or HFConfig({}, f"{hf_config.location}: size")
    if not (table.has("height") and table.has("width")):
        raise _refused(hf_config, "size", "a picture gets a height and a width, not only one of its edges")
    return table.integer("height"), table.integer("width")


def _pixels(hf_config: HFConfig) -> PixelsConfig:
    """transformers computes (level · factor - mean) / std, ours is (level / 255 - mean) / std."""
    factor = hf_config.number("rescale_factor", _PER_LEVEL) if hf_config.flag("do_rescale", True) else 1.0
    if factor <= 0:
        raise hf_config.invalid("rescale_factor", "a number above 0")
    normalized = hf_config.flag("do_normalize", True)
    means = _channels(hf_config, "image_mean") if normalized else (0.0,)
    stds = _channels(hf_config, "image_std") if normalized else (1.0,)
    if factor == _PER_LEVEL:
        return PixelsConfig(mean=means, std=stds)
    share = 255 * factor
    return PixelsConfig(mean=tuple(mean / share for mean in means), std=tuple(std / share for std in stds))


def _channels(hf_config: HFConfig, key: str) -> tuple[float, ...]:
    if not hf_config.has(key):
        return (0.5,)
    single = type(hf_config.values[key]) in (int, float)
    return (hf_config.number(key),) if single else hf_config.numbers(key)


def _refused(hf_config: HFConfig, key: str, why: str) -> UserError:
    return UserError(
        f"{hf_config.location}: regard cannot do what {key} asks for ({why}); remove the file to import the model for "
        "pictures that are prepared already."
    )


def _levels(picture: Any) -> Tensor:
    """An image as uint8.  # (height, width, channels)"""
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
