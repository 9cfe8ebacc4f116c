"""Small images for tests, in every supported file format."""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from regard.data.images.dataset import ImageDataset, ImagesConfig, read_images

COUNT = 6
LABELS = [0, 2, 1, 0, 1, 2]


def temporary_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A temporary REGARD_DATA and cache."""
    data, cache = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    monkeypatch.setenv("REGARD_DATA", str(data))
    monkeypatch.setenv("REGARD_CACHE", str(cache))
    return data, cache


def digits_csv(lines: int = 40) -> str:
    """Lines in the format of scikit-learn's digits.csv."""
    return "".join(
        ",".join(map(str, [(n * line) % 17 for n in range(64)] + [line % 10])) + "\n" for line in range(lines)
    )


def random_pixels(channels: int = 3, height: int = 4, width: int = 5, count: int = COUNT) -> NDArray[np.uint8]:
    """Random pixels.  # (count, channels, height, width)"""
    raw = np.random.Philox(key=3).random_raw(count * channels * height * width)
    return (raw % np.uint64(256)).astype(np.uint8).reshape(count, channels, height, width)


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder: Path, pixels: NDArray[np.uint8], labels: list[int], suffix: str = "") -> ImagesConfig:
    pack: Callable[[bytes], bytes] = gzip.compress if suffix else bytes
    (folder / f"images-idx3-ubyte{suffix}").write_bytes(pack(idx_bytes(pixels)))
    (folder / f"labels-idx1-ubyte{suffix}").write_bytes(pack(idx_bytes(np.array(labels, dtype=np.uint8))))
    return ImagesConfig(
        path=str(folder / f"images-idx3-ubyte{suffix}"), labels=str(folder / f"labels-idx1-ubyte{suffix}")
    )


def write_image_folder(folder: Path, pixels: NDArray[np.uint8], labels: list[int], suffix: str = ".png") -> Path:
    """Class folders c0, c1 …, whose files are named by their number."""
    for number, (one, label) in enumerate(zip(pixels, labels, strict=True)):
        path = folder / f"c{label}" / f"{number:03}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        to_pillow(one).save(path)
    return folder


def to_pillow(pixels: NDArray[np.uint8]) -> Image.Image:
    return Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def read(path: Path, **settings: Any) -> ImageDataset:
    return read_images(ImagesConfig(path=str(path), **settings))


def by_class(pixels: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], list[int]]:
    """Images and labels sorted by class, as a folder is read."""
    order = sorted(range(len(pixels)), key=lambda number: LABELS[number])
    return pixels[order], [LABELS[number] for number in order]
