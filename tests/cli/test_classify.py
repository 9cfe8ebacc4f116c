"""`regard classify` as a person meets it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from regard.task import read_recipe, train
from tests.task.small import command, quick_runs, save_random_model
from tests.task.small_pictures import CLASSES, pictures, write_recipe


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("classify")
    with quick_runs(place / "cache"):
        train(read_recipe(write_recipe(place, "train.steps=60", "train.save_every=60")), place / "run")
        yield place / "run"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures by the name of what they show, one of them in a folder of its own."""
    place = tmp_path_factory.mktemp("pictures")
    (place / "inner").mkdir()
    for picture, label in zip(*pictures(3, seed=9), strict=True):
        name = CLASSES[label]
        Image.fromarray(picture).save(place / ("inner" if name == "right" else ".") / f"{name}.png")
    (place / "notes.txt").write_text("no picture by its name")
    return place


def test_each_picture_has_a_line_with_its_path_class_and_probability(model: Path, folder: Path) -> None:
    done = command("classify", model, folder / "top.png", folder / "left.png")
    assert (done.code, done.err) == (0, "")
    (first, second) = (line.split("\t") for line in done.out.splitlines())
    assert (first[0], first[1]) == (str(folder / "top.png"), "top")
    assert (second[0], second[1]) == (str(folder / "left.png"), "left")
    assert 0.5 < float(first[2]) <= 1


def test_a_folder_stands_for_all_pictures_in_it_sorted(model: Path, folder: Path) -> None:
    lines = [line.split("\t") for line in command("classify", model, folder).out.splitlines()]
    assert [line[0] for line in lines] == [str(folder / name) for name in ("inner/right.png", "left.png", "top.png")]
    assert [line[1] for line in lines] == ["right", "left", "top"]


def test_paths_come_from_standard_input_where_none_are_given(model: Path, folder: Path) -> None:
    done = command("classify", model, stdin=f"{folder / 'top.png'}\n\n{folder / 'inner'}\n".encode())
    lines = done.out.splitlines()
    assert [line.split("\t")[:2] for line in lines] == [
        [str(folder / "top.png"), "top"],
        [""],
        [str(folder / "inner" / "right.png"), "right"],
    ]


def test_top_names_more_classes_and_never_more_than_there_are(model: Path, folder: Path) -> None:
    two = command("classify", model, folder / "top.png", "--top", 2).out.rstrip("\n").split("\t")
    assert len(two) == 5
    many = command("classify", model, folder / "top.png", "--top", 99).out.rstrip("\n").split("\t")
    assert sorted(many[1::2]) == sorted(CLASSES)
    assert sum(map(float, many[2::2])) == pytest.approx(1, abs=1e-3)


def test_json_has_an_object_a_line(model: Path, folder: Path) -> None:
    lines = command("classify", model, folder, "--json", "--top", 3).out.splitlines()
    facts = [json.loads(line) for line in lines]
    assert [one["classes"][0]["label"] for one in facts] == ["right", "left", "top"]
    assert all(sum(each["probability"] for each in one["classes"]) == pytest.approx(1) for one in facts)


def test_output_goes_to_a_file(model: Path, folder: Path, tmp_path: Path) -> None:
    done = command("classify", model, folder, "--output", tmp_path / "found.tsv")
    assert (done.code, done.out) == (0, "")
    assert len((tmp_path / "found.tsv").read_text().splitlines()) == 3


def test_what_cannot_be_classified_is_one_sentence_and_code_2(model: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.png").write_text("no picture")
    text = save_random_model(tmp_path / "text")
    for words, sentence in (
        ((model, tmp_path / "broken.png"), "broken.png is not a picture, or damaged"),
        ((model, tmp_path / "missing.png"), "missing.png: there is no such file."),
        ((model, tmp_path / "empty"), "empty has no pictures in it"),
        ((model, folder / "top.png", "--device", "nowhere"), "there is no such device here"),
        ((text, folder / "top.png"), "this is no classifier of pictures: its model reads text"),
        ((tmp_path / "nothing", folder / "top.png"), "there is no such folder"),
    ):
        done = command("classify", *words)
        assert (done.code, done.out) == (2, "")
        assert sentence.lower() in done.err.lower()
        assert len(done.err.splitlines()) == 1


def test_what_was_found_before_a_damaged_picture_is_written(
    model: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.task.classifier.BATCH_TOKENS", {"cpu": 5})
    (tmp_path / "broken.png").write_text("no picture")
    done = command("classify", model, folder / "top.png", tmp_path / "broken.png")
    assert done.code == 2
    assert done.out.startswith(f"{folder / 'top.png'}\ttop\t")


def test_it_trains_and_scores_by_the_commands(tmp_path: Path) -> None:
    with quick_runs(tmp_path / "cache"):
        trained = command("train", write_recipe(tmp_path), "--out", tmp_path / "run", "--device", "cpu")
        assert trained.code == 0
        assert "pictures/s" in trained.err
        done = command("score", tmp_path / "run", "--json")
    assert done.code == 0
    scores = json.loads((tmp_path / "run" / "run.json").read_text())["origin"]["scores"]["test"]
    assert json.loads(done.out) == {"model": str(tmp_path / "run"), "test": "test"} | scores
