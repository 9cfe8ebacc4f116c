"""Pictures in arrays: every layout gives the same, and what is wrong with a file is said."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from regard import UserError
from regard.data.picture_arrays import reframed
from regard.data.picture_file import Frame
from regard.data.pictures import PicturesConfig, read_pictures
from tests.data.made_pictures import (
    COUNT,
    LABELS,
    digits,
    idx,
    image,
    own_places,
    put_idx,
    read,
    values,
)


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    return own_places(tmp_path, monkeypatch)


@pytest.mark.parametrize("end", ["", ".gz"])
def test_idx_files_are_read_plain_and_compressed(tmp_path: Path, end: str) -> None:
    pixels = values(1)[:, 0]
    found = read_pictures(put_idx(tmp_path, pixels, LABELS, end))
    assert torch.equal(found.pixels, torch.from_numpy(pixels[:, None]))
    assert found.labels.tolist() == LABELS
    assert (found.labels.dtype, found.pixels.dtype) == (torch.int64, torch.uint8)
    assert found.classes == ("0", "1", "2")
    assert (found.channels, found.size, found.counts, len(found)) == (1, (4, 5), (2, 2, 2), 6)
    assert str(found) == "6 pictures of 4 × 5 in grey in 3 classes"


ARRAYS: dict[str, Callable[[NDArray[np.uint8]], NDArray[Any]]] = {
    "channels first": lambda pixels: pixels,
    "channels last": lambda pixels: pixels.transpose(0, 2, 3, 1),
    "whole numbers": lambda pixels: pixels.astype(np.int32),
    "fractions": lambda pixels: (pixels / 255).astype(np.float32),
    "short fractions": lambda pixels: (pixels / 255).astype(np.float16).clip(0, 1),
    "Fortran's order": np.asfortranarray,
}


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("file", ["npz", "npy"])
def test_arrays_of_any_layout_and_kind_hold_the_same_pictures(tmp_path: Path, kind: str, file: str) -> None:
    pixels = values()
    given, labels = ARRAYS[kind](pixels), np.array(LABELS, dtype=np.uint8)
    if file == "npz":
        np.savez_compressed(tmp_path / "a.npz", images=given, labels=labels[:, None])
        found = read(tmp_path / "a.npz")
    else:
        np.save(tmp_path / "x.npy", given)
        np.save(tmp_path / "y.npy", labels)
        found = read(tmp_path / "x.npy", labels=str(tmp_path / "y.npy"))
        assert found.mapped == (given.dtype == np.uint8)
    torch.testing.assert_close(found.pixels, torch.from_numpy(pixels), rtol=0, atol=0)
    rows = np.array([4, 0, 4])
    target = torch.empty((3, *pixels.shape[1:]), dtype=torch.uint8)
    found.copy(rows, target)
    assert torch.equal(target, torch.from_numpy(pixels[rows]))


def test_grey_arrays_and_those_of_two_colours_are_read(tmp_path: Path) -> None:
    grey = values(1)[:, 0]
    np.savez(tmp_path / "a.npz", x=grey, y=LABELS)
    assert torch.equal(read(tmp_path / "a.npz", keys=("x", "y")).pixels[:, 0], torch.from_numpy(grey))
    np.savez(tmp_path / "a.npz", x=grey > 100, y=LABELS)
    two = read(tmp_path / "a.npz", keys=("x", "y")).pixels[:, 0]
    assert torch.equal(two, torch.from_numpy(np.where(grey > 100, 255, 0).astype(np.uint8)))


def test_grey_becomes_colour_and_colour_grey_as_pillow_does_it() -> None:
    pixels = values()
    grey = reframed(pixels, Frame(channels=1))
    assert np.array_equal(grey[0, 0], np.asarray(image(pixels[0]).convert("L")))
    assert np.array_equal(reframed(grey, Frame(channels=3)), np.repeat(grey, 3, axis=1))
    assert np.array_equal(np.asarray(image(grey[0]).convert("RGB")).transpose(2, 0, 1), np.repeat(grey[0], 3, axis=0))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an IDX file: it begins with nothing"),
        (b"\x89PNG....", "is not an IDX file: it begins with 89 50 4e 47, expected 00 00 08"),
        (b"\0\0\x08\0", "is not an IDX file"),
        (b"\0\0\x0d\x03" + bytes(24), r"has numbers of the type 0x0d; only bytes \(0x08\)"),
        (
            idx(values(1)[:, 0])[:-1],
            r"is cut short: its header says 6 × 4 × 5, which makes 136 bytes, but there are 135",
        ),
        (idx(values(1)[:, 0])[:9], "is cut short"),
        (idx(values(1)[:, 0]) + b"x", "has more in it than it says"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "is cut short: its header says 4,294,967,295 × "),
    ],
)
@pytest.mark.parametrize("end", ["", ".gz"])
def test_an_idx_file_that_is_none_or_cut_short_is_refused(
    tmp_path: Path, content: bytes, message: str, end: str
) -> None:
    config = put_idx(tmp_path, values(1)[:, 0], LABELS, end)
    Path(config.path or "").write_bytes(gzip.compress(content) if end else content)
    with pytest.raises(UserError, match=message):
        read_pictures(config)


def test_a_compressed_idx_file_cut_short_is_refused(tmp_path: Path) -> None:
    config = put_idx(tmp_path, values(1)[:, 0], LABELS, ".gz")
    path = Path(config.path or "")
    for content in (path.read_bytes()[:-9], b"no gzip", b"", path.read_bytes()[:40] + b"x" + path.read_bytes()[41:]):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"images-idx3-ubyte\.gz"):
            read_pictures(config)


def test_pictures_where_labels_should_be_are_refused(tmp_path: Path) -> None:
    config = put_idx(tmp_path, values(1)[:, 0], LABELS)
    with pytest.raises(UserError, match=r"expected 3 for pictures \(magic number 00 00 08 03\) and 1 for labels"):
        read_pictures(PicturesConfig(path=config.labels, labels=config.path))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": values()}, "has no array named 'labels', but images; please say by `keys`"),
        ({"images": values(), "labels": [0.0] * COUNT}, "labels must be a row of whole numbers; found 6 of float64"),
        ({"images": values(), "labels": 3}, "labels must be a row of whole numbers; found one of int64"),
        ({"images": values(2), "labels": LABELS}, r"an array of 6 × 2 × 4 × 5 is no list of pictures"),
        ({"images": values()[:0], "labels": []}, r"an array of 0 × 3 × 4 × 5 is no list of pictures"),
        ({"images": values() * 2.0, "labels": LABELS}, "expected fractions from 0 to 1, or whole numbers"),
        ({"images": values() * np.nan, "labels": LABELS}, "there are pixels from nan"),
        (
            {"images": values().astype(int) - 1, "labels": LABELS},
            "there are pixels from -1 .*whole numbers from 0 to 255",
        ),
        ({"images": values() * 1j, "labels": LABELS}, "are of the type complex128; expected numbers"),
    ],
)
def test_arrays_that_are_no_pictures_are_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(UserError, match=message):
        read(tmp_path / "a.npz")


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    objects = np.array([{"a": 1}] * COUNT, dtype=object)
    np.savez(tmp_path / "a.npz", images=objects, labels=LABELS)
    np.save(tmp_path / "x.npy", objects)
    for config in ({"path": "a.npz"}, {"path": "x.npy", "labels": "x.npy"}):
        given = {name: str(tmp_path / file) for name, file in config.items()}
        with pytest.raises(UserError, match="holds Python objects or no array at all"):
            read_pictures(PicturesConfig(**given))


@pytest.mark.parametrize("name", ["a.npz", "a.npy"])
def test_a_damaged_array_is_named(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "a.npz", images=values(), labels=LABELS)
    np.save(tmp_path / "a.npy", values())
    path = tmp_path / name
    whole = path.read_bytes()
    labels = {"labels": str(path)} if name == "a.npy" else {}
    for content in (whole[: len(whole) // 2], b"", b"nonsense"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"{name} is damaged or cut short|{name} holds Python objects"):
            read(path, **labels)


def test_the_wrong_end_of_an_array_file_is_said(tmp_path: Path) -> None:
    np.savez(tmp_path / "a", images=values(), labels=LABELS)
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    with pytest.raises(UserError, match=r"a\.npy holds several arrays; please name it \.npz"):
        read(tmp_path / "a.npy", labels=str(tmp_path / "a.npy"))
    np.save(tmp_path / "b.npy", values())
    (tmp_path / "b.npy").rename(tmp_path / "b.npz")
    with pytest.raises(UserError, match=r"b\.npz holds a single array; please name it \.npy"):
        read(tmp_path / "b.npz")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,2,3", "line 41: found 3 numbers, expected 64"),
        (",".join(["x"] * 65), "line 41: expected whole numbers"),
        (",".join(["17"] * 65), "line 41: pixels are from 0 to 16"),
    ],
)
def test_a_line_of_digits_that_is_wrong_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "digits.csv").write_text(f"{digits()}{line}\n")
    with pytest.raises(UserError, match=message):
        read(tmp_path / "digits.csv")
