"""Invalid input is refused in one line with exit code 2, and leaves no files."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from regard.attention.positions.config import LearnedConfig
from regard.run import save_model
from regard.task.language_modeling.pipeline import TextGenerator
from regard.task.recipe_io import read_recipe
from regard.task.run import train
from tests.cli.refusal import assert_refused
from tests.task import small_images
from tests.task.language_modeling import test_task as language_modeling
from tests.task.language_modeling.test_pipeline import save_random_writer
from tests.task.masked_lm import test_task as test_filling
from tests.task.parsing import test_task as test_parsing
from tests.task.small import command, quick_runs

MAX_POSITIONS = 12


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained language model with learned positions and a token for each letter."""
    base = tmp_path_factory.mktemp("writer")
    plain = TextGenerator.load(save_random_writer(base / "plain"))
    config = plain.language_model.config.model_copy(update={"position": LearnedConfig(max_length=MAX_POSITIONS)})
    model = config.build()
    model.load_state_dict(plain.language_model.state_dict(), strict=False)
    return save_model(model, base / "learned", tokenizer=plain.tokenizer)


LONG = "the old cat and the sea"


@pytest.mark.parametrize("options", [(), ("--json",), ("--beam-size", 3), ("--nbest", 2)], ids=str)
def test_prompt_longer_than_the_context_is_refused(writer: Path, options: tuple[object, ...]) -> None:
    tokens = len(LONG) + 1  # with BOS
    assert_refused(command("generate", writer, LONG, *options), LONG, f"{tokens} tokens", f"{MAX_POSITIONS}")


def test_one_long_prompt_among_others_is_refused(writer: Path) -> None:
    assert_refused(command("generate", writer, stdin=f"red\n{LONG}\n".encode()), "the old cat")


@pytest.mark.parametrize("options", [("--seed", 1), ("--beam-size", 1), ("--beam-size", 3)], ids=str)
@pytest.mark.parametrize("letters", [0, 3, MAX_POSITIONS - 1])
def test_prompt_is_continued_up_to_the_end_of_the_context(
    writer: Path, letters: int, options: tuple[object, ...]
) -> None:
    """BOS, the prompt and all generated tokens but the last are fed to the model."""
    done = command("generate", writer, LONG[:letters], "--max-new-tokens", 500, "--json", *options)
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert len(result["tokens"]) <= MAX_POSITIONS - letters
    assert result["ended"] or len(result["tokens"]) == MAX_POSITIONS - letters
    drawn = TextGenerator.load(writer).generate_batch([LONG[:letters]] * 20, max_new_tokens=500)
    assert max(len(one.tokens) for (one,) in drawn) == MAX_POSITIONS - letters


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model trained with a context of 16 letters, with unlimited positions."""
    base = tmp_path_factory.mktemp("reader")
    path = language_modeling.recipe_file(base, language_modeling.TEXT)
    return train(read_recipe(path, ["train.steps=1"]), base / "run").folder


@pytest.mark.parametrize("options", [(), ("--json",), ("--beam-size", 2)], ids=str)
def test_prompt_longer_than_the_training_context_gives_a_warning(reader: Path, options: tuple[object, ...]) -> None:
    word = language_modeling.TEXT.split()[0]
    long = (word + " ") * 20
    short = command("generate", reader, long[:16], "--max-new-tokens", 3, *options)
    assert (short.code, short.err) == (0, "")
    done = command("generate", reader, long, "--max-new-tokens", 3, *options)
    assert (done.code, done.err.count("\n")) == (0, 1), done.err
    assert done.err.startswith(f"A prompt has {len(long)} tokens, but this model was trained with a context of 16;")
    several = command("generate", reader, long, long, "--max-new-tokens", 3, *options)
    assert (several.code, several.err.count("\n")) == (0, 1), several.err


def test_unreadable_recipe_does_not_prevent_generation(reader: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(reader, tmp_path / "run"))
    (folder / "recipe.toml").write_text("task = 'another'\n", encoding="utf-8")
    done = command("generate", folder, "the " * 20, "--max-new-tokens", 3)
    assert (done.code, done.err) == (0, ""), done.err


def test_empty_prompt_is_refused_without_bos_and_eos(tmp_path: Path) -> None:
    model = save_random_writer(tmp_path / "writer", end=False, start=False)
    for options in ((), ("--json",), ("--beam-size", 2)):
        assert_refused(command("generate", model, "", *options), "empty prompt")


@pytest.mark.parametrize("text", ["", " \n \n"])
@pytest.mark.parametrize("task", ["language-modeling", "masked-lm"])
@pytest.mark.parametrize("part", ["data.train.0", "data.valid"])
def test_training_text_without_tokens_is_refused(task: str, text: str, part: str, tmp_path: Path) -> None:
    module = language_modeling if task == "language-modeling" else test_filling
    path = module.recipe_file(tmp_path, module.TEXT)
    (tmp_path / "blank.txt").write_text(text, encoding="utf-8")
    changes = [f"{part}.path={tmp_path / 'blank.txt'}", "tokenizer.kind=word"]
    args = ("train", path, *(arg for change in changes for arg in ("--set", change)), "--out", tmp_path / "run")
    assert_refused(command(*args), "blank.txt: ")
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("images")
    return train(read_recipe(small_images.write_recipe(base), ["train.steps=1"]), base / "run").folder


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n"], ids=["empty", "text", "cut short"])
def test_broken_image_is_refused(content: bytes, classifier: Path, tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(content)
    assert_refused(command("classify", classifier, tmp_path / "cat.png"), "cat.png")
    assert_refused(command("classify", classifier, stdin=f"{tmp_path / 'cat.png'}\n".encode()), "cat.png")


def write_image_folder(base: Path) -> Path:
    for number, (image, label) in enumerate(zip(*small_images.small_images(12), strict=True)):
        (base / small_images.CLASSES[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(base / small_images.CLASSES[label] / f"{number}.png")
    return base


@pytest.mark.parametrize("file", [None, "notes.txt"])
def test_class_folder_without_images_is_refused(file: str | None, tmp_path: Path) -> None:
    path, photos = small_images.write_recipe(tmp_path), write_image_folder(tmp_path / "photos")
    (photos / "empty").mkdir()
    if file is not None:
        (photos / "empty" / file).write_text("not an image", encoding="utf-8")
    args = ("train", path, "--data", photos, "--out", tmp_path / "run")
    assert_refused(command(*args), str(photos / "empty"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("(S (NP (NN cat))\n  (VP (VBD slept))\n", "line 1, column 1: "),
        ("(S (NN cat))\n(S (NN dog)))\n", "line 2, column 13: "),
        ("(S (NN cat)\n(S (NN dog))\n", "line 1, column 1: "),
        (")", "line 1, column 1: "),
    ],
)
def test_unbalanced_brackets_are_refused_with_their_position(text: str, position: str, tmp_path: Path) -> None:
    path = test_parsing.recipe_file(tmp_path)
    for name in ("train.txt", "dev.txt"):
        right = (tmp_path / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert_refused(command("train", path, "--out", tmp_path / "run"), f"{name}, {position}")
        assert not (tmp_path / "run").exists()
        (tmp_path / name).write_text(right, encoding="utf-8")
