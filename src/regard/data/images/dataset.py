"""Labeled images from any of: a folder with one subfolder per class, IDX files, NumPy arrays, the 8 × 8 digits.

All of them become an `ImageDataset`: uint8 pixels (count, channels, height, width) and the class number of each image.
Arrays are held in memory unless they can be memory-mapped; folders are decoded once into a memory-mapped file
(folder.py). Either way `pixels` is a plain tensor, and a batch is some of its rows.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from regard.config import ConfigError
from regard.data.images.arrays import as_labels, as_pixels, convert_images, read_digits, read_idx, read_npy, read_npz
from regard.data.images.file import Fit, ImageFormat, Pixels
from regard.data.images.folder import ImageFiles, list_images, map_images
from regard.data.registry import dataset_info
from regard.data.source import DataSource, NonEmpty
from regard.data.text.lines import uncompressed_suffix
from regard.errors import UserError

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")

LogFn = Callable[[str], object]

_Names = Annotated[tuple[NonEmpty, ...], Field(strict=False, min_length=2)]
_Side = Annotated[int, Field(gt=0, le=100_000)]
_Fraction = Annotated[float, Field(ge=0, le=1e6)]
_Fractions = Annotated[tuple[_Fraction, _Fraction, _Fraction], Field(strict=False)]
_MAX_CLASSES = 1_000_000
_CHUNK = 1 << 10
"""Images hashed at once."""


class ImagesConfig(DataSource):
    """Labeled images, and the format they are converted to."""

    path: NonEmpty | None = None
    """A folder with one subfolder per class; or a file of images: IDX (plain or .gz), .npz, .npy, or digits.csv.gz.

    Not needed for a dataset of a single file.
    """
    labels: NonEmpty | None = None
    """The file of labels that belongs to an IDX or .npy file of images."""
    keys: Annotated[tuple[NonEmpty, NonEmpty], Field(strict=False)] = ("images", "labels")
    """The names of the image and label arrays in an .npz file."""
    classes: _Names | None = None
    """The class names, by number. By default those of the dataset or the folder, sorted; otherwise the numbers."""
    channels: Literal[1, 3] | None = None
    """The channels to convert images to: 1 for grayscale, 3 for RGB. By default folders are read as RGB, and arrays as
    they are."""
    size: _Side | Annotated[tuple[_Side, _Side], Field(strict=False)] | None = None
    """Height and width in pixels, or one number for both. Required if the images differ in size."""
    fit: Fit = "crop"
    """How an image gets its new aspect ratio: by a center crop, or by stretching."""
    split: Split | None = None
    """Read only one of three splits. An image's split depends on `split_fractions` and its number (in a folder, its
    path) alone, so it is the same on every machine and does not change when images are added."""
    split_fractions: _Fractions = (0.8, 0.1, 0.1)
    """The sizes of the train, valid and test splits, relative to each other."""

    file_keys: ClassVar[tuple[str, ...]] = ("labels", "split", "split_fractions")

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.path is None and self.dataset is None:
            raise ConfigError("path", "this key is required, unless dataset is given.")
        if self.classes is not None and len(set(self.classes)) < len(self.classes):
            raise ConfigError("classes", "a name occurs twice; class names must be unique.")
        if self.split is not None and not self.split_fractions[SPLITS.index(self.split)]:
            raise ConfigError("split_fractions", f"the split {self.split!r} has the fraction 0, so it is empty.")
        return self

    @property
    def format(self) -> ImageFormat:
        """The format that images are converted to."""
        size = (self.size, self.size) if isinstance(self.size, int) else self.size
        return ImageFormat(self.channels, size, self.fit)

    def paths(self) -> tuple[Path, Path | None]:
        """The paths of the images and, if given, of the labels on this machine (`DataSource.resolve`)."""
        path = self.path
        if path is None and self.dataset is not None:
            files = dataset_info(self.dataset).files
            if len(files) > 1:
                names = ", ".join(file.name for file in files)
                raise ConfigError("path", f"this key is required: {self.dataset} has several files, {names}.")
            path = files[0].name
        images, *labels = self.resolve(*(name for name in (path, self.labels) if name is not None))
        return images, labels[0] if labels else None


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Images and their class numbers."""

    pixels: Tensor  # (count, channels, height, width), uint8
    labels: Tensor  # (count,), int64
    classes: tuple[str, ...]
    mapped: bool = False
    """Whether the pixels are memory-mapped from disk."""
    pixels_sha256: str | None = None
    """The checksum of the pixels if it is already known, since computing it takes time."""

    def __post_init__(self) -> None:
        if self.pixels.dim() != 4 or self.pixels.dtype != torch.uint8:
            raise UserError(
                "Images must be uint8 of the shape (count, channels, height, width); found "
                f"{tuple(self.pixels.shape)} of {self.pixels.dtype}."
            )
        if self.labels.shape != self.pixels.shape[:1] or self.labels.dtype != torch.int64:
            raise UserError(f"There are {len(self.pixels):,} images, but {len(self.labels):,} labels.")
        invalid = ((self.labels < 0) | (self.labels >= len(self.classes))).nonzero().flatten()
        if len(invalid):
            first = int(invalid[0])
            raise UserError(
                f"Image {first:,} has the label {int(self.labels[first])}; the {len(self.classes)} classes are "
                f"numbered from 0 to {len(self.classes) - 1}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __str__(self) -> str:
        height, width = self.size
        color = {1: ", grayscale,", 3: ", RGB,"}.get(self.channels, "")
        return f"{len(self):,} images of {height} × {width}{color} in {len(self.classes):,} classes"

    @property
    def channels(self) -> int:
        return self.pixels.shape[1]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.pixels.shape[2], self.pixels.shape[3]

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of images of each class."""
        return tuple(torch.bincount(self.labels, minlength=len(self.classes)).tolist())

    def subset(self, rows: Tensor) -> "ImageDataset":
        """Some of the images, copied into memory.  rows: # (count,)"""
        return ImageDataset(self.pixels.index_select(0, rows), self.labels[rows], self.classes)

    def copy_pixels(self, rows: NDArray[np.int64], target: Tensor) -> None:
        """Copy the pixels of some images into a tensor with one row per image.

        NumPy does it without the GIL and on one thread, which leaves the other cores to the computation.
        """
        source, sink = self.pixels.numpy(), target.numpy()
        channels_last = source.transpose(0, 2, 3, 1)
        if source.flags.c_contiguous:
            np.take(source, rows, axis=0, out=sink, mode="clip")
        elif channels_last.flags.c_contiguous:
            sink[:] = np.take(channels_last, rows, axis=0).transpose(0, 3, 1, 2)
        else:
            sink[:] = source[rows]

    def fingerprint(self) -> str:
        """SHA-256 in hexadecimal over pixels, labels and class names: the same wherever the images came from."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(json.dumps([list(self.pixels.shape), list(self.classes)]).encode())
        digest.update(self.labels.numpy().astype("<i8").data)
        digest.update((self.pixels_sha256 or self._pixels_sha256()).encode())
        return digest.hexdigest()

    def _pixels_sha256(self) -> str:
        digest = hashlib.sha256()
        for chunk in self.pixels.split(_CHUNK):
            digest.update(chunk.contiguous().numpy().data)
        return digest.hexdigest()


def read_images(
    config: ImagesConfig,
    *,
    classes: Sequence[str] | None = None,
    resample: int | None = None,
    log: LogFn = lambda message: None,
) -> ImageDataset:
    """Read the images that a config describes.

    `classes`, if given, are those of the training set, and replace the config's; other classes come after them.
    `resample` is the filter that resizes images, as in `ImageFormat`. `log` is called with a message if something takes
    long or is skipped.
    """
    format = replace(config.format, resample=resample)
    path, labels = config.paths()
    named = config.classes or (() if config.dataset is None else dataset_info(config.dataset).classes) or None
    known = named if classes is None else tuple(classes)
    if known is not None and len(known) < 2:
        raise UserError(f"{config.location}: at least two classes are needed; found {list(known)}.")
    if path.is_dir():
        files = list_images(path, known, log, allow_others=classes is not None)
        return _from_folder(config, files, format, log)
    if not path.exists():
        raise UserError(f"{path}: there is no such file or folder.")
    pixels, numbers, mapped = _read_arrays(config, path, labels)
    try:
        if classes is not None:
            known = (*classes, *_other_classes(classes, named or (), numbers))
        return _from_arrays(config, format, pixels, numbers, known, mapped)
    except ConfigError:
        raise
    except UserError as error:
        raise UserError(f"{config.location}: {error}") from None


def _other_classes(classes: Sequence[str], named: Sequence[str], numbers: NDArray[np.int64]) -> list[str]:
    """The names of the class numbers that come after those of the training set."""
    last = int(numbers.max(initial=-1))
    return [named[number] if number < len(named) else str(number) for number in range(len(classes), last + 1)]


def _from_folder(config: ImagesConfig, files: ImageFiles, format: ImageFormat, log: LogFn) -> ImageDataset:
    if config.split is not None:
        files = files.subset(_split(config, files.names).tolist())
    pixels, digest = map_images(files, replace(format, channels=format.channels or 3), log)
    return ImageDataset(pixels, torch.tensor(files.labels), files.classes, mapped=True, pixels_sha256=digest)


def _read_arrays(config: ImagesConfig, path: Path, labels: Path | None) -> tuple[Pixels, NDArray[np.int64], bool]:
    """The images and labels of one or two files, and whether the images are memory-mapped."""
    suffix = uncompressed_suffix(path)
    if suffix in (".npz", ".csv"):
        if labels is not None:
            raise ConfigError("labels", f"{path.name} contains its labels; leave this key out.")
        if suffix == ".csv":
            return *read_digits(path), False
        images, numbers = read_npz(path, config.keys)
        return as_pixels(images, f"{path}, {config.keys[0]}"), as_labels(numbers, f"{path}, {config.keys[1]}"), False
    if labels is None:
        raise ConfigError("labels", f"this key is required for {path.name}: the file of its labels.")
    if suffix == ".npy":
        images = read_npy(path, mapped=True)
        pixels = as_pixels(images, path)
        return pixels, as_labels(read_npy(labels), labels), pixels.dtype == images.dtype
    images, numbers = read_idx(path), read_idx(labels)
    if images.ndim not in (3, 4) or numbers.ndim != 1:
        raise UserError(
            f"{path} has {images.ndim} dimensions and {labels} has {numbers.ndim}; expected 3 for images (magic "
            "number 00 00 08 03) and 1 for labels (00 00 08 01)."
        )
    return as_pixels(images, path), as_labels(numbers, labels), False


def _from_arrays(
    config: ImagesConfig,
    format: ImageFormat,
    pixels: Pixels,
    numbers: NDArray[np.int64],
    known: tuple[str, ...] | None,
    mapped: bool,
) -> ImageDataset:
    if len(pixels) != len(numbers):
        raise UserError(f"there are {len(pixels):,} images, but {len(numbers):,} labels.")
    if known is None:
        if numbers.min() < 0:
            raise UserError(f"image {int(numbers.argmin()):,} has the label {numbers.min()}; labels count from 0.")
        if numbers.max() >= _MAX_CLASSES:
            raise UserError(
                f"image {int(numbers.argmax()):,} has the label {numbers.max()}; labels without names are class "
                f"numbers, of at most {_MAX_CLASSES:,} classes."
            )
        if numbers.min() == numbers.max():
            raise UserError(f"all labels are {numbers[0]}; at least two classes are needed.")
        known = tuple(map(str, range(int(numbers.max()) + 1)))
    dataset = ImageDataset(_tensor(pixels), torch.from_numpy(numbers), known, mapped)
    if config.split is not None:
        dataset = dataset.subset(torch.from_numpy(_split(config, map(str, range(len(dataset))))))
    converted = convert_images(dataset.pixels.numpy(), format)
    if converted.shape == tuple(dataset.pixels.shape):
        return dataset
    return ImageDataset(_tensor(converted), dataset.labels, known)


def _split(config: ImagesConfig, names: Iterable[str]) -> NDArray[np.int64]:
    """The numbers of the images whose name falls into the config's split.

    The first eight bytes of a name's SHA-256 are taken as a fraction between 0 and 1, a range that the splits divide
    among themselves in order.
    """
    assert config.split is not None
    number = SPLITS.index(config.split)
    bounds = [sum(config.split_fractions[:count]) / sum(config.split_fractions) for count in (number, number + 1)]
    prefixes = [hashlib.sha256(name.encode(errors="surrogateescape")).digest()[:8] for name in names]
    fractions = np.frombuffer(b"".join(prefixes), dtype=">u8") / 2.0**64
    upper = np.inf if number == len(SPLITS) - 1 else bounds[1]  # rounding must not exclude any image
    chosen = np.flatnonzero((fractions >= bounds[0]) & (fractions < upper))
    if not len(chosen):
        raise UserError(
            f"none of {len(fractions):,} images falls into the split {config.split!r}; make its fraction larger."
        )
    return chosen


def _tensor(values: Pixels) -> Tensor:
    """A tensor that shares an array's memory, or a copy of a read-only one."""
    return torch.from_numpy(values if values.flags.writeable else values.copy())
