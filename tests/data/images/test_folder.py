"""Folders of images: decoded once, cached, and decoded again if they change or the cache is damaged."""

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
from regard.data.images import folder as image_folder
from regard.data.images.dataset import ImagesConfig, read_images
from regard.data.images.folder import list_images
from tests.data.images.support import (
    LABELS,
    by_class,
    random_pixels,
    read,
    temporary_folders,
    to_pillow,
    write_image_folder,
)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    return temporary_folders(tmp_path, monkeypatch)


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".webp", ".tiff", ".PNG"])
def test_folder_is_read_sorted_by_class_and_name(tmp_path: Path, suffix: str) -> None:
    pixels = random_pixels()
    folder = tmp_path / "folder"
    for number, (one, label) in enumerate(zip(pixels, LABELS, strict=True)):
        path = folder / f"c{label}" / f"{number:03}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        to_pillow(one).save(path, lossless=True)
    found = read(folder)
    expected, labels = by_class(pixels)
    assert torch.equal(found.pixels, torch.from_numpy(expected))
    assert found.labels.tolist() == labels
    assert found.classes == ("c0", "c1", "c2")
    assert found.mapped


def test_jpegs_are_read_nearly_unchanged(tmp_path: Path) -> None:
    smooth = np.broadcast_to(np.arange(0, 160, 10, dtype=np.uint8), (2, 3, 16, 16)).copy()
    found = read(write_image_folder(tmp_path / "folder", smooth, [0, 1], ".jpg"))
    assert (found.pixels.int() - torch.from_numpy(smooth).int()).abs().max() <= 6


def test_folder_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: tuple[Path, Path]) -> None:
    folder = write_image_folder(tmp_path / "folder", random_pixels(), LABELS)
    messages: list[str] = []
    first = read_images(ImagesConfig(path=str(folder)), log=messages.append)
    assert len(messages) == 1
    assert messages[0].startswith(f"Decoding 6 images of {folder} into {folders[1]}")
    monkeypatch.setattr(image_folder, "read_image", None)
    again = read_images(ImagesConfig(path=str(folder)), log=messages.append)
    assert torch.equal(first.pixels, again.pixels)
    assert first.fingerprint() == again.fingerprint()
    assert len(messages) == 1


@pytest.mark.parametrize("change", ["content", "mtime", "size", "channels", "fit", "added file", "removed file"])
def test_changed_folder_is_decoded_again(tmp_path: Path, change: str) -> None:
    folder = write_image_folder(tmp_path / "folder", random_pixels(3, 8, 6), LABELS)
    settings: dict[str, Any] = {"size": 4}
    first = read(folder, **settings)
    path = folder / "c0" / "000.png"
    match change:
        case "content":
            to_pillow(255 - random_pixels(3, 8, 6)[0]).save(path)
        case "mtime":
            os.utime(path, ns=(1, 1))
        case "size":
            settings["size"] = 5
        case "channels":
            settings["channels"] = 1
        case "fit":
            settings["fit"] = "stretch"
        case "added file":
            to_pillow(random_pixels(3, 8, 6)[1]).save(folder / "c0" / "100.png")
        case _:
            path.unlink()
    messages: list[str] = []
    again = read_images(ImagesConfig(path=str(folder), **settings), log=messages.append)
    assert len(messages) == 1
    assert (first.fingerprint() == again.fingerprint()) == (change == "mtime")


@pytest.mark.parametrize("damage", ["truncated", "no header", "broken header", "old format", "interrupted"])
def test_damaged_cache_is_rebuilt(tmp_path: Path, damage: str, folders: tuple[Path, Path]) -> None:
    folder = write_image_folder(tmp_path / "folder", random_pixels(), LABELS)
    first = read(folder)
    expected = first.pixels.clone()
    (cached,) = (one for one in (folders[1] / "images").iterdir() if one.is_dir())
    header = cached / "header.json"
    match damage:
        case "truncated":
            (cached / "pixels").write_bytes(b"short")
        case "no header":
            header.unlink()
        case "broken header":
            header.write_text("{")
        case "old format":
            header.write_text(json.dumps(json.loads(header.read_text()) | {"format": 0}))
        case _:
            cached.rename(cached.parent / f".{cached.name}.unfinished-1")
    assert torch.equal(read(folder).pixels, expected)
    assert sorted(path.name for path in cached.parent.iterdir()) == [".lock", cached.name]


