"""A folder with one subfolder of images per class, decoded once into one memory-mapped file.

Decoding takes most of the time, so it is done once, on all cores, and kept in the cache:

    <cache>/images/<key>/header.json    format version, shape, SHA-256 of the pixels
    <cache>/images/<key>/pixels         all images one after the other, one byte per channel of a pixel

From then on a batch is a copy of bytes, however large the folder is; the operating system caches as much as fits into
memory. The key is made of the files' names, sizes and modification times and of the image format: if any of them
changes, the images are decoded again. The pixels are written to a temporary folder and renamed, so they are complete or
absent.
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

from regard.config import parse_json
from regard.data.images.file import ImageFormat, Pixels, read_image
from regard.data.registry import cache_folder, locked_folder
from regard.errors import UserError
from regard.files import new_folder, remove_unfinished
from regard.progress import counted

SUFFIXES = frozenset(
    (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm")
)
"""Suffixes of image files, in lower case. Other files are skipped."""
FORMAT = 1

_AHEAD = 4
"""Images per thread that are decoded ahead of writing."""

LogFn = Callable[[str], object]


@dataclass(frozen=True)
class ImageFiles:
    """The images of a folder: their paths relative to it, sorted by class and name, and their class numbers."""

    folder: Path
    classes: tuple[str, ...]
    names: tuple[str, ...]
    labels: tuple[int, ...]

    def subset(self, numbers: Sequence[int]) -> "ImageFiles":
        """Some of the images, by their numbers."""
        names, labels = (
            tuple(self.names[number] for number in numbers),
            tuple(self.labels[number] for number in numbers),
        )
        return ImageFiles(self.folder, self.classes, names, labels)


def list_images(
    folder: Path, classes: Sequence[str] | None = None, log: LogFn = lambda message: None, *, allow_others: bool = False
) -> ImageFiles:
    """Find the images of a folder. By default the classes are its subfolders, sorted by name.

    A subfolder that is not among the `classes` is an error or, with `allow_others`, a class after them.
    """
    try:
        found = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror or error}.") from None
    if not found:
        raise UserError(f"{folder} has no subfolders; expected one per class, with its images.")
    if classes is None and len(found) == 1:
        raise UserError(f"{folder} has only one class, {found[0]!r}; add a subfolder for each of the others.")
    known = {name: number for number, name in enumerate(found if classes is None else classes)}
    names: list[str] = []
    labels: list[int] = []
    skipped = 0
    for name in found:
        if name not in known and allow_others:
            known[name] = len(known)
        if name not in known:
            raise UserError(f"{folder / name}: {name!r} is not one of the {len(known)} classes: {_some(list(known))}.")
        images, others = _image_names(folder, name)
        if not images:
            raise UserError(f"{folder / name} has no images; add some, or remove the folder.")
        names += images
        labels += [known[name]] * len(images)
        skipped += others
    if skipped:
        log(f"{folder}: skipped {skipped:,} files that are not images by their suffix.")
    return ImageFiles(folder, tuple(known), tuple(names), tuple(labels))


def map_images(files: ImageFiles, format: ImageFormat, log: LogFn = lambda message: None) -> tuple[Tensor, str]:
    """All pixels, memory-mapped, and their SHA-256; decoded first if they are not in the cache.

    # (count, channels, height, width), uint8
    """
    folder = cache_folder() / "images" / _key(files, format)
    cached = _open(folder)
    if cached is not None:
        return cached
    with locked_folder(folder.parent):
        cached = _open(folder)  # another process may have decoded them while this one waited
        if cached is not None:
            return cached
        remove_unfinished(folder.parent)
        shutil.rmtree(folder, ignore_errors=True)
        log(f"Decoding {len(files.names):,} images of {files.folder} into {folder}; this is done once.")
        with new_folder(folder) as temporary:
            _write(temporary, files, format)
    cached = _open(folder)
    if cached is None:
        raise UserError(f"{folder} cannot be read back; check the disk, or set REGARD_CACHE to another folder.")
    return cached


def _image_names(folder: Path, name: str) -> tuple[list[str], int]:
    """The images in a class's folder and its subfolders, sorted, and the number of other files."""
    images: list[str] = []
    others = 0
    for root, subfolders, files in os.walk(folder / name):
        subfolders[:] = sorted(one for one in subfolders if not one.startswith("."))
        for file in files:
            if Path(file).suffix.lower() in SUFFIXES and not file.startswith("."):
                images.append(Path(root, file).relative_to(folder).as_posix())
            else:
                others += 1
    return sorted(images), others


def _key(files: ImageFiles, format: ImageFormat) -> str:
    """A hash that changes whenever the pixels may have changed."""
    resample = () if format.resample is None else (format.resample,)
    digest = hashlib.sha256(repr((FORMAT, format, *resample)).encode())
    for name in files.names:
        try:
            stat = os.stat(files.folder / name)
        except OSError as error:
            raise UserError(f"{files.folder / name} cannot be read: {error.strerror or error}.") from None
        digest.update(f"{name}\0{stat.st_size} {stat.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:32]


def _open(folder: Path) -> tuple[Tensor, str] | None:
    """The pixels and their SHA-256, if the cached files are complete."""
    try:
        header = parse_json((folder / "header.json").read_text(encoding="utf-8"))
        shape = [int(side) for side in header["shape"]]
        if header["format"] != FORMAT or (folder / "pixels").stat().st_size != math.prod(shape):
            return None
        pixels = torch.from_file(str(folder / "pixels"), shared=False, size=math.prod(shape), dtype=torch.uint8)
        return pixels.view(shape), str(header["sha256"])
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        return None


def _write(folder: Path, files: ImageFiles, format: ImageFormat) -> None:
    digest = hashlib.sha256()
    shape: tuple[int, ...] = ()
    with (folder / "pixels").open("wb") as file:
        for name, image in counted(_decoded(files, format), "Decoding images", "images", len(files.names)):
            shape = shape or image.shape
            if image.shape != shape:
                raise UserError(
                    f"{files.folder / name} has {_size(image.shape)} pixels, {files.folder / files.names[0]} "
                    f"{_size(shape)}; give a `size` for all of them."
                )
            file.write(image.data)
            digest.update(image.data)
    header: dict[str, Any] = {"format": FORMAT, "shape": [len(files.names), *shape], "sha256": digest.hexdigest()}
    (folder / "header.json").write_text(json.dumps(header) + "\n", encoding="utf-8")


def _decoded(files: ImageFiles, format: ImageFormat) -> Iterator[tuple[str, Pixels]]:
    """The images in order. Pillow releases the GIL, so threads are enough to use all cores."""
    threads = os.cpu_count() or 1
    waiting: deque[tuple[str, Future[Pixels]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for name in files.names:
            waiting.append((name, pool.submit(read_image, files.folder / name, format)))
            if len(waiting) > _AHEAD * threads:
                first, image = waiting.popleft()
                yield first, image.result()
        for name, image in waiting:
            yield name, image.result()


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]} × {shape[2]}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:10]) + (" …" if len(names) > 10 else "")
