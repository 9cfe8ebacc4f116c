"""Labelled pictures: the same wherever they come from, with the classes and in the parts that are asked for."""

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
from regard.data.pictures import SPLITS, Pictures, PicturesConfig, read_pictures
from regard.model import PixelsConfig, VisionTransformerConfig
from tests.data.made_pictures import (
    COUNT,
    LABELS,
    by_class,
    digits,
    image,
    own_places,
    put_folder,
    put_idx,
    read,
    values,
)

REAL_DATA = os.environ.get("REGARD_DATA")


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    return own_places(tmp_path, monkeypatch)


def test_the_same_pictures_have_the_same_fingerprint_wherever_they_come_from(tmp_path: Path) -> None:
    pixels, labels = by_class(values())
    names = ("c0", "c1", "c2")
    folder = read(put_folder(tmp_path / "folder", values(), LABELS))
    np.savez(tmp_path / "a.npz", images=pixels, labels=labels)
    np.save(tmp_path / "x.npy", pixels.transpose(0, 2, 3, 1))
    np.save(tmp_path / "y.npy", labels)
    packed = read(tmp_path / "a.npz", classes=names)
    lying = read(tmp_path / "x.npy", labels=str(tmp_path / "y.npy"), classes=names)
    assert folder.fingerprint() == packed.fingerprint() == lying.fingerprint()
    assert len(folder.fingerprint()) == 64
    others = [
        Pictures(packed.pixels.flip(0), packed.labels, names),
        Pictures(packed.pixels, packed.labels.flip(0), names),
        Pictures(packed.pixels, packed.labels, ("c0", "c1", "d")),
        Pictures(packed.pixels.view(6, 3, 5, 4), packed.labels, names),
    ]
    assert len({one.fingerprint() for one in (packed, *others)}) == 5


def test_what_is_read_is_what_a_model_takes(tmp_path: Path) -> None:
    found = read_pictures(put_idx(tmp_path, values(1, 8, 8)[:, 0], LABELS))
    config = VisionTransformerConfig(image=8, patch=4, channels=1, width=32, classes=found.classes)
    assert config.build()(PixelsConfig().apply(found.pixels)).shape == (6, 3)


def test_the_digits_are_a_named_set(places: tuple[Path, Path]) -> None:
    (places[0] / "digits").mkdir()
    (places[0] / "digits" / "digits.csv.gz").write_bytes(gzip.compress(digits().encode()))
    found = read_pictures(PicturesConfig(set="digits"))
    assert (found.size, found.channels, len(found)) == ((8, 8), 1, 40)
    assert found.classes == tuple("0123456789")
    assert found.labels.tolist() == [line % 10 for line in range(40)]
    wanted = [round((n * 7) % 17 * 255 / 16) for n in range(64)]
    assert found.pixels[7].flatten().tolist() == wanted


def test_digits_that_are_nowhere_say_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.data import registry

    def unreachable(*_: Any, **__: Any) -> None:
        raise registry.DownloadError("the address cannot be reached.")

    monkeypatch.setattr(registry, "download", unreachable)
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="scikit-learn, which is not installed here: pip install scikit-learn"):
        read_pictures(PicturesConfig(set="digits"))


def test_the_real_digits_are_what_scikit_learn_gives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    found = read_pictures(PicturesConfig(set="digits"))
    theirs = datasets.load_digits()
    assert torch.equal(found.pixels[:, 0].double(), torch.from_numpy(theirs.images * 255 / 16).add(0.5).floor())
    assert found.labels.tolist() == theirs.target.tolist()


def test_the_real_fashion_mnist_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    if not REAL_DATA or not (Path(REAL_DATA) / "fashion-mnist").is_dir():
        pytest.skip("REGARD_DATA has no copy of this set")
    monkeypatch.setenv("REGARD_DATA", REAL_DATA)
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        config = PicturesConfig(
            set="fashion-mnist", path=f"{part}-images-idx3-ubyte.gz", labels=f"{part}-labels-idx1-ubyte.gz"
        )
        found = read_pictures(config)
        assert found.counts == (count // 10,) * 10
        assert found.classes[9] == "Ankle boot"


@pytest.mark.parametrize(("size", "wanted"), [(8, (8, 8)), ((4, 6), (4, 6)), ([7, 3], (7, 3))])
@pytest.mark.parametrize("fit", ["crop", "stretch"])
def test_files_and_arrays_come_out_alike_in_another_size(
    tmp_path: Path, size: Any, wanted: tuple[int, int], fit: str
) -> None:
    pixels, labels = by_class(values(3, 12, 9))
    np.savez(tmp_path / "a.npz", images=pixels, labels=labels)
    folder = put_folder(tmp_path / "folder", values(3, 12, 9), LABELS)
    for channels in (1, 3):
        one, other = (read(path, size=size, fit=fit, channels=channels) for path in (folder, tmp_path / "a.npz"))
        assert (one.size, one.channels) == (wanted, channels)
        assert torch.equal(one.pixels, other.pixels)


def test_parts_share_all_pictures_out_and_stay_when_some_are_added(places: tuple[Path, Path]) -> None:
    file = places[0] / "digits" / "digits.csv.gz"
    file.parent.mkdir()
    found: dict[int, list[list[int]]] = {}
    for lines in (300, 400):
        file.write_bytes(gzip.compress(digits(lines).encode()))
        whole = read_pictures(PicturesConfig(set="digits"))
        parts = [read_pictures(PicturesConfig(set="digits", split=part)) for part in SPLITS]
        assert sum(map(len, parts)) == lines
        assert {part.classes for part in parts} == {whole.classes}
        found[lines] = [part.labels.tolist() for part in parts]
    for before, after in zip(found[300], found[400], strict=True):
        assert after[: len(before)] == before


def test_which_part_a_picture_is_in_never_changes(tmp_path: Path) -> None:
    # A model must not be tested on what an earlier version has trained it on.
    np.savez(tmp_path / "a.npz", images=np.arange(20, dtype=np.uint8)[:, None, None], labels=np.arange(20) % 2)
    parts = [read(tmp_path / "a.npz", split=part, shares=(2, 1, 1)).pixels.flatten().tolist() for part in SPLITS]
    assert parts == [
        [0, 1, 3, 4, 7, 8, 9, 10, 11, 12, 13, 17, 18],
        [14, 16, 19],
        [2, 5, 6, 15],
    ]


def test_files_of_a_folder_are_shared_out_by_their_names(tmp_path: Path) -> None:
    folder = put_folder(tmp_path / "folder", values(count=30), [number % 3 for number in range(30)])

    def parts() -> list[set[bytes]]:
        found = [read(folder, split=part, shares=(1, 1, 1)) for part in SPLITS]
        return [{picture.numpy().tobytes() for picture in part.pixels} for part in found]

    before = parts()
    assert sum(map(len, before)) == len(set.union(*before)) == 30
    image(values(count=31)[30]).save(folder / "c0" / "000a.png")  # in the middle of the others
    after = parts()
    assert sum(map(len, after)) == 31
    assert all(old <= new for old, new in zip(before, after, strict=True))


def test_a_part_with_nothing_in_it_is_an_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=values(), labels=LABELS)
    with pytest.raises(UserError, match="no picture of 6 falls into the part 'valid'; give it a larger share"):
        read(tmp_path / "a.npz", split="valid", shares=(1.0, 1e-9, 0.0))


