"""`regard tag` as a person meets it."""

import json
from pathlib import Path

import pytest

from regard.task import load_labeller
from tests.cli.test_fill import is_refused
from tests.task.encoders import save_random, tokenizer
from tests.task.small import command, write_lines

TEXT = "The cat didn't eat."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    head = {"kind": "tag", "labels": ["DT", "NN", "VB"]}
    return save_random(tmp_path_factory.mktemp("models") / "tagger", tokenizer("character", [TEXT]), head)


def test_words_come_with_their_tags_behind_a_slash(model: Path) -> None:
    (found,) = load_labeller(model).tag([TEXT])
    done = command("tag", model, TEXT)
    assert (done.code, done.out, done.err) == (0, f"{found}\n", "")
    assert [item.rpartition("/")[0] for item in done.out.split()] == ["The", "cat", "did", "n't", "eat", "."]


def test_words_that_are_apart_already_stay_so(model: Path) -> None:
    done = command("tag", model, TEXT, "--tokenised")
    assert [item.rpartition("/")[0] for item in done.out.split()] == TEXT.split()


def test_standard_input_is_a_sentence_a_line_and_empty_lines_stay(model: Path) -> None:
    done = command("tag", model, stdin=f"{TEXT}\n\nA cat.\n".encode())
    first, second, third = done.out.splitlines()
    assert (f"{first}\n", second, f"{third}\n") == (
        command("tag", model, TEXT).out,
        "",
        command("tag", model, "A cat.").out,
    )


def test_json_has_probabilities(model: Path, tmp_path: Path) -> None:
    given = write_lines(tmp_path / "in.txt", [TEXT, ""])
    first, second = map(json.loads, command("tag", model, "--json", "--file", given).out.splitlines())
    (found,) = load_labeller(model).tag([TEXT])
    assert (first["words"], first["tags"]) == (list(found.words), list(found.tags))
    assert first["probabilities"] == pytest.approx(found.probabilities, abs=1e-4)
    assert second == {"words": [], "tags": [], "probabilities": []}


def test_a_model_that_does_not_tag_is_refused(tmp_path: Path) -> None:
    text = tokenizer("character", [TEXT])
    labels = save_random(tmp_path / "labels", text, {"kind": "classify", "labels": ["a", "b"]})
    is_refused(command("tag", labels, TEXT), "labels whole texts and does not tag words; use `regard classify`")
    is_refused(command("tag", save_random(tmp_path / "fills", text, {"kind": "fill"}), TEXT), "knows no labels")
    is_refused(command("tag", "en-tr", TEXT), "is no encoder of texts")
