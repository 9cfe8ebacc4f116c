"""Image datasets: the same images from every file format; classes and splits."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard import UserError
from regard.config import ConfigError
from regard.data.images.dataset import SPLITS, ImageDataset, ImagesConfig, read_images
from regard.model import PixelsConfig, VisionTransformerConfig
from tests.data.images.support import (
    COUNT,
    LABELS,
    by_class,
    digits_csv,
    random_pixels,
    read,
    temporary_folders,
    to_pillow,
    write_idx,
    write_image_folder,
)

REAL_DATA = os.environ.get("REGARD_DATA")


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    return temporary_folders(tmp_path, monkeypatch)


def test_fingerprint_does_not_depend_on_the_file_format(tmp_path: Path) -> None:
    pixels, labels = by_class(random_pixels())
    names = ("c0", "c1", "c2")
    folder = read(write_image_folder(tmp_path / "folder", random_pixels(), LABELS))
    np.savez(tmp_path / "a.npz", images=pixels, labels=labels)
    np.save(tmp_path / "x.npy", pixels.transpose(0, 2, 3, 1))
    np.save(tmp_path / "y.npy", labels)
    from_npz = read(tmp_path / "a.npz", classes=names)
    from_npy = read(tmp_path / "x.npy", labels=str(tmp_path / "y.npy"), classes=names)
    assert folder.fingerprint() == from_npz.fingerprint() == from_npy.fingerprint()
    assert len(folder.fingerprint()) == 64
    others = [
        ImageDataset(from_npz.pixels.flip(0), from_npz.labels, names),
        ImageDataset(from_npz.pixels, from_npz.labels.flip(0), names),
        ImageDataset(from_npz.pixels, from_npz.labels, ("c0", "c1", "d")),
        ImageDataset(from_npz.pixels.view(6, 3, 5, 4), from_npz.labels, names),
    ]
    assert len({one.fingerprint() for one in (from_npz, *others)}) == 5


def test_images_fit_the_model(tmp_path: Path) -> None:
    found = read_images(write_idx(tmp_path, random_pixels(1, 8, 8)[:, 0], LABELS))
    config = VisionTransformerConfig(image_size=8, patch_size=4, channels=1, width=32, classes=found.classes)
    assert config.build()(PixelsConfig().apply(found.pixels)).shape == (6, 3)


def test_digits_are_a_named_dataset(folders: tuple[Path, Path]) -> None:
    (folders[0] / "digits").mkdir()
    (folders[0] / "digits" / "digits.csv.gz").write_bytes(gzip.compress(digits_csv().encode()))
    found = read_images(ImagesConfig(dataset="digits"))
    assert (found.size, found.channels, len(found)) == ((8, 8), 1, 40)
    assert found.classes == tuple("0123456789")
    assert found.labels.tolist() == [line % 10 for line in range(40)]
    expected = [round((n * 7) % 17 * 255 / 16) for n in range(64)]
    assert found.pixels[7].flatten().tolist() == expected


def test_missing_digits_error_has_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.data.registry import fetch, locate

    def unreachable(*_: Any, **__: Any) -> None:
        raise fetch.DownloadError("the URL cannot be reached.")

    monkeypatch.setattr(fetch, "download", unreachable)
    monkeypatch.setattr(locate.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="scikit-learn, which is not installed here: pip install scikit-learn"):
        read_images(ImagesConfig(dataset="digits"))


def test_digits_equal_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    found = read_images(ImagesConfig(dataset="digits"))
    theirs = datasets.load_digits()
    assert torch.equal(found.pixels[:, 0].double(), torch.from_numpy(theirs.images * 255 / 16).add(0.5).floor())
    assert found.labels.tolist() == theirs.target.tolist()


def test_fashion_mnist_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    if not REAL_DATA or not (Path(REAL_DATA) / "fashion-mnist").is_dir():
        pytest.skip("REGARD_DATA has no copy of this dataset")
    monkeypatch.setenv("REGARD_DATA", REAL_DATA)
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        config = ImagesConfig(
            dataset="fashion-mnist", path=f"{part}-images-idx3-ubyte.gz", labels=f"{part}-labels-idx1-ubyte.gz"
        )
        found = read_images(config)
        assert found.counts == (count // 10,) * 10
        assert found.classes[9] == "Ankle boot"


@pytest.mark.parametrize(("size", "expected"), [(8, (8, 8)), ((4, 6), (4, 6)), ([7, 3], (7, 3))])
@pytest.mark.parametrize("fit", ["crop", "stretch"])
def test_files_and_arrays_are_resized_alike(tmp_path: Path, size: Any, expected: tuple[int, int], fit: str) -> None:
    pixels, labels = by_class(random_pixels(3, 12, 9))
    np.savez(tmp_path / "a.npz", images=pixels, labels=labels)
    folder = write_image_folder(tmp_path / "folder", random_pixels(3, 12, 9), LABELS)
    for channels in (1, 3):
        one, other = (read(path, size=size, fit=fit, channels=channels) for path in (folder, tmp_path / "a.npz"))
        assert (one.size, one.channels) == (expected, channels)
        assert torch.equal(one.pixels, other.pixels)


def test_splits_partition_the_images_and_stay_stable_when_some_are_added(folders: tuple[Path, Path]) -> None:
    file = folders[0] / "digits" / "digits.csv.gz"
    file.parent.mkdir()
    found: dict[int, list[list[int]]] = {}
    for lines in (300, 400):
        file.write_bytes(gzip.compress(digits_csv(lines).encode()))
        dataset = read_images(ImagesConfig(dataset="digits"))
        parts = [read_images(ImagesConfig(dataset="digits", split=part)) for part in SPLITS]
        assert sum(map(len, parts)) == lines
        assert {part.classes for part in parts} == {dataset.classes}
        found[lines] = [part.labels.tolist() for part in parts]
    for before, after in zip(found[300], found[400], strict=True):
        assert after[: len(before)] == before


def test_split_of_an_image_never_changes(tmp_path: Path) -> None:
    # A model must not be tested on images that an earlier version trained it on.
    np.savez(tmp_path / "a.npz", images=np.arange(20, dtype=np.uint8)[:, None, None], labels=np.arange(20) % 2)
    parts = [
        read(tmp_path / "a.npz", split=part, split_fractions=(2, 1, 1)).pixels.flatten().tolist() for part in SPLITS
    ]
    assert parts == [
        [0, 1, 3, 4, 7, 8, 9, 10, 11, 12, 13, 17, 18],
        [14, 16, 19],
        [2, 5, 6, 15],
    ]


def test_folder_is_split_by_file_name(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "folder", random_pixels(count=30), [number % 3 for number in range(30)])

    def parts() -> list[set[bytes]]:
        found = [read(folder, split=part, split_fractions=(1, 1, 1)) for part in SPLITS]
        return [{one.numpy().tobytes() for one in part.pixels} for part in found]

    before = parts()
    assert sum(map(len, before)) == len(set.union(*before)) == 30
    to_pillow(random_pixels(count=31)[30]).save(folder / "c0" / "000a.png")  # sorted between the others
    after = parts()
    assert sum(map(len, after)) == 31
    assert all(old <= new for old, new in zip(before, after, strict=True))


def test_empty_split_is_an_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=random_pixels(), labels=LABELS)
    with pytest.raises(UserError, match="none of 6 images falls into the split 'valid'"):
        read(tmp_path / "a.npz", split="valid", split_fractions=(1.0, 1e-9, 0.0))


def test_validation_set_uses_the_classes_of_the_training_set(tmp_path: Path) -> None:
    train = read(write_image_folder(tmp_path / "train", random_pixels(), LABELS))
    write_image_folder(tmp_path / "valid", random_pixels()[:2], [2, 2])
    valid = read_images(ImagesConfig(path=str(tmp_path / "valid")), classes=train.classes)
    assert valid.classes == train.classes
    assert valid.labels.tolist() == [2, 2]
    assert valid.counts == (0, 0, 2)


def test_single_class_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has only one class, 'c0'"):
        read(write_image_folder(tmp_path / "folder", random_pixels(), [0] * COUNT))
    np.savez(tmp_path / "a.npz", images=random_pixels(), labels=[4] * COUNT)
    with pytest.raises(UserError, match=r"a\.npz: all labels are 4"):
        read(tmp_path / "a.npz")


@pytest.mark.parametrize("file", ["idx", "npz", "npy"])
def test_different_counts_of_images_and_labels_are_refused(tmp_path: Path, file: str) -> None:
    pixels, labels = random_pixels(1)[:, 0], LABELS[:-1]
    np.savez(tmp_path / "a.npz", images=pixels, labels=labels)
    np.save(tmp_path / "x.npy", pixels)
    np.save(tmp_path / "y.npy", labels)
    configs = {
        "idx": write_idx(tmp_path, pixels, labels),
        "npz": ImagesConfig(path=str(tmp_path / "a.npz")),
        "npy": ImagesConfig(path=str(tmp_path / "x.npy"), labels=str(tmp_path / "y.npy")),
    }
    with pytest.raises(UserError, match="there are 6 images, but 5 labels"):
        read_images(configs[file])


def test_label_out_of_range_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=random_pixels(), labels=LABELS)
    with pytest.raises(UserError, match=r"a\.npz: Image 1 has the label 2; the 2 classes are numbered from 0 to 1"):
        read(tmp_path / "a.npz", classes=["a", "b"])
    np.savez(tmp_path / "a.npz", images=random_pixels(), labels=[0, 1, -1, 0, 1, 2])
    with pytest.raises(UserError, match="image 2 has the label -1; labels count from 0"):
        read(tmp_path / "a.npz")


def test_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: there is no such file or folder"):
        read(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "path: this key is required, unless dataset is given"),
        ({"path": "a", "classes": ["a", "a"]}, "classes: a name occurs twice"),
        ({"path": "a", "classes": ["a"]}, "classes: "),
        ({"path": "a", "size": 0}, "size"),
        ({"path": "a", "channels": 2}, "channels"),
        (
            {"path": "a", "split": "test", "split_fractions": (1.0, 1.0, 0.0)},
            "split_fractions: the split 'test' has the fraction 0",
        ),
        ({"path": "a", "sise": 3}, "sise: unknown key; did you mean 'size'?"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        ImagesConfig(**settings)


def test_keys_that_do_not_fit_the_file_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=random_pixels(), labels=LABELS)
    with pytest.raises(ConfigError, match=r"labels: a\.npz contains its labels; leave this key out"):
        read(tmp_path / "a.npz", labels="b.npy")
    np.save(tmp_path / "a.npy", random_pixels())
    with pytest.raises(ConfigError, match=r"labels: this key is required for a\.npy"):
        read(tmp_path / "a.npy")
    with pytest.raises(ConfigError, match="path: this key is required: fashion-mnist has several files, train-images"):
        read_images(ImagesConfig(dataset="fashion-mnist"))


def test_config_round_trips_through_json() -> None:
    config = ImagesConfig(dataset="digits", size=(8, 6), classes=("a", "b"), split="valid")
    assert ImagesConfig.read(json.loads(json.dumps(config.plain()))) == config
    assert (config.location, config.format.size) == ("digits", (8, 6))
    assert ImagesConfig(dataset="fashion-mnist", path="x").location == "fashion-mnist: x"
