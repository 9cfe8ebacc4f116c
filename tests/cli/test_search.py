"""`regard search`."""

import json
from pathlib import Path

import pytest

import regard
from regard.task.contextual_vectors.search import search_file
from tests.cli.refusal import assert_refused
from tests.task.encoders import save_random_encoder, tokenizer
from tests.task.small import command, sentences, write_lines


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = tokenizer("character", sentences(30))
    return save_random_encoder(tmp_path_factory.mktemp("models") / "encoder", text, {"kind": "masked_lm"})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "lines.txt", sentences(30))


def test_hits_are_printed_with_score_and_line_number(model: Path, file: Path) -> None:
    (hits,) = search_file(regard.load(model), file, ["red cat"], top=3).hits
    done = command("search", model, file, "red cat", "--top", 3)
    assert (done.code, done.err) == (0, "")
    assert done.out == "".join(f"{hit.score:.4f}\t{hit.line}\t{hit.text}\n" for hit in hits)


def test_several_queries_come_from_arguments_or_standard_input(model: Path, file: Path) -> None:
    done = command("search", model, file, "red cat", "old sea", "--top", 2)
    assert [line.split("\t")[0] for line in done.out.splitlines()] == ["red cat"] * 2 + ["old sea"] * 2
    assert command("search", model, file, "--top", 2, stdin=b"red cat\n\nold sea\n").out == done.out


def test_json_and_layers(model: Path, file: Path) -> None:
    (hits,) = search_file(regard.load(model), file, ["red"], top=2, layer=0).hits
    records = list(
        map(json.loads, command("search", model, file, "red", "--top", 2, "--layer", 0, "--json").out.splitlines())
    )
    assert [(each["query"], each["line"], each["text"]) for each in records] == [
        ("red", hit.line, hit.text) for hit in hits
    ]
    assert [each["score"] for each in records] == pytest.approx([hit.score for hit in hits], abs=1e-6)


def test_wrong_input_is_refused_in_one_sentence(model: Path, file: Path, tmp_path: Path) -> None:
    assert_refused(command("search", model, tmp_path / "missing.txt", "red"), "there is no such file")
    assert_refused(command("search", model, write_lines(tmp_path / "empty.txt", []), "red"), "is empty")
    assert_refused(command("search", model, file, "  "), "The query is empty")
    assert_refused(command("search", model, file, stdin=b"\n"), "There is no query")
    assert_refused(command("search", model, file, "red", "--layer", 7), "There is no layer 7")
    assert_refused(command("search", tmp_path / "no-model", file, "red"), "no-model")
