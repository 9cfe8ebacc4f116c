"""Invalid data and recipes are refused in one line and leave no run folder; minor flaws in data are logged."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.task.small import (
    Result,
    command,
    pairs,
    quick_runs,
    write_aligned,
    write_lines,
    write_recipe_file,
    write_table,
)


@pytest.fixture(autouse=True)
def quick(tmp_path: Path) -> Iterator[None]:
    with quick_runs(tmp_path / "cache"):
        yield


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe that trains on train.en and train.de, which each test writes."""
    return write_recipe_file(tmp_path / "small.toml", {"train": [{"source": "train.en", "target": "train.de"}]})


def run_train(recipe: Path, *options: object) -> Result:
    return command("train", recipe, "--out", recipe.parent / "run", *options)


def check_refusal(done: Result, recipe: Path) -> str:
    """The error message of a run that was refused; it left no folder."""
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert done.err.startswith("regard: ")
    assert not (recipe.parent / "run").exists()
    return done.err


# Files that are refused


def test_files_of_different_length_are_refused(recipe: Path) -> None:
    rows = pairs(200)
    write_lines(recipe.parent / "train.en", [source for source, _ in rows])
    write_lines(recipe.parent / "train.de", [target for number, (_, target) in enumerate(rows) if number != 79])
    message = check_refusal(run_train(recipe), recipe)
    assert f"{recipe.parent / 'train.en'} has 200 lines and {recipe.parent / 'train.de'} has 199 lines" in message
    match = re.search(r"Line (\d+) looks like the first that is shifted", message)
    assert match is not None
    assert abs(int(match[1]) - 80) <= 8


@pytest.mark.parametrize("side", ["en", "de"])
def test_invalid_utf8_names_file_and_line(side: str, recipe: Path) -> None:
    write_aligned(recipe.parent, pairs(30))
    path = recipe.parent / f"train.{side}"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:16], b"caf\xe9\n", *lines[17:]]))
    assert f"{path}, line 17: byte 4 of the line (0xe9) is not UTF-8" in check_refusal(run_train(recipe), recipe)


def test_empty_files_are_named(recipe: Path) -> None:
    write_aligned(recipe.parent, [])
    message = check_refusal(run_train(recipe), recipe)
    assert (
        f"{recipe.parent / 'train.en'} and {recipe.parent / 'train.de'}: there are no sentence pairs in it" in message
    )


def test_one_empty_file_of_two_is_refused(recipe: Path) -> None:
    write_aligned(recipe.parent, pairs(30))
    (recipe.parent / "train.de").write_bytes(b"")
    message = check_refusal(run_train(recipe), recipe)
    assert "has 30 lines" in message
    assert "has 0 lines" in message


def test_files_of_blank_lines_are_refused(recipe: Path) -> None:
    write_aligned(recipe.parent, [("", ""), (" ", "\t")])
    done = run_train(recipe)
    assert done.code == 2
    assert "No sentence pair is left to train on" in done.err
    assert not (recipe.parent / "run").exists()


def test_missing_data_file_is_named(recipe: Path) -> None:
    write_aligned(recipe.parent, pairs(30))
    (recipe.parent / "train.de").unlink()
    assert f"{recipe.parent / 'train.de'}: there is no such file" in check_refusal(run_train(recipe), recipe)


def test_missing_column_names_the_line(recipe: Path) -> None:
    path = write_lines(recipe.parent / "pairs.tsv", ["a\tb", "only one"])
    message = check_refusal(run_train(recipe, "--pairs", path), recipe)
    assert f"{path}, line 2: found 1 column separated by tabs" in message


def test_invalid_json_names_the_line(recipe: Path) -> None:
    path = write_lines(recipe.parent / "own.jsonl", [json.dumps({"source": "a", "target": "b"}), "{"])
    assert f"{path}, line 2: not a JSON object" in check_refusal(run_train(recipe, "--pairs", path), recipe)


def test_damaged_archive_is_named(recipe: Path) -> None:
    path = recipe.parent / "own.tsv.gz"
    path.write_bytes(b"\x1f\x8b\x08 damaged")
    assert str(path) in check_refusal(run_train(recipe, "--pairs", path), recipe)


def test_run_without_short_sentences_does_not_start(recipe: Path) -> None:
    write_aligned(recipe.parent, pairs(5))
    done = run_train(recipe, "--set", "data.max_length=1")
    assert done.code == 2
    assert "none of 5 items has at most 1 tokens" in done.err
    assert not (recipe.parent / "run").exists()


