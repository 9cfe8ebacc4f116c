"""Reading one image file as uint8 pixels in a given format.

EXIF orientation is applied, transparency becomes white, and sixteen bits become eight. An image of another size is
center-cropped to the new aspect ratio and scaled, or stretched. Pillow does the work; it is imported when the first
file is read.
"""

import struct
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]
Fit = Literal["crop", "stretch"]

_ORIENTATION = 0x0112  # the EXIF tag
_GRAY = ("1", "L", "LA", "La")


@dataclass(frozen=True)
class ImageFormat:
    """The format that images are converted to; None keeps what an image has."""

    channels: int | None = None  # 1 is grayscale, 3 is RGB
    size: tuple[int, int] | None = None  # height and width
    fit: Fit = "crop"
    resample: int | None = field(default=None, repr=False)
    """The filter of an imported model, by Pillow's number; None is ours: bicubic."""


def read_image(path: str | Path, format: ImageFormat | None = None) -> Pixels:
    """The pixels of an image file.  # (channels, height, width)"""
    from PIL import Image, UnidentifiedImageError

    path, format = Path(path), format or ImageFormat()
    try:
        with Image.open(path) as image:
            return decode_image(image, format)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file.") from None
    except MemoryError:
        raise
    except Exception as error:  # a damaged file makes Pillow raise anything from OSError to IndexError
        reason = str(error).replace(str(path), "").replace(" ''", "").rstrip(".") or type(error).__name__
        reason = "its format is unknown" if isinstance(error, UnidentifiedImageError) else reason
        raise UserError(f"{path} is not an image, or damaged ({reason}); replace or remove it.") from None


def decode_image(image: "Image", format: ImageFormat) -> Pixels:
    """The pixels of an image file that Pillow has opened.  # (channels, height, width)"""
    if format.size is not None and format.resample is None:
        # A large JPEG can be decoded at half, a quarter or an eighth of its size; keep twice what is needed.
        image.draft(None, (2 * max(format.size), 2 * max(format.size)))
    return to_pixels(convert_image(apply_exif_orientation(image), format))


def convert_image(image: "Image", format: ImageFormat) -> "Image":
    """An image converted to a format."""
    from PIL import Image

    image = _eight_bit(image, format.channels)
    if format.size is None or (image.height, image.width) == format.size:
        return image
    height, width = format.size
    box = (0.0, 0.0, float(image.width), float(image.height))
    if format.fit == "crop":
        scale = min(image.width / width, image.height / height)
        left, top = (image.width - width * scale) / 2, (image.height - height * scale) / 2
        left, top = max(left, 0.0), max(top, 0.0)
        box = (left, top, image.width - left, image.height - top)
    resample = Image.Resampling.BICUBIC if format.resample is None else Image.Resampling(format.resample)
    return image.resize((width, height), resample, box=box)


def to_pixels(image: "Image") -> Pixels:
    """The pixels of a grayscale or RGB image.  # (channels, height, width)"""
    values = np.asarray(image, dtype=np.uint8)
    return values[None] if values.ndim == 2 else np.ascontiguousarray(values.transpose(2, 0, 1))


def apply_exif_orientation(image: "Image") -> "Image":
    """An image rotated and flipped as its EXIF orientation says."""
    from PIL import ImageOps

    orientation = None
    with suppress(SyntaxError, ValueError, KeyError, TypeError, struct.error):  # ignore metadata that cannot be read
        orientation = image.getexif().get(_ORIENTATION)
    return ImageOps.exif_transpose(image) if orientation in range(2, 9) else image


def _eight_bit(image: "Image", channels: int | None) -> "Image":
    """An image as 8-bit grayscale or RGB."""
    from PIL import Image

    if image.mode.startswith("I"):  # 16-bit integers, in one of several byte orders
        deep = np.asarray(image).astype(np.int64).clip(0, 0xFFFF)
        image = Image.fromarray(((deep + 128) // 257).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("its pixels are floats of an unknown range")
    if channels is None:
        channels = 1 if image.mode in _GRAY else 3
    if image.has_transparency_data:
        background = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(background, image.convert("RGBA"))
    mode = "L" if channels == 1 else "RGB"
    return image if image.mode == mode else image.convert(mode)
