"""Labelled pictures, whatever holds them: a folder of folders, IDX files, NumPy's arrays, or the 8 × 8 digits.

All of them end as `Pictures`: bytes (count, channels, height, width) beside the number of each one's class. Arrays are
held in memory, unless they can stay where they are on the disk; folders are decoded once and mapped into memory
(picture_folder.py). Either way `pixels` is a plain tensor, and a batch is some of its rows.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator
from torch import Tensor

from regard.config import Config, ConfigError
from regard.data.picture_arrays import as_bytes, as_labels, read_digits, read_idx, read_npy, read_npz, reframed
from regard.data.picture_file import Bytes, Fit, Frame
from regard.data.picture_folder import list_pictures, map_pictures
from regard.data.registry import dataset, get
from regard.data.text import plain_suffix
from regard.errors import UserError

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")

Say = Callable[[str], object]

_Name = Annotated[str, Field(min_length=1)]
_Names = Annotated[tuple[_Name, ...], Field(strict=False, min_length=2)]
_Shares = Annotated[tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat], Field(strict=False)]
_CHUNK = 1 << 10
"""Pictures looked at together when all of them are."""


class PicturesConfig(Config):
    """Where labelled pictures are, and what they are to be like."""

    set: _Name | None = None
    """A named data set (`regard data list`) that the paths are in; without it they are paths of the file system."""
    path: _Name | None = None
    """A folder with a folder for each class; or a file of pictures: IDX (plain or .gz), .npz, .npy, or digits.csv.gz.

    A set of a single file needs none.
    """
    labels: _Name | None = None
    """The file of labels beside one of pictures, if that is IDX or .npy."""
    keys: Annotated[tuple[_Name, _Name], Field(strict=False)] = ("images", "labels")
    """The names of pictures and labels in an .npz file."""
    classes: _Names | None = None
    """The names of the classes by number. Without them: those of the set or the folder, sorted; else the numbers."""
    channels: Literal[1, 3] | None = None
    """1 for grey, 3 for colour. Without it files of a folder are read in colour, arrays as they are."""
    size: PositiveInt | Annotated[tuple[PositiveInt, PositiveInt], Field(strict=False)] | None = None
    """Height and width in pixels, or one number for both. Needed where pictures differ in size."""
    fit: Fit = "crop"
    """How a picture gets other proportions: by leaving out what is too much around its middle, or by stretching."""
    split: Split | None = None
    """Read one part of three only. Which picture is in which is decided by `shares` and by its number (its path, in a
    folder) alone, so it is the same everywhere, and stays so where pictures are added."""
    shares: _Shares = (0.8, 0.1, 0.1)
    """How many go to train, valid and test, relative to each other."""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.path is None and self.set is None:
            raise ConfigError("path", "this key is required, or set in its place.")
        if self.classes is not None and len(set(self.classes)) < len(self.classes):
            raise ConfigError("classes", "a name is there twice; each class needs its own.")
        if self.split is not None and not self.shares[SPLITS.index(self.split)]:
            raise ConfigError("shares", f"the part {self.split!r} has a share of 0, so there is nothing in it.")
        return self

    @property
    def frame(self) -> Frame:
        size = (self.size, self.size) if isinstance(self.size, int) else self.size
        return Frame(self.channels, size, self.fit)

    @property
    def place(self) -> str:
        """The path or set, for messages."""
        return ": ".join(name for name in (self.set, self.path) if name is not None)

    def paths(self) -> tuple[Path, Path | None]:
        """The path, and that of the labels. Files of a named set are found on this machine, or fetched."""
        if self.set is None:
            return Path(self.path or ""), None if self.labels is None else Path(self.labels)
        first = self.path
        if first is None:
            files = dataset(self.set).files
            if len(files) > 1:
                names = ", ".join(file.name for file in files)
                raise ConfigError("path", f"this key is required: {self.set} has several files, {names}.")
            first = files[0].name
        folder = get(self.set, [first] if self.labels is None else [first, self.labels])
        return folder / first, None if self.labels is None else folder / self.labels


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures and what each of them shows."""

    pixels: Tensor  # (count, channels, height, width) of bytes
    labels: Tensor  # (count,): numbers of classes
    classes: tuple[str, ...]
    mapped: bool = False
    """Whether the pixels lie on the disk, and come into memory as they are asked for."""
    pixels_sha256: str | None = None
    """Where it is known already, for it takes time to find out."""

    def __post_init__(self) -> None:
        if self.pixels.dim() != 4 or self.pixels.dtype != torch.uint8:
            raise UserError(
                "Pictures are bytes of the shape (count, channels, height, width); found "
                f"{tuple(self.pixels.shape)} of {self.pixels.dtype}."
            )
        if self.labels.shape != self.pixels.shape[:1] or self.labels.dtype != torch.int64:
            raise UserError(f"There are {len(self.pixels):,} pictures, but {len(self.labels):,} labels.")
        wrong = ((self.labels < 0) | (self.labels >= len(self.classes))).nonzero().flatten()
        if len(wrong):
            first = int(wrong[0])
            raise UserError(
                f"Picture {first:,} has the label {int(self.labels[first])}; there are {len(self.classes)} names of "
                f"classes, from 0 to {len(self.classes) - 1}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __str__(self) -> str:
        height, width = self.size
        colour = {1: " in grey", 3: " in colour"}.get(self.channels, "")
        return f"{len(self):,} pictures of {height} × {width}{colour} in {len(self.classes):,} classes"

    @property
    def channels(self) -> int:
        return self.pixels.shape[1]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.pixels.shape[2], self.pixels.shape[3]

    @property
    def counts(self) -> tuple[int, ...]:
        """How many pictures each class has."""
        return tuple(torch.bincount(self.labels, minlength=len(self.classes)).tolist())

    def take(self, rows: Tensor) -> "Pictures":
        """Some of the pictures, copied into memory.  rows: # (count,)"""
        return Pictures(self.pixels.index_select(0, rows), self.labels[rows], self.classes)

    def copy(self, rows: NDArray[np.int64], target: Tensor) -> None:
        """Copy the pixels of some pictures into a tensor, which is to have a row for each.

        NumPy does it, without Python's lock and on one thread: the others are wanted for computing.
        """
        source, sink = self.pixels.numpy(), target.numpy()
        last = source.transpose(0, 2, 3, 1)  # as they lie where channels come last
        if source.flags.c_contiguous:
            np.take(source, rows, axis=0, out=sink, mode="clip")
        elif last.flags.c_contiguous:
            sink[:] = np.take(last, rows, axis=0).transpose(0, 3, 1, 2)
        else:
            sink[:] = source[rows]

    def fingerprint(self) -> str:
        """SHA-256 in hexadecimal over pixels, labels and class names: the same wherever the pictures came from."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        whole = hashlib.sha256(json.dumps([list(self.pixels.shape), list(self.classes)]).encode())
        whole.update(self.labels.numpy().astype("<i8").data)
        whole.update((self.pixels_sha256 or self._pixels_sha256()).encode())
        return whole.hexdigest()

    def _pixels_sha256(self) -> str:
        digest = hashlib.sha256()
        for part in self.pixels.split(_CHUNK):
            digest.update(part.contiguous().numpy().data)
        return digest.hexdigest()


def read_pictures(
    config: PicturesConfig, *, classes: Sequence[str] | None = None, say: Say = lambda sentence: None
) -> Pictures:
    """The pictures that a config names.

    `classes` are those of a training set that these must share, in place of the config's. `say` gets a sentence where
    something takes long, or is left out.
    """
    path, labels = config.paths()
    named = config.classes or (() if config.set is None else dataset(config.set).classes) or None
    known = named if classes is None else tuple(classes)
    if known is not None and len(known) < 2:
        raise UserError(f"{config.place}: there must be two classes at least; found {list(known)}.")
    if path.is_dir():
        return _from_folder(config, path, known, say)
    if not path.exists():
        raise UserError(f"{path}: there is no such file or folder.")
    pixels, numbers, mapped = _read_arrays(config, path, labels)
    try:
        return _from_arrays(config, pixels, numbers, known, mapped)
    except ConfigError:
        raise
    except UserError as error:
        raise UserError(f"{config.place}: {error}") from None


def _from_folder(config: PicturesConfig, path: Path, known: tuple[str, ...] | None, say: Say) -> Pictures:
    listing = list_pictures(path, known, say)
    if config.split is not None:
        listing = listing.only(_part(config, listing.names).tolist())
    frame = config.frame
    frame = Frame(frame.channels or 3, frame.size, frame.fit)
    pixels, digest = map_pictures(listing, frame, say)
    return Pictures(pixels, torch.tensor(listing.labels), listing.classes, mapped=True, pixels_sha256=digest)


def _read_arrays(config: PicturesConfig, path: Path, labels: Path | None) -> tuple[Bytes, NDArray[np.int64], bool]:
    """Pictures and labels of a file or two, and whether the pictures were left on the disk."""
    kind = plain_suffix(path)
    if kind in (".npz", ".csv"):
        if labels is not None:
            raise ConfigError("labels", f"{path.name} has its labels within; please leave this key out.")
        if kind == ".csv":
            return *read_digits(path), False
        images, numbers = read_npz(path, config.keys)
        return as_bytes(images, f"{path}, {config.keys[0]}"), as_labels(numbers, f"{path}, {config.keys[1]}"), False
    if labels is None:
        raise ConfigError("labels", f"this key is required beside {path.name}: the file that has its labels.")
    if kind == ".npy":
        images = read_npy(path, mapped=True)
        made = as_bytes(images, path)
        return made, as_labels(read_npy(labels), labels), made.dtype == images.dtype
    images, numbers = read_idx(path), read_idx(labels)
    if images.ndim not in (3, 4) or numbers.ndim != 1:
        raise UserError(
            f"{path} has {images.ndim} dimensions and {labels} has {numbers.ndim}; expected 3 for pictures (magic "
            "number 00 00 08 03) and 1 for labels (00 00 08 01)."
        )
    return as_bytes(images, path), as_labels(numbers, labels), False


def _from_arrays(
    config: PicturesConfig, pixels: Bytes, numbers: NDArray[np.int64], known: tuple[str, ...] | None, mapped: bool
) -> Pictures:
    if len(pixels) != len(numbers):
        raise UserError(f"there are {len(pixels):,} pictures, but {len(numbers):,} labels.")
    if known is None:
        if numbers.min() < 0:
            raise UserError(f"picture {int(numbers.argmin()):,} has the label {numbers.min()}; labels count from 0.")
        if numbers.min() == numbers.max():
            raise UserError(f"there is only one class, all labels are {numbers[0]}; at least two are needed.")
        known = tuple(map(str, range(int(numbers.max()) + 1)))
    whole = Pictures(_tensor(pixels), torch.from_numpy(numbers), known, mapped)
    if config.split is not None:
        whole = whole.take(torch.from_numpy(_part(config, map(str, range(len(whole))))))
    changed = reframed(whole.pixels.numpy(), config.frame)
    if changed.shape == tuple(whole.pixels.shape):
        return whole
    return Pictures(_tensor(changed), whole.labels, known)


def _part(config: PicturesConfig, names: Iterable[str]) -> NDArray[np.int64]:
    """The numbers of those whose name falls into the part asked for.

    The first eight bytes of a name's SHA-256 are a number from 0 to 1; the parts share that range out in turn.
    """
    assert config.split is not None
    number = SPLITS.index(config.split)
    ends = [sum(config.shares[:count]) / sum(config.shares) for count in (number, number + 1)]
    heads = [hashlib.sha256(name.encode(errors="surrogateescape")).digest()[:8] for name in names]
    places = np.frombuffer(b"".join(heads), dtype=">u8") / 2.0**64
    last = np.inf if number == len(SPLITS) - 1 else ends[1]  # rounding must lose none
    chosen = np.flatnonzero((places >= ends[0]) & (places < last))
    if not len(chosen):
        raise UserError(f"no picture of {len(places):,} falls into the part {config.split!r}; give it a larger share.")
    return chosen


def _tensor(values: Bytes) -> Tensor:
    """The same memory as a tensor; of what may not be written to, a copy."""
    return torch.from_numpy(values if values.flags.writeable else values.copy())
