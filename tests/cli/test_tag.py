"""`regard tag`."""

import json
from pathlib import Path

import pytest

from regard.task.classification.pipeline import TextLabeler
from tests.cli.refusal import assert_refused
from tests.task.encoders import save_random_encoder, tokenizer
from tests.task.small import command, write_lines

TEXT = "The cat didn't eat."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    head = {"kind": "token_classification", "labels": ["DT", "NN", "VB"]}
    return save_random_encoder(tmp_path_factory.mktemp("models") / "tagger", tokenizer("character", [TEXT]), head)


def test_words_are_printed_with_their_tags(model: Path) -> None:
    (tagged,) = TextLabeler.load(model).tag([TEXT])
    done = command("tag", model, TEXT)
    assert (done.code, done.out, done.err) == (0, f"{tagged}\n", "")
    assert [item.rpartition("/")[0] for item in done.out.split()] == ["The", "cat", "did", "n't", "eat", "."]


def test_tokenized_input_is_not_split(model: Path) -> None:
    done = command("tag", model, TEXT, "--tokenized")
    assert [item.rpartition("/")[0] for item in done.out.split()] == TEXT.split()


def test_standard_input_keeps_empty_lines(model: Path) -> None:
    done = command("tag", model, stdin=f"{TEXT}\n\nA cat.\n".encode())
    first, second, third = done.out.splitlines()
    assert (f"{first}\n", second, f"{third}\n") == (
        command("tag", model, TEXT).out,
        "",
        command("tag", model, "A cat.").out,
    )


def test_json(model: Path, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "in.txt", [TEXT, ""])
    first, second = map(json.loads, command("tag", model, "--json", "--file", file).out.splitlines())
    (tagged,) = TextLabeler.load(model).tag([TEXT])
    assert (first["words"], first["tags"]) == (list(tagged.words), list(tagged.tags))
    assert first["probabilities"] == pytest.approx(tagged.probabilities, abs=1e-4)
    assert second == {"words": [], "tags": [], "probabilities": []}


def test_other_models_are_refused(tmp_path: Path) -> None:
    text = tokenizer("character", [TEXT])
    labels = save_random_encoder(tmp_path / "labels", text, {"kind": "classification", "labels": ["a", "b"]})
    assert_refused(command("tag", labels, TEXT), "regard classify")
    assert_refused(command("tag", save_random_encoder(tmp_path / "fills", text, {"kind": "masked_lm"}), TEXT), "labels")
    assert_refused(command("tag", "en-tr", TEXT), "not a text encoder")
