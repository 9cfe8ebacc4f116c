"""A folder of pictures: decoded once, found again, made again where it is damaged."""

import json
import os
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard import UserError
from regard.data import picture_folder
from regard.data.picture_folder import list_pictures
from regard.data.pictures import PicturesConfig, read_pictures
from tests.data.made_pictures import (
    LABELS,
    by_class,
    image,
    own_places,
    put_folder,
    read,
    values,
)


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    return own_places(tmp_path, monkeypatch)


@pytest.mark.parametrize("end", [".png", ".bmp", ".webp", ".tiff", ".PNG"])
def test_a_folder_of_folders_is_read_sorted_by_class_and_name(tmp_path: Path, end: str) -> None:
    pixels = values()
    folder = tmp_path / "folder"
    for number, (picture, label) in enumerate(zip(pixels, LABELS, strict=True)):
        place = folder / f"c{label}" / f"{number:03}{end}"
        place.parent.mkdir(parents=True, exist_ok=True)
        image(picture).save(place, lossless=True)
    found = read(folder)
    wanted, labels = by_class(pixels)
    assert torch.equal(found.pixels, torch.from_numpy(wanted))
    assert found.labels.tolist() == labels
    assert found.classes == ("c0", "c1", "c2")
    assert found.mapped


def test_jpegs_are_read_nearly_as_they_were(tmp_path: Path) -> None:
    smooth = np.broadcast_to(np.arange(0, 160, 10, dtype=np.uint8), (2, 3, 16, 16)).copy()
    found = read(put_folder(tmp_path / "folder", smooth, [0, 1], ".jpg"))
    assert (found.pixels.int() - torch.from_numpy(smooth).int()).abs().max() <= 6


def test_a_folder_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: tuple[Path, Path]) -> None:
    folder = put_folder(tmp_path / "folder", values(), LABELS)
    said: list[str] = []
    first = read_pictures(PicturesConfig(path=str(folder)), say=said.append)
    assert len(said) == 1
    assert said[0].startswith(f"6 pictures of {folder} are decoded into {places[1]}")
    monkeypatch.setattr(picture_folder, "read_picture", None)
    again = read_pictures(PicturesConfig(path=str(folder)), say=said.append)
    assert torch.equal(first.pixels, again.pixels)
    assert first.fingerprint() == again.fingerprint()
    assert len(said) == 1


@pytest.mark.parametrize("change", ["a file", "its time", "size", "channels", "fit", "one more", "one less"])
def test_whatever_changes_a_folder_is_decoded_again(tmp_path: Path, change: str) -> None:
    folder = put_folder(tmp_path / "folder", values(3, 8, 6), LABELS)
    settings: dict[str, Any] = {"size": 4}
    first = read(folder, **settings)
    path = folder / "c0" / "000.png"
    match change:
        case "a file":
            image(255 - values(3, 8, 6)[0]).save(path)
        case "its time":
            os.utime(path, ns=(1, 1))
        case "size":
            settings["size"] = 5
        case "channels":
            settings["channels"] = 1
        case "fit":
            settings["fit"] = "stretch"
        case "one more":
            image(values(3, 8, 6)[1]).save(folder / "c0" / "100.png")
        case _:
            path.unlink()
    said: list[str] = []
    again = read_pictures(PicturesConfig(path=str(folder), **settings), say=said.append)
    assert len(said) == 1
    assert (first.fingerprint() == again.fingerprint()) == (change == "its time")


@pytest.mark.parametrize("damage", ["cut", "no header", "broken header", "old format", "killed"])
def test_a_damaged_cache_is_made_again(tmp_path: Path, damage: str, places: tuple[Path, Path]) -> None:
    folder = put_folder(tmp_path / "folder", values(), LABELS)
    first = read(folder)
    wanted = first.pixels.clone()
    (place,) = (one for one in (places[1] / "pictures").iterdir() if one.is_dir())
    header = place / "header.json"
    match damage:
        case "cut":
            (place / "pixels").write_bytes(b"short")
        case "no header":
            header.unlink()
        case "broken header":
            header.write_text("{")
        case "old format":
            header.write_text(json.dumps(json.loads(header.read_text()) | {"format": 0}))
        case _:
            place.rename(place.parent / f".{place.name}.unfinished-1")
    assert torch.equal(read(folder).pixels, wanted)
    assert sorted(path.name for path in place.parent.iterdir()) == [".lock", place.name]