def test_concurrent_readers_decode_once(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "folder", random_pixels(), LABELS)
    messages: list[str] = []
    found: list[str] = []

    def read_folder() -> None:
        found.append(read_images(ImagesConfig(path=str(folder)), log=messages.append).fingerprint())

    threads = [threading.Thread(target=read_folder) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 4
    assert len(messages) == 1


def test_failed_decoding_leaves_nothing_behind(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    folder = write_image_folder(tmp_path / "folder", random_pixels(), LABELS)
    (folder / "c2" / "005.png").write_bytes(b"no image")
    with pytest.raises(UserError):
        read(folder)
    assert [path.name for path in (folders[1] / "images").iterdir()] == [".lock"]


def test_many_images_are_decoded_in_order(tmp_path: Path) -> None:
    count = 3 * image_folder._AHEAD * (os.cpu_count() or 1)
    pixels = random_pixels(1, 2, 2, count)
    found = read(write_image_folder(tmp_path / "folder", pixels, [0] * (count - 1) + [1]), channels=1)
    assert torch.equal(found.pixels, torch.from_numpy(pixels))


def test_writing_to_mapped_pixels_does_not_change_the_file(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "folder", random_pixels(), LABELS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(folder).pixels.zero_()
    assert read(folder).pixels.any()


def test_classes_in_the_config_set_their_order(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "folder", random_pixels(), LABELS)
    assert read(folder, classes=["c2", "c1", "c0"]).labels.tolist() == [2, 2, 1, 1, 0, 0]
    with pytest.raises(UserError, match=r"c2: 'c2' is not one of the 2 classes: c0, c1\."):
        read(folder, classes=["c0", "c1"])


def test_other_files_are_skipped(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "folder", random_pixels(), LABELS)
    (folder / "c0" / "notes.txt").write_text("a note")
    (folder / ".hidden").mkdir()
    (folder / "list.csv").write_text("a list")
    inner = folder / "c1" / "more"
    inner.mkdir()
    to_pillow(random_pixels()[0]).save(inner / "x.png")
    messages: list[str] = []
    files = list_images(folder, None, messages.append)
    assert files.classes == ("c0", "c1", "c2")
    assert "c1/more/x.png" in files.names
    assert len(files.names) == 7
    assert messages == [f"{folder}: skipped 1 files that are not images by their suffix."]


def test_invalid_image_is_named(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "folder", random_pixels(), LABELS)
    (folder / "c1" / "002.png").write_bytes(b"not an image at all")
    with pytest.raises(UserError, match=r"c1/002\.png is not an image, or damaged \(.*\); replace or remove"):
        read(folder)


def test_class_without_images_is_named(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "folder", random_pixels(), LABELS)
    (folder / "empty").mkdir()
    with pytest.raises(UserError, match="empty has no images"):
        read(folder)


def test_folder_without_classes_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    to_pillow(random_pixels()[0]).save(tmp_path / "folder" / "a.png")
    with pytest.raises(UserError, match="folder has no subfolders; expected one per class"):
        read(tmp_path / "folder")


def test_images_of_different_sizes_need_a_size(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "folder", random_pixels(), LABELS)
    to_pillow(random_pixels(3, 7, 8)[0]).save(folder / "c1" / "002.png")
    with pytest.raises(UserError, match=r"c1/002\.png has 7 × 8 pixels, .*c0/000\.png 4 × 5; give a `size`"):
        read(folder)
    assert read(folder, size=4).size == (4, 4)
