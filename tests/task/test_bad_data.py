"""Data as it is found: what is wrong with it is said in a sentence, and a run that never began leaves nothing."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.task.small import (
    Done,
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
    """Trains on train.en and train.de, where a test puts what it likes."""
    return write_recipe_file(tmp_path / "small.toml", {"train": [{"source": "train.en", "target": "train.de"}]})


def trained(recipe: Path, *words: object) -> Done:
    return command("train", recipe, "--out", recipe.parent / "run", *words)


def check_refusal(done: Done, recipe: Path) -> str:
    """The one line a run that never began leaves behind."""
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert done.err.startswith("regard: ")
    assert not (recipe.parent / "run").exists()
    return done.err


# Files that are refused.


def test_files_of_different_length_are_refused_with_both_counts_and_the_line_that_looks_shifted(recipe: Path) -> None:
    rows = pairs(200)
    write_lines(recipe.parent / "train.en", [source for source, _ in rows])
    write_lines(recipe.parent / "train.de", [target for number, (_, target) in enumerate(rows) if number != 79])
    said = check_refusal(trained(recipe), recipe)
    assert f"{recipe.parent / 'train.en'} has 200 lines and {recipe.parent / 'train.de'} has 199 lines" in said
    found = re.search(r"Line (\d+) looks like the first that is shifted", said)
    assert found is not None
    assert abs(int(found[1]) - 80) <= 8


@pytest.mark.parametrize("side", ["en", "de"])
def test_a_byte_that_is_no_utf8_is_refused_with_file_and_line(side: str, recipe: Path) -> None:
    write_aligned(recipe.parent, pairs(30))
    path = recipe.parent / f"train.{side}"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:16], b"caf\xe9\n", *lines[17:]]))
    assert f"{path}, line 17: byte 4 of the line (0xe9) is not UTF-8" in check_refusal(trained(recipe), recipe)


def test_empty_files_are_refused_by_name(recipe: Path) -> None:
    write_aligned(recipe.parent, [])
    said = check_refusal(trained(recipe), recipe)
    assert f"{recipe.parent / 'train.en'} and {recipe.parent / 'train.de'}: there are no sentence pairs in it" in said


def test_one_empty_file_of_two_is_refused_with_both_counts(recipe: Path) -> None:
    write_aligned(recipe.parent, pairs(30))
    (recipe.parent / "train.de").write_bytes(b"")
    said = check_refusal(trained(recipe), recipe)
    assert "has 30 lines" in said
    assert "has 0 lines" in said


def test_files_of_nothing_but_empty_lines_are_refused(recipe: Path) -> None:
    write_aligned(recipe.parent, [("", ""), (" ", "\t")])
    done = trained(recipe)
    assert done.code == 2
    assert "No sentence pair is left to train on" in done.err
    assert not (recipe.parent / "run").exists()


def test_a_file_that_is_not_there_is_refused_by_name(recipe: Path) -> None:
    write_aligned(recipe.parent, pairs(30))
    (recipe.parent / "train.de").unlink()
    assert f"{recipe.parent / 'train.de'}: there is no such file" in check_refusal(trained(recipe), recipe)


def test_a_table_with_a_column_too_few_is_refused_with_its_line(recipe: Path) -> None:
    path = write_lines(recipe.parent / "own.tsv", ["a\tb", "only one"])
    said = check_refusal(trained(recipe, "--pairs", path), recipe)
    assert f"{path}, line 2: found 1 column between tabs" in said


def test_json_lines_that_are_none_are_refused_with_their_line(recipe: Path) -> None:
    path = write_lines(recipe.parent / "own.jsonl", [json.dumps({"source": "a", "target": "b"}), "{"])
    assert f"{path}, line 2: not a JSON object" in check_refusal(trained(recipe, "--pairs", path), recipe)


def test_a_damaged_archive_is_refused_by_name(recipe: Path) -> None:
    path = recipe.parent / "own.tsv.gz"
    path.write_bytes(b"\x1f\x8b\x08 damaged")
    assert str(path) in check_refusal(trained(recipe, "--pairs", path), recipe)


def test_where_every_sentence_is_too_long_the_run_does_not_begin(recipe: Path) -> None:
    write_aligned(recipe.parent, pairs(5))
    done = trained(recipe, "--set", "data.longest=1")
    assert done.code == 2
    assert "of 5 items none has at most 1 tokens" in done.err
    assert not (recipe.parent / "run").exists()


@pytest.mark.parametrize("content", [b"", b"caf\xe9\tx\n"], ids=["empty", "no UTF-8"])
@pytest.mark.parametrize("part", ["data.valid", "data.test.mine"])
def test_data_to_watch_and_judge_by_is_looked_at_before_training_begins(
    part: str, content: bytes, recipe: Path
) -> None:
    """And not when hours have gone by."""
    write_aligned(recipe.parent, pairs(30))
    path = recipe.parent / "other.tsv"
    path.write_bytes(content)
    done = trained(recipe, "--set", f"{part}.path={path}")
    assert done.code == 2
    assert str(path) in done.err
    assert not (recipe.parent / "run").exists()


# Recipes that are refused.


def test_an_unknown_key_is_refused(recipe: Path) -> None:
    write_aligned(recipe.parent, pairs(30))
    said = check_refusal(trained(recipe, "--set", "train.stepz=3"), recipe)
    assert said == f"regard: {recipe}: train.stepz: unknown key; did you mean 'steps'?\n"


def test_a_value_out_of_range_is_refused(recipe: Path) -> None:
    write_aligned(recipe.parent, pairs(30))
    said = check_refusal(trained(recipe, "--set", "train.steps=0"), recipe)
    assert said == f"regard: {recipe}: train.steps: found 0; expected greater than or equal to 1.\n"


def test_a_model_whose_heads_do_not_fit_its_width_is_refused(recipe: Path) -> None:
    write_aligned(recipe.parent, pairs(30))
    assert "heads" in check_refusal(trained(recipe, "--set", "model.encoder.attention.heads=3"), recipe)


def test_a_loss_that_runs_away_is_a_sentence_with_what_to_do(recipe: Path) -> None:
    write_aligned(recipe.parent, pairs(30))
    done = trained(recipe, "--set", "train.schedule.rate=1e30", "--set", "train.clip=0.0")
    assert done.code == 2
    assert "Lower train.schedule.rate" in done.err.splitlines()[-1]


# What is trained on all the same.


def test_empty_lines_are_dropped_and_counted(recipe: Path) -> None:
    rows = [*pairs(30), ("", "etwas"), ("something", "  "), ("", "")]
    write_aligned(recipe.parent, rows)
    done = trained(recipe)
    assert done.code == 0
    assert "30 of 33 pairs kept" in done.err
    assert "3 dropped: a side is empty, first pair 31: '' | 'etwas'" in done.err


def test_a_line_of_a_hundred_thousand_tokens_is_left_out_and_said(recipe: Path) -> None:
    write_aligned(recipe.parent, [*pairs(30), ("a" * 100_000, "b")])
    done = trained(recipe)
    assert done.code == 0
    assert "1 longer than 256 tokens were left out" in done.err


def test_one_sentence_alone_is_trained_on_and_that_nothing_is_held_out_is_said(recipe: Path) -> None:
    write_aligned(recipe.parent, pairs(1))
    done = trained(recipe)
    assert (done.code, done.out) == (0, f"{recipe.parent / 'run'}\n")
    assert "none is held out" in done.err


def test_line_ends_of_another_system_and_a_byte_order_mark_change_nothing(recipe: Path) -> None:
    write_aligned(recipe.parent, pairs(30))
    first = trained(recipe, "--out", recipe.parent / "plain")
    for name in ("train.en", "train.de"):
        text = (recipe.parent / name).read_bytes()
        (recipe.parent / name).write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
    second = trained(recipe)
    assert (first.code, second.code) == (0, 0)
    plain, marked = (recipe.parent / name / "model.safetensors" for name in ("plain", "run"))
    assert plain.read_bytes() == marked.read_bytes()


def test_a_last_line_without_end_counts(recipe: Path) -> None:
    write_aligned(recipe.parent, pairs(30))
    path = recipe.parent / "train.en"
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    done = trained(recipe)
    assert done.code == 0
    assert "1 of 30 pairs are held out" in done.err


def test_a_table_with_more_columns_is_read_by_its_first_two(recipe: Path) -> None:
    path = write_table(recipe.parent / "own.tsv", [(source, f"{target}\tCC-BY 2.0") for source, target in pairs(30)])
    done = trained(recipe, "--pairs", path)
    assert done.code == 0
    assert "CC" not in json.loads((recipe.parent / "run" / "tokenizer.json").read_text())["model"]["vocab"]
