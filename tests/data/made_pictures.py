"""Small pictures for tests, in every form that they are read from."""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from regard.data.pictures import Pictures, PicturesConfig, read_pictures

COUNT = 6
LABELS = [0, 2, 1, 0, 1, 2]


def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A REGARD_DATA and a cache of our own."""
    own, cache = tmp_path / "own", tmp_path / "cache"
    own.mkdir()
    monkeypatch.setenv("REGARD_DATA", str(own))
    monkeypatch.setenv("REGARD_CACHE", str(cache))
    return own, cache


def digits(lines: int = 40) -> str:
    """Lines as scikit-learn's file has them."""
    return "".join(
        ",".join(map(str, [(n * line) % 17 for n in range(64)] + [line % 10])) + "\n" for line in range(lines)
    )


def values(channels: int = 3, height: int = 4, width: int = 5, count: int = COUNT) -> NDArray[np.uint8]:
    """(count, channels, height, width)"""
    words = np.random.Philox(key=3).random_raw(count * channels * height * width)
    return (words % np.uint64(256)).astype(np.uint8).reshape(count, channels, height, width)


def idx(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def put_idx(folder: Path, pixels: NDArray[np.uint8], labels: list[int], end: str = "") -> PicturesConfig:
    pack: Callable[[bytes], bytes] = gzip.compress if end else bytes
    (folder / f"images-idx3-ubyte{end}").write_bytes(pack(idx(pixels)))
    (folder / f"labels-idx1-ubyte{end}").write_bytes(pack(idx(np.array(labels, dtype=np.uint8))))
    return PicturesConfig(path=str(folder / f"images-idx3-ubyte{end}"), labels=str(folder / f"labels-idx1-ubyte{end}"))


def put_folder(folder: Path, pixels: NDArray[np.uint8], labels: list[int], end: str = ".png") -> Path:
    """Class folders c0, c1 …; within one, files are named by their number."""
    for number, (picture, label) in enumerate(zip(pixels, labels, strict=True)):
        place = folder / f"c{label}" / f"{number:03}{end}"
        place.parent.mkdir(parents=True, exist_ok=True)
        image(picture).save(place)
    return folder


def image(picture: NDArray[np.uint8]) -> Image.Image:
    return Image.fromarray(picture[0] if len(picture) == 1 else np.ascontiguousarray(picture.transpose(1, 2, 0)))


def read(path: Path, **settings: Any) -> Pictures:
    return read_pictures(PicturesConfig(path=str(path), **settings))


def by_class(pixels: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], list[int]]:
    """As a folder has them: sorted by class."""
    order = sorted(range(len(pixels)), key=lambda number: LABELS[number])
    return pixels[order], [LABELS[number] for number in order]
