"""Images in requests: base64 and data: URLs, and the pixels in them.

A file of some kilobytes can unpack to billions of pixels. So the size that its header names is checked before anything
is decoded, and images are decoded one after the other, each down to the size that the model takes.
"""

import base64
import binascii
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from regard.data.images.file import decode_image
from regard.errors import UserError
from regard.serve.limits import LimitError, Limits
from regard.task.image_classification.pipeline import ImageClassifier

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")


def decode_base64(field: str, content: str) -> bytes:
    """The bytes of an image in base64, which may be a data: URL. `field` is where the request has it."""
    if content[:5].lower() == "data:":
        head, comma, content = content.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise UserError(f"{field} is no image; send a data: URL such as data:image/png;base64,….")
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise UserError(f"{field} is not in base64; send an image in base64 or as a data: URL.") from None


def preprocess_images(
    classifier: ImageClassifier, images: Sequence[bytes], limits: Limits, check: Callable[[], None]
) -> list[Tensor]:
    """Image files as the model takes them. `check` is called before each, and may stop it."""
    opened = [_open(f"image[{number}]" if len(images) > 1 else "image", one) for number, one in enumerate(images)]
    total = 0
    for where, image in opened:
        pixels = image.width * image.height
        if pixels > limits.image_pixels:
            raise LimitError(
                f"{where} has {image.width:,} × {image.height:,} pixels, and this server takes "
                f"{limits.image_pixels:,}; make it smaller."
            )
        total += pixels
    if total > limits.total_image_pixels:
        raise LimitError(
            f"The images have {total:,} pixels in all, and this server takes {limits.total_image_pixels:,}; send them "
            "in several requests."
        )
    found = []
    for where, image in opened:
        check()
        try:
            with image:
                values = decode_image(image, classifier.format)
        except MemoryError:
            raise
        except Exception:  # a damaged file makes Pillow raise anything from OSError to IndexError
            raise UserError(f"{where} is damaged; send it again.") from None
        found.append(classifier.pixels(np.ascontiguousarray(values.transpose(1, 2, 0))))
    return found


def _open(where: str, content: bytes) -> tuple[str, "Image"]:
    """Read the header of an image."""
    from PIL import Image

    try:
        return where, Image.open(io.BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError:
        raise LimitError(f"{where} has too many pixels; make it smaller.") from None
    except MemoryError:
        raise
    except Exception:  # a damaged file makes Pillow raise anything
        raise UserError(f"{where} cannot be read; send one of these formats: {', '.join(FORMATS)}.") from None
