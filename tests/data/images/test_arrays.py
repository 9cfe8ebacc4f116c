"""Images in arrays: every layout and dtype gives the same pixels; errors name the file and the problem."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from regard import UserError
from regard.data.images.arrays import convert_images
from regard.data.images.dataset import ImagesConfig, read_images
from regard.data.images.file import ImageFormat
from tests.data.images.support import (
    COUNT,
    LABELS,
    digits_csv,
    idx_bytes,
    random_pixels,
    read,
    temporary_folders,
    to_pillow,
    write_idx,
)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    return temporary_folders(tmp_path, monkeypatch)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files_are_read_plain_and_compressed(tmp_path: Path, suffix: str) -> None:
    pixels = random_pixels(1)[:, 0]
    found = read_images(write_idx(tmp_path, pixels, LABELS, suffix))
    assert torch.equal(found.pixels, torch.from_numpy(pixels[:, None]))
    assert found.labels.tolist() == LABELS
    assert (found.labels.dtype, found.pixels.dtype) == (torch.int64, torch.uint8)
    assert found.classes == ("0", "1", "2")
    assert (found.channels, found.size, found.counts, len(found)) == (1, (4, 5), (2, 2, 2), 6)
    assert str(found) == "6 images of 4 × 5, grayscale, in 3 classes"


ARRAYS: dict[str, Callable[[NDArray[np.uint8]], NDArray[Any]]] = {
    "channels first": lambda pixels: pixels,
    "channels last": lambda pixels: pixels.transpose(0, 2, 3, 1),
    "integers": lambda pixels: pixels.astype(np.int32),
    "fractions": lambda pixels: (pixels / 255).astype(np.float32),
    "float16 fractions": lambda pixels: (pixels / 255).astype(np.float16).clip(0, 1),
    "Fortran order": np.asfortranarray,
}


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("file", ["npz", "npy"])
def test_arrays_of_any_layout_and_type_give_the_same_pixels(tmp_path: Path, kind: str, file: str) -> None:
    pixels = random_pixels()
    images, labels = ARRAYS[kind](pixels), np.array(LABELS, dtype=np.uint8)
    if file == "npz":
        np.savez_compressed(tmp_path / "a.npz", images=images, labels=labels[:, None])
        found = read(tmp_path / "a.npz")
    else:
        np.save(tmp_path / "x.npy", images)
        np.save(tmp_path / "y.npy", labels)
        found = read(tmp_path / "x.npy", labels=str(tmp_path / "y.npy"))
        assert found.mapped == (images.dtype == np.uint8)
    torch.testing.assert_close(found.pixels, torch.from_numpy(pixels), rtol=0, atol=0)
    rows = np.array([4, 0, 4])
    target = torch.empty((3, *pixels.shape[1:]), dtype=torch.uint8)
    found.copy_pixels(rows, target)
    assert torch.equal(target, torch.from_numpy(pixels[rows]))


def test_grayscale_and_boolean_arrays(tmp_path: Path) -> None:
    gray = random_pixels(1)[:, 0]
    np.savez(tmp_path / "a.npz", x=gray, y=LABELS)
    assert torch.equal(read(tmp_path / "a.npz", keys=("x", "y")).pixels[:, 0], torch.from_numpy(gray))
    np.savez(tmp_path / "a.npz", x=gray > 100, y=LABELS)
    binary = read(tmp_path / "a.npz", keys=("x", "y")).pixels[:, 0]
    assert torch.equal(binary, torch.from_numpy(np.where(gray > 100, 255, 0).astype(np.uint8)))


def test_grayscale_and_rgb_are_converted_like_pillow() -> None:
    pixels = random_pixels()
    gray = convert_images(pixels, ImageFormat(channels=1))
    assert np.array_equal(gray[0, 0], np.asarray(to_pillow(pixels[0]).convert("L")))
    assert np.array_equal(convert_images(gray, ImageFormat(channels=3)), np.repeat(gray, 3, axis=1))
    assert np.array_equal(
        np.asarray(to_pillow(gray[0]).convert("RGB")).transpose(2, 0, 1), np.repeat(gray[0], 3, axis=0)
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an IDX file: it begins with nothing"),
        (b"\x89PNG....", "is not an IDX file: it begins with 89 50 4e 47, expected 00 00 08"),
        (b"\0\0\x08\0", "is not an IDX file"),
        (b"\0\0\x0d\x03" + bytes(24), r"has the element type 0x0d; only unsigned bytes \(0x08\)"),
        (
            idx_bytes(random_pixels(1)[:, 0])[:-1],
            r"is truncated: its header says 6 × 4 × 5, which makes 136 bytes, but there are 135",
        ),
        (idx_bytes(random_pixels(1)[:, 0])[:9], "is truncated"),
        (idx_bytes(random_pixels(1)[:, 0]) + b"x", "is too long"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "is truncated: its header says 4,294,967,295 × "),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_invalid_or_truncated_idx_file_is_refused(tmp_path: Path, content: bytes, message: str, suffix: str) -> None:
    config = write_idx(tmp_path, random_pixels(1)[:, 0], LABELS, suffix)
    Path(config.path or "").write_bytes(gzip.compress(content) if suffix else content)
    with pytest.raises(UserError, match=message):
        read_images(config)


def test_truncated_compressed_idx_file_is_refused(tmp_path: Path) -> None:
    config = write_idx(tmp_path, random_pixels(1)[:, 0], LABELS, ".gz")
    path = Path(config.path or "")
    for content in (path.read_bytes()[:-9], b"no gzip", b"", path.read_bytes()[:40] + b"x" + path.read_bytes()[41:]):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"images-idx3-ubyte\.gz"):
            read_images(config)


def test_swapped_images_and_labels_are_refused(tmp_path: Path) -> None:
    config = write_idx(tmp_path, random_pixels(1)[:, 0], LABELS)
    with pytest.raises(UserError, match=r"expected 3 for images \(magic number 00 00 08 03\) and 1 for labels"):
        read_images(ImagesConfig(path=config.labels, labels=config.path))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": random_pixels()}, "has no array named 'labels'; it has images"),
        ({"images": random_pixels(), "labels": [0.0] * COUNT}, "labels must be a row of integers; found 6 of float64"),
        ({"images": random_pixels(), "labels": 3}, "labels must be a row of integers; found one of int64"),
        ({"images": random_pixels(2), "labels": LABELS}, r"an array of 6 × 2 × 4 × 5 is not a list of images"),
        ({"images": random_pixels()[:0], "labels": []}, r"an array of 0 × 3 × 4 × 5 is not a list of images"),
        ({"images": random_pixels() * 2.0, "labels": LABELS}, "expected fractions from 0 to 1, or integers"),
        ({"images": random_pixels() * np.nan, "labels": LABELS}, "pixel values range from nan"),
        (
            {"images": random_pixels().astype(int) - 1, "labels": LABELS},
            "pixel values range from -1 .*integers from 0 to 255",
        ),
        ({"images": random_pixels() * 1j, "labels": LABELS}, "have the type complex128; expected numbers"),
    ],
)
def test_arrays_that_are_not_images_are_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(UserError, match=message):
        read(tmp_path / "a.npz")


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    objects = np.array([{"a": 1}] * COUNT, dtype=object)
    np.savez(tmp_path / "a.npz", images=objects, labels=LABELS)
    np.save(tmp_path / "x.npy", objects)
    for config in ({"path": "a.npz"}, {"path": "x.npy", "labels": "x.npy"}):
        paths = {name: str(tmp_path / file) for name, file in config.items()}
        with pytest.raises(UserError, match="contains Python objects or no array at all"):
            read_images(ImagesConfig(**paths))


@pytest.mark.parametrize("name", ["a.npz", "a.npy"])
def test_damaged_array_is_named(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "a.npz", images=random_pixels(), labels=LABELS)
    np.save(tmp_path / "a.npy", random_pixels())
    path = tmp_path / name
    complete = path.read_bytes()
    labels = {"labels": str(path)} if name == "a.npy" else {}
    for content in (complete[: len(complete) // 2], b"", b"nonsense"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"{name} is damaged or truncated|{name} contains Python objects"):
            read(path, **labels)


def test_array_file_with_the_wrong_suffix_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a", images=random_pixels(), labels=LABELS)
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    with pytest.raises(UserError, match=r"a\.npy contains several arrays; name it \.npz"):
        read(tmp_path / "a.npy", labels=str(tmp_path / "a.npy"))
    np.save(tmp_path / "b.npy", random_pixels())
    (tmp_path / "b.npy").rename(tmp_path / "b.npz")
    with pytest.raises(UserError, match=r"b\.npz contains a single array; name it \.npy"):
        read(tmp_path / "b.npz")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,2,3", "line 41: found 3 numbers, expected 64"),
        (",".join(["x"] * 65), "line 41: expected whole numbers"),
        (",".join(["17"] * 65), "line 41: pixel values range from 0 to 16"),
    ],
)
def test_invalid_line_of_digits_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "digits.csv").write_text(f"{digits_csv()}{line}\n")
    with pytest.raises(UserError, match=message):
        read(tmp_path / "digits.csv")