def test_other_sets_share_the_classes_of_the_one_that_is_trained_on(tmp_path: Path) -> None:
    train = read(put_folder(tmp_path / "train", values(), LABELS))
    put_folder(tmp_path / "valid", values()[:2], [2, 2])
    valid = read_pictures(PicturesConfig(path=str(tmp_path / "valid")), classes=train.classes)
    assert valid.classes == train.classes
    assert valid.labels.tolist() == [2, 2]
    assert valid.counts == (0, 0, 2)


def test_a_single_class_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has only one class, 'c0'; please add a folder for each of the others"):
        read(put_folder(tmp_path / "folder", values(), [0] * COUNT))
    np.savez(tmp_path / "a.npz", images=values(), labels=[4] * COUNT)
    with pytest.raises(UserError, match=r"a\.npz: there is only one class, all labels are 4"):
        read(tmp_path / "a.npz")


@pytest.mark.parametrize("file", ["idx", "npz", "npy"])
def test_pictures_and_labels_of_different_counts_are_refused(tmp_path: Path, file: str) -> None:
    pixels, labels = values(1)[:, 0], LABELS[:-1]
    np.savez(tmp_path / "a.npz", images=pixels, labels=labels)
    np.save(tmp_path / "x.npy", pixels)
    np.save(tmp_path / "y.npy", labels)
    configs = {
        "idx": put_idx(tmp_path, pixels, labels),
        "npz": PicturesConfig(path=str(tmp_path / "a.npz")),
        "npy": PicturesConfig(path=str(tmp_path / "x.npy"), labels=str(tmp_path / "y.npy")),
    }
    with pytest.raises(UserError, match="there are 6 pictures, but 5 labels"):
        read_pictures(configs[file])


def test_a_label_outside_the_class_names_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=values(), labels=LABELS)
    with pytest.raises(
        UserError, match=r"a\.npz: Picture 1 has the label 2; there are 2 names of classes, from 0 to 1"
    ):
        read(tmp_path / "a.npz", classes=["a", "b"])
    np.savez(tmp_path / "a.npz", images=values(), labels=[0, 1, -1, 0, 1, 2])
    with pytest.raises(UserError, match="picture 2 has the label -1; labels count from 0"):
        read(tmp_path / "a.npz")


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: there is no such file or folder"):
        read(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "path: this key is required, or set in its place"),
        ({"path": "a", "classes": ["a", "a"]}, "classes: a name is there twice"),
        ({"path": "a", "classes": ["a"]}, "classes: "),
        ({"path": "a", "size": 0}, "size"),
        ({"path": "a", "channels": 2}, "channels"),
        ({"path": "a", "split": "test", "shares": (1.0, 1.0, 0.0)}, "shares: the part 'test' has a share of 0"),
        ({"path": "a", "sise": 3}, "sise: unknown key; did you mean 'size'?"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        PicturesConfig(**settings)


def test_keys_that_do_not_fit_the_file_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=values(), labels=LABELS)
    with pytest.raises(ConfigError, match=r"labels: a\.npz has its labels within; please leave this key out"):
        read(tmp_path / "a.npz", labels="b.npy")
    np.save(tmp_path / "a.npy", values())
    with pytest.raises(ConfigError, match=r"labels: this key is required beside a\.npy"):
        read(tmp_path / "a.npy")
    with pytest.raises(ConfigError, match="path: this key is required: fashion-mnist has several files, train-images"):
        read_pictures(PicturesConfig(set="fashion-mnist"))


def test_settings_pass_through_plain_data() -> None:
    config = PicturesConfig(set="digits", size=(8, 6), classes=("a", "b"), split="valid")
    assert PicturesConfig.read(json.loads(json.dumps(config.plain()))) == config
    assert (config.place, config.frame.size) == ("digits", (8, 6))
    assert PicturesConfig(set="fashion-mnist", path="x").place == "fashion-mnist: x"
