"""What people feed to commands that cannot be read: one sentence that says what to do, code 2, nothing left behind."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from regard.attention.position import LearnedConfig
from regard.run import save
from regard.task import load_generator, read_recipe, train
from tests.task import small_pictures, test_filling, test_language, test_parsing
from tests.task.small import command, quick_runs
from tests.task.test_generator import save_random_writer

ROOM = 12
"""Tokens that the writer has positions for."""


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


def is_one_sentence(words: tuple[object, ...], *said: str, stdin: bytes = b"") -> None:
    done = command(*words, stdin=stdin)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert done.err.startswith("regard: ")
    for part in said:
        assert part in done.err, done.err


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained writer with learned positions, a token a letter."""
    place = tmp_path_factory.mktemp("writer")
    plain = load_generator(save_random_writer(place / "plain"))
    config = plain.language_model.config.model_copy(update={"position": LearnedConfig(limit=ROOM)})
    model = config.build()
    model.load_state_dict(plain.language_model.state_dict(), strict=False)
    return save(model, place / "learned", tokenizer=plain.tokenizer)


# A prompt longer than the context


LONG = "the old cat and the sea"


@pytest.mark.parametrize("options", [(), ("--json",), ("--beams", 3), ("--count", 2)], ids=str)
def test_a_prompt_longer_than_the_context(writer: Path, options: tuple[object, ...]) -> None:
    tokens = len(LONG) + 1  # and the start
    said = f"The prompt '{LONG}' has {tokens} tokens, and this model has positions for {ROOM}; shorten it."
    is_one_sentence(("generate", writer, LONG, *options), said)


def test_a_prompt_longer_than_the_context_among_others(writer: Path) -> None:
    is_one_sentence(("generate", writer), "the old cat", "shorten it", stdin=f"red\n{LONG}\n".encode())


@pytest.mark.parametrize("options", [("--seed", 1), ("--beams", 1), ("--beams", 3)], ids=str)
@pytest.mark.parametrize("letters", [0, 3, ROOM - 1])
def test_a_prompt_that_fits_is_gone_on_with_up_to_the_end_of_the_context(
    writer: Path, letters: int, options: tuple[object, ...]
) -> None:
    """The start, the prompt and all that is written but its last token are read."""
    done = command("generate", writer, LONG[:letters], "--length", 500, "--json", *options)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert len(found["tokens"]) <= ROOM - letters
    assert found["ended"] or len(found["tokens"]) == ROOM - letters
    drawn = load_generator(writer).generate_all([LONG[:letters]] * 20, limit=500)
    assert max(len(one.tokens) for (one,) in drawn) == ROOM - letters


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A writer that was trained on 16 letters at once, with positions that have no end."""
    place = tmp_path_factory.mktemp("reader")
    path = test_language.recipe_file(place, test_language.TEXT)
    return train(read_recipe(path, ["train.steps=1"]), place / "run").folder


@pytest.mark.parametrize("options", [(), ("--json",), ("--beams", 2)], ids=str)
def test_a_prompt_longer_than_what_was_learned_from_is_gone_on_with_and_told(
    reader: Path, options: tuple[object, ...]
) -> None:
    words = test_language.TEXT.split()[0]
    long = (words + " ") * 20
    short = command("generate", reader, long[:16], "--length", 3, *options)
    assert (short.code, short.err) == (0, "")
    done = command("generate", reader, long, "--length", 3, *options)
    said = f"A prompt has {len(long)} tokens, and this model was trained on 16 at once;"
    assert (done.code, done.err.count("\n")) == (0, 1), done.err
    assert done.err.startswith(said)
    several = command("generate", reader, long, long, "--length", 3, *options)
    assert (several.code, several.err.count("\n")) == (0, 1), several.err


def test_a_recipe_that_cannot_be_read_any_more_keeps_nobody_from_writing(reader: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(reader, tmp_path / "run"))
    (folder / "recipe.toml").write_text("task = 'another'\n", encoding="utf-8")
    done = command("generate", folder, "the " * 20, "--length", 3)
    assert (done.code, done.err) == (0, ""), done.err


# Text with no token


def test_a_prompt_with_no_token_for_a_model_without_start_and_end(tmp_path: Path) -> None:
    model = save_random_writer(tmp_path / "writer", end=False, start=False)
    for options in ((), ("--json",), ("--beams", 2)):
        is_one_sentence(("generate", model, "", *options), "An empty prompt needs a start token", "give it some text")


@pytest.mark.parametrize("text", ["", " \n \n"])
@pytest.mark.parametrize("task", ["language", "filling"])
@pytest.mark.parametrize("part", ["data.train.0", "data.valid"])
def test_a_text_with_no_token_to_learn_from(task: str, text: str, part: str, tmp_path: Path) -> None:
    module = test_language if task == "language" else test_filling
    path = module.recipe_file(tmp_path, module.TEXT)
    (tmp_path / "blank.txt").write_text(text, encoding="utf-8")
    changes = [f"{part}.path={tmp_path / 'blank.txt'}", "tokenizer.kind=word"]
    words = ("train", path, *(word for change in changes for word in ("--set", change)), "--out", tmp_path / "run")
    is_one_sentence(words, "blank.txt: ")
    assert not (tmp_path / "run").exists()


# Pictures


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pictures")
    return train(read_recipe(small_pictures.write_recipe(place), ["train.steps=1"]), place / "run").folder


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n"], ids=["empty", "text", "cut short"])
def test_an_image_that_is_none(content: bytes, classifier: Path, tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(content)
    said = "cat.png is not a picture, or damaged (its format is not known); please replace or remove it."
    is_one_sentence(("classify", classifier, tmp_path / "cat.png"), said)
    is_one_sentence(("classify", classifier), said, stdin=f"{tmp_path / 'cat.png'}\n".encode())


def folder_of_pictures(place: Path) -> Path:
    for number, (picture, label) in enumerate(zip(*small_pictures.pictures(12), strict=True)):
        (place / small_pictures.CLASSES[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(place / small_pictures.CLASSES[label] / f"{number}.png")
    return place


@pytest.mark.parametrize("file", [None, "notes.txt"])
def test_a_class_folder_with_no_images(file: str | None, tmp_path: Path) -> None:
    path, photos = small_pictures.write_recipe(tmp_path), folder_of_pictures(tmp_path / "photos")
    (photos / "empty").mkdir()
    if file is not None:
        (photos / "empty" / file).write_text("no picture", encoding="utf-8")
    words = ("train", path, "--own", photos, "--out", tmp_path / "run")
    is_one_sentence(words, f"{photos / 'empty'} has no pictures in it; please add some, or remove the folder.")
    assert not (tmp_path / "run").exists()


# Trees


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(S (NP (NN cat))\n  (VP (VBD slept))\n", "line 1, column 1: the bracket `(S` that opens here is never"),
        ("(S (NN cat))\n(S (NN dog)))\n", "line 2, column 13: this `)` closes nothing"),
        ("(S (NN cat)\n(S (NN dog))\n", "line 1, column 1: the bracket `(S` that opens here is never closed"),
        (")", "line 1, column 1: this `)` closes nothing"),
    ],
)  # fmt: skip
def test_a_tree_with_unbalanced_brackets(text: str, said: str, tmp_path: Path) -> None:
    path = test_parsing.recipe_file(tmp_path)
    for name in ("train.txt", "dev.txt"):
        right = (tmp_path / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text, encoding="utf-8")
        is_one_sentence(("train", path, "--out", tmp_path / "run"), f"{name}, {said}")
        assert not (tmp_path / "run").exists()
        (tmp_path / name).write_text(right, encoding="utf-8")