def test_several_at_once_decode_a_folder_once(tmp_path: Path) -> None:
    folder = put_folder(tmp_path / "folder", values(), LABELS)
    said: list[str] = []
    found: list[str] = []

    def ask() -> None:
        found.append(read_pictures(PicturesConfig(path=str(folder)), say=said.append).fingerprint())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 4
    assert len(said) == 1


def test_a_folder_that_fails_leaves_nothing_behind(tmp_path: Path, places: tuple[Path, Path]) -> None:
    folder = put_folder(tmp_path / "folder", values(), LABELS)
    (folder / "c2" / "005.png").write_bytes(b"no picture")
    with pytest.raises(UserError):
        read(folder)
    assert [path.name for path in (places[1] / "pictures").iterdir()] == [".lock"]


def test_more_pictures_than_are_decoded_at_once_come_in_order(tmp_path: Path) -> None:
    count = 3 * picture_folder._AHEAD * (os.cpu_count() or 1)
    pixels = values(1, 2, 2, count)
    found = read(put_folder(tmp_path / "folder", pixels, [0] * (count - 1) + [1]), channels=1)
    assert torch.equal(found.pixels, torch.from_numpy(pixels))


def test_mapped_pixels_may_be_written_to_and_change_no_file(tmp_path: Path) -> None:
    folder = put_folder(tmp_path / "folder", values(), LABELS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(folder).pixels.zero_()
    assert read(folder).pixels.any()


def test_class_names_of_a_config_say_how_folders_are_numbered(tmp_path: Path) -> None:
    folder = put_folder(tmp_path / "folder", values(), LABELS)
    assert read(folder, classes=["c2", "c1", "c0"]).labels.tolist() == [2, 2, 1, 1, 0, 0]
    with pytest.raises(UserError, match=r"c2: 'c2' is not among the 2 classes: c0, c1\."):
        read(folder, classes=["c0", "c1"])


def test_what_is_no_picture_by_its_name_is_passed_over_and_said(tmp_path: Path) -> None:
    folder = put_folder(tmp_path / "folder", values(), LABELS)
    (folder / "c0" / "notes.txt").write_text("a note")
    (folder / ".hidden").mkdir()
    (folder / "list.csv").write_text("a list")
    inner = folder / "c1" / "more"
    inner.mkdir()
    image(values()[0]).save(inner / "x.png")
    said: list[str] = []
    listing = list_pictures(folder, None, said.append)
    assert listing.classes == ("c0", "c1", "c2")
    assert "c1/more/x.png" in listing.names
    assert len(listing.names) == 7
    assert said == [f"{folder}: 1 files are no pictures by their names, and are passed over."]


def test_a_file_that_is_no_picture_is_named(tmp_path: Path) -> None:
    folder = put_folder(tmp_path / "folder", values(), LABELS)
    (folder / "c1" / "002.png").write_bytes(b"not a picture at all")
    with pytest.raises(UserError, match=r"c1/002\.png is not a picture, or damaged \(.*\); please replace or remove"):
        read(folder)


def test_a_class_without_pictures_is_named(tmp_path: Path) -> None:
    folder = put_folder(tmp_path / "folder", values(), LABELS)
    (folder / "empty").mkdir()
    with pytest.raises(UserError, match="empty has no pictures in it"):
        read(folder)


def test_a_folder_without_classes_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    image(values()[0]).save(tmp_path / "folder" / "a.png")
    with pytest.raises(UserError, match="folder has no folders in it; expected one for each class"):
        read(tmp_path / "folder")


def test_pictures_of_different_sizes_need_a_size(tmp_path: Path) -> None:
    folder = put_folder(tmp_path / "folder", values(), LABELS)
    image(values(3, 7, 8)[0]).save(folder / "c1" / "002.png")
    with pytest.raises(UserError, match=r"c1/002\.png has 7 × 8 pixels, .*c0/000\.png 4 × 5; please give a `size`"):
        read(folder)
    assert read(folder, size=4).size == (4, 4)