@pytest.mark.parametrize("content", [b"", b"caf\xe9\tx\n"], ids=["empty", "no UTF-8"])
@pytest.mark.parametrize("part", ["data.valid", "data.test.mine"])
def test_validation_and_test_data_are_checked_before_training(part: str, content: bytes, recipe: Path) -> None:
    """An error after hours of training would be too late."""
    write_aligned(recipe.parent, pairs(30))
    path = recipe.parent / "other.tsv"
    path.write_bytes(content)
    done = run_train(recipe, "--set", f"{part}.path={path}")
    assert done.code == 2
    assert str(path) in done.err
    assert not (recipe.parent / "run").exists()


# Recipes that are refused


def test_unknown_key_is_refused(recipe: Path) -> None:
    write_aligned(recipe.parent, pairs(30))
    message = check_refusal(run_train(recipe, "--set", "train.stepz=3"), recipe)
    assert message.startswith(f"regard: {recipe}: train.stepz: ")
    assert "'steps'" in message


def test_value_out_of_range_is_refused(recipe: Path) -> None:
    write_aligned(recipe.parent, pairs(30))
    message = check_refusal(run_train(recipe, "--set", "train.steps=0"), recipe)
    assert message.startswith(f"regard: {recipe}: train.steps: found 0;")


def test_heads_that_do_not_divide_the_width_are_refused(recipe: Path) -> None:
    write_aligned(recipe.parent, pairs(30))
    assert "heads" in check_refusal(run_train(recipe, "--set", "model.encoder.attention.heads=3"), recipe)


def test_diverged_loss_gives_advice(recipe: Path) -> None:
    write_aligned(recipe.parent, pairs(30))
    settings = ("train.schedule.lr=100", "train.optimizer.kind=adamw", "train.optimizer.weight_decay=100")
    done = run_train(recipe, *(part for setting in settings for part in ("--set", setting)))
    assert done.code == 2
    assert "Lower train.schedule.lr" in done.err.splitlines()[-1]


# Data with flaws that is trained on


def test_blank_lines_are_dropped_and_counted(recipe: Path) -> None:
    rows = [*pairs(30), ("", "etwas"), ("something", "  "), ("", "")]
    write_aligned(recipe.parent, rows)
    done = run_train(recipe)
    assert done.code == 0
    assert "30 of 33 pairs kept" in done.err
    assert "3 dropped: a side is empty, first pair 31: '' | 'etwas'" in done.err


def test_very_long_line_is_dropped_and_logged(recipe: Path) -> None:
    write_aligned(recipe.parent, [*pairs(30), ("a" * 100_000, "b")])
    done = run_train(recipe)
    assert done.code == 0
    assert "dropped 1 longer than 256 tokens" in done.err


def test_single_pair_is_trained_on_without_validation(recipe: Path) -> None:
    write_aligned(recipe.parent, pairs(1))
    done = run_train(recipe)
    assert (done.code, done.out) == (0, f"{recipe.parent / 'run'}\n")
    assert "none is held out" in done.err


def test_crlf_and_byte_order_mark_are_ignored(recipe: Path) -> None:
    write_aligned(recipe.parent, pairs(30))
    first = run_train(recipe, "--out", recipe.parent / "plain")
    for name in ("train.en", "train.de"):
        text = (recipe.parent / name).read_bytes()
        (recipe.parent / name).write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
    second = run_train(recipe)
    assert (first.code, second.code) == (0, 0)
    plain, marked = (recipe.parent / name / "model.safetensors" for name in ("plain", "run"))
    assert plain.read_bytes() == marked.read_bytes()


def test_last_line_without_newline_counts(recipe: Path) -> None:
    write_aligned(recipe.parent, pairs(30))
    path = recipe.parent / "train.en"
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    done = run_train(recipe)
    assert done.code == 0
    assert "1 of 30 pairs is held out" in done.err


def test_extra_columns_are_ignored(recipe: Path) -> None:
    path = write_table(recipe.parent / "pairs.tsv", [(source, f"{target}\tCC-BY 2.0") for source, target in pairs(30)])
    done = run_train(recipe, "--pairs", path)
    assert done.code == 0
    assert "CC" not in json.loads((recipe.parent / "run" / "tokenizer.json").read_text())["model"]["vocab"]
