"""`regard classify` with images and with texts."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from regard.task.classification.pipeline import TextLabeler
from regard.task.recipe_io import read_recipe
from regard.task.run import train
from tests.cli.refusal import assert_refused
from tests.task.encoders import save_random_encoder, tokenizer
from tests.task.small import command, quick_runs, save_random_model
from tests.task.small_images import CLASSES, small_images, write_recipe


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    base = tmp_path_factory.mktemp("classify")
    with quick_runs(base / "cache"):
        train(read_recipe(write_recipe(base, "train.steps=60", "train.save_every=60")), base / "run")
        yield base / "run"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images named after their classes, one of them in a subfolder."""
    base = tmp_path_factory.mktemp("images")
    (base / "inner").mkdir()
    for image, label in zip(*small_images(3, seed=9), strict=True):
        name = CLASSES[label]
        Image.fromarray(image).save(base / ("inner" if name == "right" else ".") / f"{name}.png")
    (base / "notes.txt").write_text("not an image")
    return base


def test_each_image_gives_path_class_and_probability(model: Path, folder: Path) -> None:
    done = command("classify", model, folder / "top.png", folder / "left.png")
    assert (done.code, done.err) == (0, "")
    (first, second) = (line.split("\t") for line in done.out.splitlines())
    assert (first[0], first[1]) == (str(folder / "top.png"), "top")
    assert (second[0], second[1]) == (str(folder / "left.png"), "left")
    assert 0.5 < float(first[2]) <= 1


def test_folder_gives_its_images_in_order(model: Path, folder: Path) -> None:
    lines = [line.split("\t") for line in command("classify", model, folder).out.splitlines()]
    assert [line[0] for line in lines] == [str(folder / name) for name in ("inner/right.png", "left.png", "top.png")]
    assert [line[1] for line in lines] == ["right", "left", "top"]


def test_paths_from_standard_input(model: Path, folder: Path) -> None:
    done = command("classify", model, stdin=f"{folder / 'top.png'}\n\n{folder / 'inner'}\n".encode())
    lines = done.out.splitlines()
    assert [line.split("\t")[:2] for line in lines] == [
        [str(folder / "top.png"), "top"],
        [""],
        [str(folder / "inner" / "right.png"), "right"],
    ]


def test_top_prints_several_classes(model: Path, folder: Path) -> None:
    two = command("classify", model, folder / "top.png", "--top", 2).out.rstrip("\n").split("\t")
    assert len(two) == 5
    many = command("classify", model, folder / "top.png", "--top", 99).out.rstrip("\n").split("\t")
    assert sorted(many[1::2]) == sorted(CLASSES)
    assert sum(map(float, many[2::2])) == pytest.approx(1, abs=1e-3)


def test_json(model: Path, folder: Path) -> None:
    lines = command("classify", model, folder, "--json", "--top", 3).out.splitlines()
    facts = [json.loads(line) for line in lines]
    assert [one["classes"][0]["label"] for one in facts] == ["right", "left", "top"]
    assert all(sum(each["probability"] for each in one["classes"]) == pytest.approx(1) for one in facts)


def test_output_file(model: Path, folder: Path, tmp_path: Path) -> None:
    done = command("classify", model, folder, "--output", tmp_path / "classes.tsv")
    assert (done.code, done.out) == (0, "")
    assert len((tmp_path / "classes.tsv").read_text().splitlines()) == 3


def test_unreadable_images_and_models_are_refused(model: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.png").write_text("not an image")
    text = save_random_model(tmp_path / "text")
    for args, message in (
        ((model, tmp_path / "broken.png"), "broken.png"),
        ((model, tmp_path / "missing.png"), "missing.png"),
        ((model, tmp_path / "empty"), "empty"),
        ((model, folder / "top.png", "--device", "nowhere"), "--device nowhere"),
        ((text, folder / "top.png"), "not an image classifier"),
        ((tmp_path / "nothing", folder / "top.png"), "nothing"),
    ):
        done = command("classify", *args)
        assert (done.code, done.out) == (2, "")
        assert message.lower() in done.err.lower()
        assert len(done.err.splitlines()) == 1


def test_results_before_a_broken_image_are_printed(
    model: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.task.image_classification.pipeline.BATCH_TOKENS", {"cpu": 5})
    (tmp_path / "broken.png").write_text("not an image")
    done = command("classify", model, folder / "top.png", tmp_path / "broken.png")
    assert done.code == 2
    assert done.out.startswith(f"{folder / 'top.png'}\ttop\t")


def test_train_and_score(tmp_path: Path) -> None:
    with quick_runs(tmp_path / "cache"):
        trained = command("train", write_recipe(tmp_path), "--out", tmp_path / "run", "--device", "cpu")
        assert trained.code == 0
        assert "images/s" in trained.err
        done = command("score", tmp_path / "run", "--json")
    assert done.code == 0
    scores = json.loads((tmp_path / "run" / "run.json").read_text())["origin"]["scores"]["test"]
    assert json.loads(done.out) == {"model": str(tmp_path / "run"), "test": "test"} | scores


# Texts

TEXTS = ["a warm film", "dull"]


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    head = {"kind": "classification", "labels": ["blame", "praise", "neither"], "pooling": "mean"}
    return save_random_encoder(tmp_path_factory.mktemp("models") / "labels", tokenizer("character", TEXTS), head)


def test_each_text_gives_label_and_probability(text_model: Path) -> None:
    labels = TextLabeler.load(text_model).classify(TEXTS, top=1)
    done = command("classify", text_model, *TEXTS)
    assert (done.code, done.err) == (0, "")
    assert done.out == "".join(f"{label}\t{probability:.4f}\n" for ((label, probability),) in labels)
    assert command("classify", text_model, stdin=b"a warm film\n\ndull\n").out == done.out.replace("\n", "\n\n", 1)


def test_json_of_texts(text_model: Path) -> None:
    (labels,) = TextLabeler.load(text_model).classify(TEXTS[:1], top=2)
    report = json.loads(command("classify", text_model, TEXTS[0], "--json", "--top", 2).out)
    assert report["text"] == TEXTS[0]
    assert [(item["label"], pytest.approx(item["probability"], abs=1e-6)) for item in report["classes"]] == labels


def test_token_classifier_is_refused(tmp_path: Path) -> None:
    save_random_encoder(
        tmp_path / "run", tokenizer("character", TEXTS), {"kind": "token_classification", "labels": ["a", "b"]}
    )
    assert_refused(command("classify", tmp_path / "run", "dull"), "regard tag")
