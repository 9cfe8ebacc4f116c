"""A classifier ready to use: a picture in, what it shows out, with how likely each class is.

A picture is made to fit just as those of the training set were: turned upright, in grey or colour, cut or stretched to
the trained size, normalised. All of that stands in the model's folder. A model that was imported from Hugging Face says
itself how it wants its pictures.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.picture_arrays import as_bytes, reframed
from regard.data.picture_file import Bytes, Fit, Frame, pixels_of, read_picture, reframe, upright
from regard.data.picture_folder import SUFFIXES
from regard.errors import UserError
from regard.model import VisionTransformer
from regard.run import Loaded, find, load, read_facts

if TYPE_CHECKING:
    from PIL.Image import Image

    from regard.interop import Preparation

BATCH_TOKENS = {"cpu": 4096, "cuda": 65536}
"""How many tokens are taken at once."""

Picture: TypeAlias = "str | Path | Image | Tensor | NDArray[Any]"
"""A file, an image of Pillow, or an array: (height, width), or with 1 or 3 channels before or behind these. Whole
numbers run from 0 to 255, others from 0 to 1."""
Classes = list[tuple[str, float]]
"""Classes and how likely each is, the likeliest first."""


class Classifier(Loaded):
    """A vision transformer that tells classes apart, and how pictures are made to fit it."""

    def __init__(self, loaded: Loaded, fit: Fit = "crop", preparation: "Preparation | None" = None) -> None:
        """With a `preparation` pictures are resized and normalised as that says, else by `fit` and the config."""
        if (reason := why_not(loaded.model)) is not None:
            raise UserError(f"This is no classifier of pictures: {reason}.")
        super().__init__(loaded.model, place=loaded.place)
        self.vision_transformer = cast(VisionTransformer, loaded.model)
        self.preparation = preparation
        config = self.vision_transformer.config
        resizes = preparation is not None and preparation.size is not None
        self.frame = Frame(config.channels, None if resizes else config.size, fit)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes by their numbers."""
        return self.vision_transformer.config.labels

    def to(self, device: torch.device | str) -> "Classifier":
        self.model.to(device)
        return self

    def classify(self, picture: Picture, *, top: int | None = None) -> Classes:
        """What a picture shows: all classes, or the `top` likeliest, with their probabilities."""
        return self.classify_all([picture], top=top)[0]

    def classify_all(
        self, pictures: Sequence[Picture], *, top: int | None = None, progress: Callable[[int], None] | None = None
    ) -> list[Classes]:
        """What each picture shows. `progress` hears how many are done."""
        return list(self.classify_each(pictures, top=top, progress=progress))

    def classify_each(
        self, pictures: Sequence[Picture], *, top: int | None = None, progress: Callable[[int], None] | None = None
    ) -> Iterator[Classes]:
        """The same as they come, batch by batch."""
        kept = len(self.labels) if top is None else min(top, len(self.labels))
        if kept < 1:
            raise UserError(f"At least one class is to be named; found {top}.")
        rows = max(1, BATCH_TOKENS.get(self.model.device.type, 4096) // self.vision_transformer.config.tokens)
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:  # Pillow decodes without Python's lock
            for first in range(0, len(pictures), rows):
                pixels = list(pool.map(self.pixels, pictures[first : first + rows]))
                chances, numbers = self._chances(torch.stack(pixels)).topk(kept)
                for likely, classes in zip(chances.tolist(), numbers.tolist(), strict=True):
                    yield [(self.labels[number], chance) for number, chance in zip(classes, likely, strict=True)]
                if progress is not None:
                    progress(first + len(pixels))

    def pixels(self, picture: Picture) -> Tensor:
        """A picture as the model takes it.  # (channels, height, width) in float32"""
        levels = self._levels(picture)
        if self.preparation is not None:
            return self.preparation(torch.from_numpy(np.array(levels.transpose(1, 2, 0))))
        return self.vision_transformer.config.pixels.apply(torch.from_numpy(np.array(levels)))

    def _levels(self, picture: Any) -> Bytes:
        """From 0 to 255.  # (channels, height, width)"""
        if isinstance(picture, str | Path):
            return read_picture(picture, self.frame)
        if isinstance(picture, Tensor | np.ndarray):
            array = picture.detach().cpu().numpy() if isinstance(picture, Tensor) else picture
            if array.ndim not in (2, 3):
                raise UserError(
                    f"A picture has height and width, and channels before or behind them; found {array.ndim} "
                    "dimensions. Give many pictures as a list."
                )
            (levels,) = reframed(as_bytes(array[None], "The picture"), self.frame)
            return np.asarray(levels)
        from PIL import Image

        if not isinstance(picture, Image.Image):
            raise UserError(f"A picture is a path, an image of Pillow or an array; found a {type(picture).__name__}.")
        try:
            return pixels_of(reframe(upright(picture), self.frame))
        except (OSError, ValueError) as error:
            raise UserError(f"The picture cannot be read ({error}).") from None

    @torch.no_grad()
    def _chances(self, pixels: Tensor) -> Tensor:
        """The probability of every class.  # (pictures, classes)"""
        scores: Tensor = self.model(pixels.to(self.model.device))
        return scores.float().softmax(dim=-1).cpu()


def why_not(model: object) -> str | None:
    """What stands against a model as a classifier; None if nothing does."""
    if not isinstance(model, VisionTransformer):
        return "its model reads text"
    if not model.config.labels:
        return "its model gives the vector of a picture and knows no classes"
    if model.config.channels not in (1, 3):
        return f"its model wants {model.config.channels} channels, and files have 1 (grey) or 3 (colour)"
    return None


def pictures_in(path: str | Path) -> list[Path]:
    """The picture that a path names, or all those in a folder and the folders within, sorted."""
    place = Path(path)
    if not place.is_dir():
        return [place]
    found = (one for one in place.rglob("*") if one.suffix.lower() in SUFFIXES and one.is_file())
    pictures = sorted(one for one in found if not any(part.startswith(".") for part in one.relative_to(place).parts))
    if not pictures:
        raise UserError(f"{place} has no pictures in it; they are known by their names, such as cat.png or dog.jpg.")
    return pictures


def load_classifier(name: str | Path, device: torch.device | str = "cpu") -> Classifier:
    """A classifier of pictures from a run folder; computes in float32."""
    place = find(name)
    loaded = load(place)
    noted = read_facts(place).get("origin")
    origin = noted if isinstance(noted, dict) else {}
    fit = origin.get("fit", "crop")
    if fit not in get_args(Fit):
        raise UserError(f"{place / 'run.json'}: origin.fit is {fit!r}; expected {' or '.join(get_args(Fit))}.")
    preparation = None
    if isinstance(loaded.model, VisionTransformer) and origin.get("preprocessor"):
        from regard.interop import preparation_of

        preparation = preparation_of(place)
    try:
        classifier = Classifier(loaded, cast(Fit, fit), preparation)
    except UserError as error:
        raise UserError(f"{place}: {error}") from None
    classifier.model.float()
    return classifier.to(device)
