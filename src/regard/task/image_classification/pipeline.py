"""The image classification pipeline: the classes of an image with their probabilities.

Images are preprocessed like those of the training set: EXIF orientation, grayscale or RGB, cropped or stretched to the
trained size, normalized. All of that is recorded in the model's folder. A model that was imported from Hugging Face has
its own preprocessor config.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast, get_args, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.images.arrays import as_pixels, convert_images
from regard.data.images.file import (
    Fit,
    ImageFormat,
    Pixels,
    apply_exif_orientation,
    convert_image,
    read_image,
    to_pixels,
)
from regard.data.images.folder import SUFFIXES
from regard.errors import UserError, suggest_keywords
from regard.model import VisionTransformer
from regard.run import LoadedModel
from regard.task.pipeline import Pipeline

if TYPE_CHECKING:
    from PIL.Image import Image

    from regard.interop import ImageProcessor

BATCH_TOKENS = {"cpu": 4096, "cuda": 65536}
"""Tokens per batch."""

ImageInput: TypeAlias = "str | Path | Image | Tensor | NDArray[Any]"
"""A file, a Pillow image, or an array: (height, width), optionally with 1 or 3 channels first or last. Integers are
from 0 to 255, other numbers from 0 to 1."""
Images: TypeAlias = "list[ImageInput] | tuple[ImageInput, ...]"
Classes = list[tuple[str, float]]
"""Classes with their probabilities, most likely first."""
Progress = Callable[[int], None]


class ImageClassifier(Pipeline):
    """A vision transformer with a classification head, and its image preprocessing."""

    def __init__(self, loaded: LoadedModel) -> None:
        """Images are resized and normalized by an imported model's preprocessor_config.json, else as its run did."""
        super().__init__(loaded)
        self.vision_transformer = cast(VisionTransformer, loaded.model)
        self.image_processor: ImageProcessor | None = None
        if loaded.path is not None and loaded.origin.get("preprocessor"):
            from regard.interop import load_image_processor

            self.image_processor = load_image_processor(loaded.path)
        config = self.vision_transformer.config
        resizes = self.image_processor is not None and self.image_processor.size is not None
        fit = loaded.origin.get("fit", "crop")
        if fit not in get_args(Fit):
            where = "" if loaded.path is None else f"{loaded.path / 'run.json'}: "
            raise UserError(f"{where}origin.fit is {fit!r}; expected {' or '.join(get_args(Fit))}.")
        self.format = ImageFormat(config.channels, None if resizes else config.size, fit)

    @classmethod
    def unsupported_reason(cls, loaded: LoadedModel) -> str | None:
        model = loaded.model
        if not isinstance(model, VisionTransformer):
            return "This is not an image classifier: its model takes text."
        if not model.config.labels:
            return "This is not an image classifier: its model embeds images and has no classes."
        if model.config.channels not in (1, 3):
            found = model.config.channels
            return f"This model takes {found} channels; image files have 1 (grayscale) or 3 (color)."
        return None

    @property
    def labels(self) -> tuple[str, ...]:
        """The class names, by number."""
        return self.vision_transformer.config.labels

    @overload
    def classify(self, image: ImageInput, *, top: int | None = None, progress: Progress | None = None) -> Classes: ...
    @overload
    def classify(self, image: Images, *, top: int | None = None, progress: Progress | None = None) -> list[Classes]: ...

    @suggest_keywords
    def classify(
        self, image: "ImageInput | Images", *, top: int | None = None, progress: Progress | None = None
    ) -> Any:
        """The classes of an image with their probabilities, most likely first; of a list of images, a list of them.

            classifier.classify("one.png", top=3)                    # [("1", 0.98), ("7", 0.01), ("4", 0.004)]
            classifier.classify(["one.png", pillow_image, array])

        An image is a path, a Pillow image, or an array or tensor (height, width), optionally with 1 or 3 channels first
        or last; integers are from 0 to 255, other numbers from 0 to 1. `top` limits the classes to the likeliest ones.
        `progress` is called with the number of finished images.
        """
        if isinstance(image, list | tuple):
            return list(self.classify_each(image, top=top, progress=progress))
        return next(self.classify_each([image], top=top, progress=progress))

    def classify_each(
        self, images: Sequence[ImageInput], *, top: int | None = None, progress: Progress | None = None
    ) -> Iterator[Classes]:
        """The classes of many images as an iterator, computed batch by batch."""
        if top is not None and top < 1:
            raise UserError(f"top must be at least 1; found {top}.")
        rows = self._batch_rows
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:  # Pillow releases the GIL
            for first in range(0, len(images), rows):
                pixels = list(pool.map(self.pixels, images[first : first + rows]))
                yield from self._classes(torch.stack(pixels), top)
                if progress is not None:
                    progress(first + len(pixels))

    def classify_pixels(self, pixels: Sequence[Tensor], top: int | None = None) -> list[Classes]:
        """The classes of images that `pixels` has preprocessed."""
        rows = self._batch_rows
        batches = (torch.stack(list(pixels[first : first + rows])) for first in range(0, len(pixels), rows))
        return [each for batch in batches for each in self._classes(batch, top)]

    def pixels(self, image: ImageInput) -> Tensor:
        """An image preprocessed for the model.  # (channels, height, width), float32"""
        values = self._uint8_pixels(image)
        if self.image_processor is not None:
            return self.image_processor(torch.from_numpy(np.array(values.transpose(1, 2, 0))))
        return self.vision_transformer.config.pixels.apply(torch.from_numpy(np.array(values)))

    def _uint8_pixels(self, image: Any) -> Pixels:
        """# (channels, height, width)"""
        if isinstance(image, str | Path):
            return read_image(image, self.format)
        if isinstance(image, Tensor | np.ndarray):
            array = image.detach().cpu().numpy() if isinstance(image, Tensor) else image
            if array.ndim not in (2, 3):
                raise UserError(
                    f"An image has height and width, and optionally channels; found {array.ndim} dimensions. "
                    "Give several images as a list."
                )
            (pixels,) = convert_images(as_pixels(array[None], "The image"), self.format)
            return np.asarray(pixels)
        from PIL import Image

        if not isinstance(image, Image.Image):
            raise UserError(f"An image must be a path, a Pillow image or an array; found a {type(image).__name__}.")
        try:
            return to_pixels(convert_image(apply_exif_orientation(image), self.format))
        except (OSError, ValueError) as error:
            raise UserError(f"The image cannot be read ({error}).") from None

    @property
    def _batch_rows(self) -> int:
        length = self.vision_transformer.config.sequence_length
        return max(1, BATCH_TOKENS.get(self.model.device.type, 4096) // length)

    def _classes(self, pixels: Tensor, top: int | None) -> list[Classes]:
        """The likeliest classes of a batch of preprocessed images."""
        values, indices = self._probabilities(pixels).topk(min(top or len(self.labels), len(self.labels)))
        return [
            [(self.labels[number], probability) for number, probability in zip(*each, strict=True)]
            for each in zip(indices.tolist(), values.tolist(), strict=True)
        ]

    @torch.no_grad()
    def _probabilities(self, pixels: Tensor) -> Tensor:
        """The probabilities of all classes.  # (images, classes)"""
        logits: Tensor = self.model(pixels.to(self.model.device))
        return logits.float().softmax(dim=-1).cpu()


def find_images(path: str | Path) -> list[Path]:
    """The image at a path, or all images in a folder and its subfolders, sorted."""
    path = Path(path)
    if not path.is_dir():
        return [path]
    found = (one for one in path.rglob("*") if one.suffix.lower() in SUFFIXES and one.is_file())
    images = sorted(one for one in found if not any(part.startswith(".") for part in one.relative_to(path).parts))
    if not images:
        raise UserError(f"{path} has no images; they are recognized by their suffix, such as .png or .jpg.")
    return images
