"""`regard fill` as a person meets it."""

import json
from pathlib import Path

import pytest

from regard.task import Filler, load_filler
from tests.task.encoders import save_random, tokenizer
from tests.task.small import Done, command, save_random_model, write_lines

TEXT = "The [MASK] ate the mouse."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = tokenizer("bpe", ["The cat ate the mouse.", "the old cat sat on the mat"] * 4, 310)
    return save_random(tmp_path_factory.mktemp("models") / "filler", text, {"kind": "fill"})


@pytest.fixture(scope="module")
def filler(model: Path) -> Filler:
    return load_filler(model)


def is_refused(done: Done, *words: str) -> None:
    """Code two, nothing written, and one line that has these words."""
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("regard: ")
    for word in words:
        assert word in done.err


def test_a_text_is_written_with_its_gap_filled(model: Path, filler: Filler) -> None:
    ((best, *_),) = filler.fill(TEXT)
    done = command("fill", model, TEXT)
    assert (done.code, done.out, done.err) == (0, f"The {best.text} ate the mouse.\n", "")


def test_standard_input_is_a_text_a_line_and_empty_lines_stay(model: Path) -> None:
    done = command("fill", model, stdin=f"{TEXT}\n\n[MASK] [MASK]\n".encode())
    first, second, third = done.out.splitlines()
    assert (f"{first}\n", second) == (command("fill", model, TEXT).out, "")
    assert f"{third}\n" == command("fill", model, "[MASK] [MASK]").out


def test_the_likeliest_words_come_with_their_probabilities_gap_by_gap(model: Path, filler: Filler) -> None:
    text = "The [MASK] ate [MASK] mouse."
    gaps = [", ".join(f"{one.text} {one.probability:.4f}" for one in gap) for gap in filler.fill(text, top=3)]
    assert command("fill", model, text, "--top", 3).out == "\t".join(gaps) + "\n"


def test_json_has_all_there_is_to_know(model: Path, filler: Filler) -> None:
    done = command("fill", model, TEXT, "--json", "--top", 2, "--pieces", 2)
    (gap,) = filler.fill(TEXT, top=2, pieces=2)
    guesses = [{"text": one.text, "probability": round(one.probability, 6)} for one in gap]
    assert json.loads(done.out) == {"text": TEXT, "gaps": [guesses]}
    assert len(json.loads(command("fill", model, TEXT, "--json").out)["gaps"][0]) == 5


def test_texts_come_from_a_file_and_go_into_one(model: Path, tmp_path: Path) -> None:
    given = write_lines(tmp_path / "in.txt", [TEXT, TEXT])
    done = command("fill", model, "--file", given, "--output", tmp_path / "out.txt")
    assert (done.code, done.out) == (0, "")
    assert (tmp_path / "out.txt").read_text() == 2 * command("fill", model, TEXT).out


def test_a_text_without_a_gap_is_refused(model: Path) -> None:
    is_refused(
        command("fill", model, "The cat"), "there is no gap in 'The cat'", "write [MASK] where a word is missing"
    )
    is_refused(command("fill", model, stdin=f"{TEXT}\nThe cat\n".encode()), "Line 2: there is no gap")


def test_a_model_that_does_not_fill_is_refused(tmp_path: Path) -> None:
    is_refused(command("fill", save_random_model(tmp_path / "run"), TEXT), "is no encoder of texts")
    is_refused(command("fill", tmp_path / "nowhere", TEXT), "there is no such folder")


def test_two_places_to_read_from_are_one_too_many(model: Path, tmp_path: Path) -> None:
    is_refused(command("fill", model, TEXT, "--file", tmp_path / "in.txt"), "give one of the two")
