"""`regard translate` as a person meets it."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from regard.run import shipped_models
from regard.task import load_translator
from tests.task.small import command, save_random_model, write_lines


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("models") / "small")


def wanted(model: Path, *lines: str, beams: int | None = None) -> str:
    """What the library makes of some lines."""
    translator = load_translator(model)
    return "".join(f"{translator.translate(line, beams=beams)}\n" for line in lines)


# What is translated.


def test_the_shipped_model_translates_text_from_a_shell() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "regard", "translate", "en-tr", "The cat ate the mouse.", "--threads", "1"],
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "Kedi fareyi yedi.\n", "")


def test_each_text_becomes_a_line(model: Path) -> None:
    done = command("translate", model, "red cat", "sun")
    assert (done.code, done.out, done.err) == (0, wanted(model, "red cat", "sun"), "")


def test_standard_input_is_translated_line_by_line(model: Path) -> None:
    done = command("translate", model, stdin=b"red cat\nsun\n")
    assert (done.code, done.out) == (0, wanted(model, "red cat", "sun"))


def test_the_last_line_of_standard_input_needs_no_end(model: Path) -> None:
    assert command("translate", model, stdin=b"red cat\r\nsun").out == wanted(model, "red cat", "sun")


def test_an_empty_line_stays_where_it_is(model: Path) -> None:
    assert command("translate", model, stdin=b"red cat\n\nsun\n").out == wanted(model, "red cat", "", "sun")


def test_no_input_gives_no_output(model: Path) -> None:
    assert command("translate", model, stdin=b"").out == ""


def test_a_file_is_translated_line_by_line(model: Path, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in.txt", ["red cat", "sun"])
    assert command("translate", model, "--file", path).out == wanted(model, "red cat", "sun")


def test_several_files_are_translated_one_after_the_other_compressed_or_not(model: Path, tmp_path: Path) -> None:
    first, second = write_lines(tmp_path / "one.txt", ["red cat"]), tmp_path / "two.txt.gz"
    second.write_bytes(gzip.compress(b"sun\n"))
    assert command("translate", model, "--file", first, "--file", second).out == wanted(model, "red cat", "sun")


def test_a_file_longer_than_is_taken_at_once_keeps_its_order(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.cli.translate._CHUNK", 2)
    lines = ["red", "old", "big cat", "sun", "sea"]
    path = write_lines(tmp_path / "in.txt", lines)
    assert command("translate", model, "--file", path, "--beams", 1).out == wanted(model, *lines, beams=1)


# Where it goes and how it looks.


def test_an_output_file_has_what_would_have_been_printed(model: Path, tmp_path: Path) -> None:
    done = command("translate", model, "red cat", "sun", "--output", tmp_path / "out.txt")
    assert (done.code, done.out) == (0, "")
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == wanted(model, "red cat", "sun")


def test_an_output_file_in_a_folder_that_is_not_there_is_a_line_and_code_two(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "out.txt"
    done = command("translate", model, "red", "--output", path)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert f"{path} could not be written" in done.err


def test_an_old_output_file_stands_until_the_new_one_is_whole(model: Path, tmp_path: Path) -> None:
    write_lines(tmp_path / "out.txt", ["old"])
    assert command("translate", model, "--output", tmp_path / "out.txt", stdin=b"red\n\xff\n").code == 2
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == "old\n"


@pytest.mark.parametrize("beams", [1, 2, 5])
def test_as_many_beams_are_searched_as_are_asked_for(beams: int, model: Path) -> None:
    done = command("translate", model, "old cat sea", "--beams", beams)
    assert done.out == wanted(model, "old cat sea", beams=beams)


def test_the_best_translations_come_best_first(model: Path) -> None:
    (found,) = load_translator(model).translate_all(["old cat sea"])
    assert command("translate", model, "old cat sea", "--nbest", 3).out.splitlines() == [
        found.candidate(number) for number in range(3)
    ]


def test_more_translations_than_beams_make_the_search_wider(model: Path) -> None:
    assert command("translate", model, "old cat sea", "--beams", 1, "--nbest", 4).out.count("\n") == 4


def test_json_has_an_object_for_each_line(model: Path) -> None:
    lines = command("translate", model, "--json", stdin=b"red cat. Old dog.\n\nsun\n").out.splitlines()
    facts = [json.loads(line) for line in lines]
    assert [one["source"] for one in facts] == ["red cat. Old dog.", "", "sun"]
    assert [[each["source"] for each in one["sentences"]] for one in facts] == [["red cat.", "Old dog."], [], ["sun"]]


def test_json_has_the_text_that_is_printed_without_it(model: Path) -> None:
    shown = json.loads(command("translate", model, "red cat. Old dog.", "--json").out)["translation"]
    assert f"{shown}\n" == command("translate", model, "red cat. Old dog.").out


def test_json_has_each_translation_with_its_scores_best_first(model: Path) -> None:
    facts = json.loads(command("translate", model, "old cat sea", "--json", "--nbest", 3).out)
    ((sentence),) = facts["sentences"]
    found = sentence["translations"]
    assert all(one.keys() == {"text", "score", "log_probability", "tokens", "ended"} for one in found)
    scores = [one["score"] for one in found]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)


def test_json_keeps_letters_as_they_are() -> None:
    assert "ı" in command("translate", "en-tr", "I saw the woman.", "--json").out


# What a person got wrong.


def test_standard_input_that_is_no_utf8_is_a_line_and_code_two(model: Path) -> None:
    done = command("translate", model, stdin=b"caf\xe9\n")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "Standard input is not UTF-8" in done.err


def test_a_file_that_is_no_utf8_is_named_with_its_line(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"red\ncaf\xe9\n")
    done = command("translate", model, "--file", path)
    assert done.code == 2
    assert f"regard: {path}, line 2: byte 4" in done.err


def test_a_file_that_is_not_there_is_named(model: Path, tmp_path: Path) -> None:
    done = command("translate", model, "--file", tmp_path / "none.txt")
    assert (done.code, done.err) == (2, f"regard: {tmp_path / 'none.txt'}: there is no such file.\n")


def test_an_unknown_model_is_answered_with_those_that_ship() -> None:
    done = command("translate", "en-xx", "red")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("regard: en-xx: ")
    assert all(name in done.err for name in shipped_models())


def test_text_and_file_together_are_refused(model: Path, tmp_path: Path) -> None:
    done = command("translate", model, "red", "--file", tmp_path / "in.txt")
    assert (done.code, done.err) == (2, "regard: TEXT and --file both name what to translate; give one of the two.\n")


@pytest.mark.parametrize("option", ["--beams", "--nbest"])
def test_numbers_below_one_are_refused_by_option(option: str, model: Path) -> None:
    done = command("translate", model, "red", option, 0)
    assert (done.code, option in done.err, "Traceback" in done.err) == (2, True, False)
