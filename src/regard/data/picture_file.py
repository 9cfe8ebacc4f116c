"""One picture from one file, as bytes in the shape that is asked for.

A photo is turned as its camera says, what is transparent becomes white, and sixteen bits become eight. A picture that
is to have another size is cut to the new proportions around its middle and then scaled, or stretched. Pillow does the
work; it is imported when the first file is read.
"""

import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

Bytes = NDArray[np.uint8]
Fit = Literal["crop", "stretch"]

_ORIENTATION = 0x0112  # EXIF's number for how a camera was held
_GREY = ("1", "L", "LA", "La")


@dataclass(frozen=True)
class Frame:
    """What a picture is to be like; None leaves it as it is."""

    channels: int | None = None  # 1 is grey, 3 red, green and blue
    size: tuple[int, int] | None = None  # height and width
    fit: Fit = "crop"


def read_picture(path: str | Path, frame: Frame | None = None) -> Bytes:
    """The pixels of a file, from 0 to 255.  # (channels, height, width)"""
    from PIL import Image, UnidentifiedImageError

    path, frame = Path(path), frame or Frame()
    try:
        with Image.open(path) as image:
            if frame.size is not None:
                # A large JPEG can be decoded at a half, a quarter or an eighth; twice the size wanted is left.
                image.draft(None, (2 * max(frame.size), 2 * max(frame.size)))
            return pixels_of(reframe(upright(image), frame))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file.") from None
    except MemoryError:
        raise
    except Exception as error:  # a damaged file makes Pillow raise anything from OSError to IndexError
        reason = str(error).replace(str(path), "").replace(" ''", "").rstrip(".") or type(error).__name__
        reason = "its format is not known" if isinstance(error, UnidentifiedImageError) else reason
        raise UserError(f"{path} is not a picture, or damaged ({reason}); please replace or remove it.") from None


def reframe(image: "Image", frame: Frame) -> "Image":
    """An image in grey or colour, in the size asked for."""
    from PIL import Image

    image = _plain(image, frame.channels)
    if frame.size is None or (image.height, image.width) == frame.size:
        return image
    height, width = frame.size
    box = (0.0, 0.0, float(image.width), float(image.height))
    if frame.fit == "crop":
        scale = min(image.width / width, image.height / height)
        left, top = (image.width - width * scale) / 2, (image.height - height * scale) / 2
        left, top = max(left, 0.0), max(top, 0.0)
        box = (left, top, image.width - left, image.height - top)
    return image.resize((width, height), Image.Resampling.BICUBIC, box=box)


def pixels_of(image: "Image") -> Bytes:
    """The pixels of an image in grey or colour.  # (channels, height, width)"""
    values = np.asarray(image, dtype=np.uint8)
    return values[None] if values.ndim == 2 else np.ascontiguousarray(values.transpose(2, 0, 1))


def upright(image: "Image") -> "Image":
    """An image turned as its camera says."""
    from PIL import ImageOps

    held = None
    with suppress(SyntaxError, ValueError, KeyError, TypeError, struct.error):  # what cannot be read says nothing
        held = image.getexif().get(_ORIENTATION)
    return ImageOps.exif_transpose(image) if held in range(2, 9) else image


def _plain(image: "Image", channels: int | None) -> "Image":
    """Eight bits of grey, or of red, green and blue."""
    from PIL import Image

    if image.mode.startswith("I"):  # whole numbers of sixteen bits, in one of several orders
        deep = np.asarray(image).astype(np.int64).clip(0, 0xFFFF)
        image = Image.fromarray(((deep + 128) // 257).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("its pixels are fractions of an unknown range")
    if channels is None:
        channels = 1 if image.mode in _GREY else 3
    if image.has_transparency_data:
        ground = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(ground, image.convert("RGBA"))
    wanted = "L" if channels == 1 else "RGB"
    return image if image.mode == wanted else image.convert(wanted)
