"""Tracing an image classifier. The input is an image instead of a text, sent as a data: URL."""

import base64
import binascii
import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from regard.data.images.dataset import read_images
from regard.errors import UserError
from regard.look.models.encoder import EncoderInput, EncoderOutput, TracedEncoder, likeliest_labels
from regard.look.models.traced_model import Example
from regard.look.schema import PatchGrid, Prediction, RunRequest, Token
from regard.model import VisionTransformer
from regard.task.base import Recipe
from regard.task.image_classification.pipeline import ImageClassifier

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 1 << 25
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")


class TracedImageClassifier(TracedEncoder):
    """A vision transformer with labels. `RunRequest.text` is the image's name, `RunRequest.image` its content."""

    task = "image-classification"
    input = "image"
    model: VisionTransformer

    def __init__(self, classifier: ImageClassifier, name: str) -> None:
        super().__init__(name)
        self.pipeline, self.model = classifier, classifier.vision_transformer

    @property
    def examples(self) -> Sequence[str]:
        return ()

    def encode_request(self, request: RunRequest) -> EncoderInput:
        if request.image is None:
            raise UserError("There is no image to classify; choose one.")
        pixels = self.pipeline.pixels(image_from_data_url(request.image))
        return EncoderInput(pixels[None])

    def token_count(self, encoded: EncoderInput) -> int:
        config = self.model.config
        return int(encoded.tensor[0, 0].numel()) // config.patch_size**2 + 1 + config.registers

    def interpret(self, request: RunRequest, encoded: EncoderInput, logits: Tensor) -> EncoderOutput:
        config = self.model.config
        rows, columns = (size // config.patch_size for size in encoded.tensor.shape[2:])
        special = ["⟨class⟩"] if config.pooling == "cls" else []
        special += [f"⟨register {number}⟩" for number in range(1, config.registers + 1)]
        tokens = [Token(id=-1, piece=name, text=name, word=-1, special=True) for name in special]
        for patch in range(rows * columns):
            name = f"{patch // columns},{patch % columns}"
            tokens.append(Token(id=-1, piece=name, text=name, word=patch, special=False))
        predictions = [Prediction(item="image", choices=likeliest_labels(logits, self.pipeline.labels))]
        grid = PatchGrid(rows=rows, columns=columns, image=image_data_url(self._denormalize(encoded.tensor[0])))
        return EncoderOutput(tokens, predictions[0].choices[0].label, predictions, grid=grid)

    def parse_line(self, line: str) -> Any:
        raise UserError("Images cannot be given as lines; without lines, the recipe's images are used.")

    def read_items(self, recipe: Recipe, source: Any) -> Iterator[tuple[Any, int]]:
        images = read_images(source, classes=self.pipeline.labels)
        known = (images.labels < len(self.pipeline.labels)).nonzero().flatten().tolist()
        return ((images.pixels[index], int(images.labels[index])) for index in known)

    def make_example(self, item: tuple[Any, int]) -> Example:
        image, label = item
        return Example(self.pipeline.pixels(image), torch.tensor(label))

    def prepare_image(self, image: Any) -> "Image":
        return self._denormalize(self.pipeline.pixels(image))

    def _denormalize(self, pixels: Tensor) -> "Image":
        """The image that the model sees, after resizing and cropping but before normalization."""
        from PIL import Image

        processor = self.pipeline.image_processor
        scale = self.model.config.pixels if processor is None else processor.pixels
        mean, std = (torch.tensor(values).reshape(-1, 1, 1) for values in (scale.mean, scale.std))
        levels = ((pixels * std + mean).clamp(0, 1) * 255).round().to(torch.uint8).numpy()
        return Image.fromarray(levels[0] if len(levels) == 1 else np.ascontiguousarray(levels.transpose(1, 2, 0)))


def image_from_data_url(url: str) -> "Image":
    """The image in a data: URL."""
    from PIL import Image

    kind, comma, content = url.partition(",")
    if not comma or not kind.startswith("data:image/") or not kind.endswith(";base64"):
        raise UserError("An image is sent as a data: URL, such as data:image/png;base64,….")
    try:
        image = Image.open(io.BytesIO(base64.b64decode(content, validate=True)), formats=FORMATS)
    except (binascii.Error, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise UserError(f"The image cannot be read; send one of these formats: {', '.join(FORMATS)}.") from None
    if image.width * image.height > MAX_PIXELS:
        raise UserError(f"The image has {image.width:,} × {image.height:,} pixels; make it smaller.")
    return image


def image_data_url(image: "Image") -> str:
    """An image as a data: URL."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
