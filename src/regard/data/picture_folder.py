"""A folder with a folder of pictures for each class, decoded once into one file that is mapped into memory.

Decoding is what takes time, so it is done once, on all cores, and kept in the cache:

    <cache>/pictures/<key>/header.json    format, shape, SHA-256 of the pixels
    <cache>/pictures/<key>/pixels         all pictures one after the other, a byte for each channel of a pixel

From then on a batch is a copy of bytes, however large the folder is; the operating system keeps in memory what fits.
The key is made of the files' names, sizes and times and of what they are to be like: whatever changes, they are read
again. The pixels are written beside their place and renamed, so they are whole or not there.
"""

import hashlib
import json
import math
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.data.picture_file import Bytes, Frame, read_picture
from regard.data.registry import alone, cache_folder
from regard.errors import UserError
from regard.files import new_folder, sweep

SUFFIXES = frozenset(
    (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm")
)
"""How the names of pictures end, in lower case. Other files are passed over."""
FORMAT = 1

_AHEAD = 4
"""Pictures for each thread that are decoded before it is their turn to be written."""

Say = Callable[[str], object]


@dataclass(frozen=True)
class Listing:
    """The pictures of a folder: their paths within it, sorted by class and name, and the number of each one's class."""

    folder: Path
    classes: tuple[str, ...]
    names: tuple[str, ...]
    labels: tuple[int, ...]

    def only(self, kept: Sequence[int]) -> "Listing":
        """Some of the pictures, by their numbers."""
        names, labels = tuple(self.names[number] for number in kept), tuple(self.labels[number] for number in kept)
        return Listing(self.folder, self.classes, names, labels)


def list_pictures(folder: Path, classes: Sequence[str] | None = None, say: Say = lambda sentence: None) -> Listing:
    """Find the pictures of a folder. Classes are its folders, sorted by name, unless they are given."""
    try:
        found = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror or error}.") from None
    if not found:
        raise UserError(f"{folder} has no folders in it; expected one for each class, with its pictures.")
    if classes is None and len(found) == 1:
        raise UserError(f"{folder} has only one class, {found[0]!r}; please add a folder for each of the others.")
    known = {name: number for number, name in enumerate(found if classes is None else classes)}
    names: list[str] = []
    labels: list[int] = []
    others = 0
    for name in found:
        if name not in known:
            raise UserError(f"{folder / name}: {name!r} is not among the {len(known)} classes: {_some(list(known))}.")
        pictures, left = _pictures(folder, name)
        if not pictures:
            raise UserError(f"{folder / name} has no pictures in it; please add some, or remove the folder.")
        names += pictures
        labels += [known[name]] * len(pictures)
        others += left
    if others:
        say(f"{folder}: {others:,} files are no pictures by their names, and are passed over.")
    return Listing(folder, tuple(known), tuple(names), tuple(labels))


def map_pictures(listing: Listing, frame: Frame, say: Say = lambda sentence: None) -> tuple[Tensor, str]:
    """All pixels, mapped into memory, and their SHA-256; decoded first where that has not been done yet.

    # (count, channels, height, width) of bytes
    """
    place = cache_folder() / "pictures" / _key(listing, frame)
    found = _open(place)
    if found is not None:
        return found
    with alone(place.parent):  # whoever waited here finds what the other has made
        found = _open(place)
        if found is not None:
            return found
        sweep(place.parent)
        shutil.rmtree(place, ignore_errors=True)
        say(f"{len(listing.names):,} pictures of {listing.folder} are decoded into {place}, which is done once.")
        with new_folder(place) as beside:
            _write(beside, listing, frame)
    found = _open(place)
    if found is None:
        raise UserError(f"{place} cannot be read back; please check the disk, or set REGARD_CACHE to another folder.")
    return found


def _pictures(folder: Path, name: str) -> tuple[list[str], int]:
    """The pictures in a class' folder and those within it, sorted, and how many files are something else."""
    pictures: list[str] = []
    others = 0
    for place, inner, files in os.walk(folder / name):
        inner[:] = sorted(one for one in inner if not one.startswith("."))
        for file in files:
            if Path(file).suffix.lower() in SUFFIXES and not file.startswith("."):
                pictures.append(Path(place, file).relative_to(folder).as_posix())
            else:
                others += 1
    return sorted(pictures), others


def _key(listing: Listing, frame: Frame) -> str:
    """Different wherever the pixels could be."""
    digest = hashlib.sha256(repr((FORMAT, frame)).encode())
    for name in listing.names:
        try:
            facts = os.stat(listing.folder / name)
        except OSError as error:
            raise UserError(f"{listing.folder / name} cannot be read: {error.strerror or error}.") from None
        digest.update(f"{name}\0{facts.st_size} {facts.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:32]


def _open(place: Path) -> tuple[Tensor, str] | None:
    """What was written, if all of it is there."""
    try:
        header = json.loads((place / "header.json").read_text(encoding="utf-8"))
        shape = [int(side) for side in header["shape"]]
        if header["format"] != FORMAT or (place / "pixels").stat().st_size != math.prod(shape):
            return None
        pixels = torch.from_file(str(place / "pixels"), shared=False, size=math.prod(shape), dtype=torch.uint8)
        return pixels.view(shape), str(header["sha256"])
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        return None


def _write(place: Path, listing: Listing, frame: Frame) -> None:
    digest = hashlib.sha256()
    shape: tuple[int, ...] = ()
    with (place / "pixels").open("wb") as file:
        for name, picture in _decoded(listing, frame):
            shape = shape or picture.shape
            if picture.shape != shape:
                raise UserError(
                    f"{listing.folder / name} has {_size(picture.shape)} pixels, {listing.folder / listing.names[0]} "
                    f"{_size(shape)}; please give a `size` that all of them are to have."
                )
            file.write(picture.data)
            digest.update(picture.data)
    header: dict[str, Any] = {"format": FORMAT, "shape": [len(listing.names), *shape], "sha256": digest.hexdigest()}
    (place / "header.json").write_text(json.dumps(header) + "\n", encoding="utf-8")


def _decoded(listing: Listing, frame: Frame) -> Iterator[tuple[str, Bytes]]:
    """Every picture in turn. Pillow works without Python's lock, so threads are enough to use all cores."""
    threads = os.cpu_count() or 1
    waiting: deque[tuple[str, Future[Bytes]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for name in listing.names:
            waiting.append((name, pool.submit(read_picture, listing.folder / name, frame)))
            if len(waiting) > _AHEAD * threads:
                first, picture = waiting.popleft()
                yield first, picture.result()
        for name, picture in waiting:
            yield name, picture.result()


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]} × {shape[2]}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:10]) + (" …" if len(names) > 10 else "")
