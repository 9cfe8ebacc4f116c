"""`regard translate` as a person meets it."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.data.tokenizer_training import TokenizerConfig, train_tokenizer
from regard.decode import DecodeConfig
from regard.run import load, save, shipped_models
from regard.task import Translator, load_translator
from tests.task.small import SEARCH, Done, command, random_model, save_random_model, sentences, write_lines


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
    monkeypatch.setattr("regard.cli.lines.CHUNK", 2)
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


def test_an_empty_line_among_the_best_translations_is_as_many_empty_lines(model: Path) -> None:
    done = command("translate", model, "--nbest", 3, stdin=b"red cat\n\nsun\n")
    first, last = (command("translate", model, text, "--nbest", 3).out for text in ("red cat", "sun"))
    assert done.out == f"{first}\n\n\n{last}"


def test_a_line_with_fewer_translations_than_were_asked_for_is_followed_by_empty_lines(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when groups of beams find the same."""
    real = Translator.translate_sentences

    def fewer(self: Translator, *given: Any, **more: Any) -> Any:
        return [found[: number + 1] for number, found in enumerate(real(self, *given, **more))]

    monkeypatch.setattr(Translator, "translate_sentences", fewer)
    lines = command("translate", model, "red cat", "sun", "--nbest", 3).out.splitlines()
    assert [bool(line) for line in lines] == [True, False, False, True, True, False]


def test_json_has_the_translations_that_there_are_and_no_empty_ones(model: Path) -> None:
    lines = command("translate", model, "--json", "--nbest", 3, stdin=b"red cat\n\n").out.splitlines()
    first, second = (json.loads(line)["sentences"] for line in lines)
    assert ([len(one["translations"]) for one in first], second) == ([3], [])


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


# Words that must come, or must not.


def is_refused(done: Done, *words: str) -> None:
    """Code two, nothing written, and one line that has these words."""
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("regard: ")
    for word in words:
        assert word in done.err


def test_a_beginning_stands_before_the_rest(model: Path) -> None:
    done = command("translate", model, "old cat sea", "--prefix", "sun")
    assert done.out == f"{load_translator(model).translate('old cat sea', prefix='sun')}\n"
    assert done.out.startswith("sun")


def test_a_beginning_stands_before_every_line_but_an_empty_one(model: Path) -> None:
    lines = command("translate", model, "--prefix", "sun", stdin=b"red\n\nold\n").out.splitlines()
    assert [line[:3] for line in lines] == ["sun", "", "sun"]


def test_required_words_come(model: Path) -> None:
    done = command("translate", model, "old cat sea", "--require", "sun", "--require", "red")
    assert " sun" in done.out
    assert " red" in done.out


def test_a_forbidden_word_does_not_come() -> None:
    assert "fareyi" in command("translate", "en-tr", "The cat ate the mouse.").out
    done = command("translate", "en-tr", "The cat ate the mouse.", "--forbid", "fareyi")
    assert (done.code, "fareyi" in done.out) == (0, False)


def test_the_shipped_model_takes_a_beginning_and_a_required_word() -> None:
    done = command("translate", "en-tr", "The cat ate the mouse.", "--prefix", "Fareyi", "--require", "yedi")
    assert done.out.startswith("Fareyi")
    assert " yedi" in done.out


def test_groups_that_are_kept_apart_give_as_many_translations(model: Path) -> None:
    decode = DecodeConfig.read(SEARCH.plain() | {"beams": 4, "groups": 2})
    (found,) = load_translator(model).translate_all(["old cat sea"], decode)
    done = command("translate", model, "old cat sea", "--diverse", 2, "--beams", 4, "--nbest", 4)
    assert done.out.splitlines() == [found.candidate(number) for number in range(4)]


def test_beams_that_do_not_fill_groups_are_made_to(model: Path) -> None:
    done = command("translate", model, "old cat sea", "--diverse", 2, "--beams", 3, "--nbest", 3)
    assert (done.code, done.out.count("\n")) == (0, 3)


# Drawn by chance.


@pytest.mark.parametrize(
    ("option", "changes"),
    [
        (["--temperature", 1.7], {"temperature": 1.7}),
        (["--temperature", 0], {"temperature": 0.0}),
        (["--top-k", 2], {"top_k": 2}),
        (["--top-p", 0.5], {"top_p": 0.5}),
        (["--min-p", 0.3], {"min_p": 0.3}),
        (["--repetition", 1.5], {"repetition": 1.5}),
        (["--seed", 9], {"seed": 9}),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_each_setting_of_drawing_is_the_librarys(option: list[Any], changes: dict[str, Any], model: Path) -> None:
    decode = DecodeConfig.read(SEARCH.plain() | {"beams": 1, "sample": True} | changes)
    found = load_translator(model).translate_all(["old cat sea", "sun"], decode)
    done = command("translate", model, "old cat sea", "sun", *option)
    assert done.out == "".join(f"{one.text}\n" for one in found)


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    first, again, other = (
        command("translate", "en-tr", "We will meet in front of the museum.", "--temperature", 2, "--seed", seed).out
        for seed in (1, 1, 2)
    )
    assert first == again != other


# With other models.


@pytest.fixture(scope="module")
def sibling(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model with the same tokenizer."""
    loaded = load(model)
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return save(loaded.model, tmp_path_factory.mktemp("models") / "sibling", tokenizer=loaded.tokenizer)


def test_models_translate_together(model: Path, sibling: Path) -> None:
    joined = load_translator(model).joined([load_translator(sibling)])
    done = command("translate", model, "old cat sea", "--with", sibling, "--json")
    (sentence,) = json.loads(done.out)["sentences"]
    ((best, *_),) = joined.translate_sentences(["old cat sea"])
    assert sentence["translations"][0]["text"] == best.text
    assert sentence["translations"][0]["log_probability"] == pytest.approx(best.log_probability, abs=1e-3)


def test_a_model_with_another_tokenizer_cannot_join(model: Path) -> None:
    is_refused(command("translate", model, "red", "--with", "en-tr"), "must share their tokenizers")


def test_a_model_that_is_not_there_cannot_join(model: Path, tmp_path: Path) -> None:
    is_refused(command("translate", model, "red", "--with", tmp_path / "none"), "none: there is no such folder")


# What JSON tells of tokens.


def test_json_has_the_probability_of_every_token(model: Path) -> None:
    (sentence,) = json.loads(command("translate", model, "old cat sea", "--json").out)["sentences"]
    (best,) = sentence["translations"]
    total = sum(token["log_probability"] for token in best["tokens"])
    assert total == pytest.approx(best["log_probability"], abs=2e-3)
    assert all(token.keys() == {"text", "log_probability"} for token in best["tokens"])


def test_json_with_alternatives_has_so_many_at_every_token_best_first(model: Path) -> None:
    done = command("translate", model, "old cat sea", "--json", "--alternatives", 3)
    ((best,),) = [sentence["translations"] for sentence in json.loads(done.out)["sentences"]]
    for token in best["tokens"]:
        chances = [each["log_probability"] for each in token["alternatives"]]
        assert len(chances) == 3
        assert chances == sorted(chances, reverse=True)


def test_json_of_an_empty_line_has_an_empty_translation(model: Path) -> None:
    facts = json.loads(command("translate", model, "--json", stdin=b"\n").out)
    assert facts == {"source": "", "translation": "", "sentences": []}


# Interrupted.


@pytest.fixture
def interrupted_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets Ctrl-C come at the so manieth line."""

    def at(number: int) -> None:
        monkeypatch.setattr("regard.cli.lines.CHUNK", 1)
        real, calls = Translator.translate_all, []

        def translate_all(self: Translator, *given: Any, **more: Any) -> Any:
            calls.append(given)
            if len(calls) == number:
                raise KeyboardInterrupt
            return real(self, *given, **more)

        monkeypatch.setattr(Translator, "translate_all", translate_all)

    return at


def test_what_was_written_before_an_interruption_is_kept_and_named(
    model: Path, tmp_path: Path, interrupted_at: Callable[[int], None]
) -> None:
    interrupted_at(3)
    out = tmp_path / "out.txt"
    done = command("translate", model, "--output", out, stdin=b"red cat\nsun\nsea\n")
    assert (done.code, done.out, out.exists()) == (130, "", False)
    assert done.err == f"Stopped: 2 lines are in {out}.partial.\n"
    kept = (tmp_path / "out.txt.partial").read_text(encoding="utf-8")
    assert kept == wanted(model, "red cat", "sun")


def test_an_interruption_leaves_an_old_output_file_as_it_was(
    model: Path, tmp_path: Path, interrupted_at: Callable[[int], None]
) -> None:
    interrupted_at(2)
    out = write_lines(tmp_path / "out.txt", ["old"])
    assert command("translate", model, "--output", out, stdin=b"red cat\nsun\n").code == 130
    assert out.read_text(encoding="utf-8") == "old\n"


def test_an_interruption_before_the_first_line_names_no_file(
    model: Path, tmp_path: Path, interrupted_at: Callable[[int], None]
) -> None:
    interrupted_at(1)
    done = command("translate", model, "--output", tmp_path / "out.txt", stdin=b"red cat\n")
    assert list(tmp_path.iterdir()) == []
    assert (done.code, ".partial" in done.err) == (130, False)


# What cannot be asked for together, or at all.


CONTRADICTIONS: dict[str, tuple[list[Any], list[str]]] = {
    "chance and beams": (["--temperature", 1, "--beams", 2], ["leave out --beams, --nbest and --diverse"]),
    "chance and several": (["--seed", 1, "--nbest", 2], ["leave out --beams, --nbest and --diverse"]),
    "chance and groups": (["--top-k", 5, "--diverse", 2], ["leave out --beams, --nbest and --diverse"]),
    "chance and a required word": (["--temperature", 1, "--require", "sun"], ["Required words go with beam search"]),
    "groups and a required word": (["--diverse", 3, "--require", "sun"], ["Required words go with beam search"]),
    "required and forbidden": (["--require", "sun", "--forbid", "un"], ["must not contain", "a required word"]),
    "begun with and forbidden": (["--prefix", "sun", "--forbid", "un"], ["must not contain", "what it begins with"]),
    "a beginning longer than the output": (["--prefix", "sun" * 9], ["27 given tokens", "12 at most"]),
    "required words longer than the output": (["--require", "sun" * 9], ["28 tokens", "at most 12"]),
    "an empty required word": (["--require", ""], ["A required word is empty"]),
    "an empty forbidden word": (["--forbid", " "], ["A forbidden word is empty"]),
    "no share at all": (["--top-p", 0], ["top_p", "greater than 0"]),
    "no such device": (["--device", "abacus"], ["--device abacus"]),
    "alternatives and no JSON": (["--alternatives", 2], ["--alternatives", "add --json"]),
}


@pytest.mark.parametrize(("words", "sentence"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_what_cannot_be_is_a_line_and_code_two(words: list[Any], sentence: list[str], model: Path) -> None:
    is_refused(command("translate", model, "red", *words), *sentence)


@pytest.mark.parametrize("option", ["--prefix", "--require"])
def test_words_for_one_sentence_are_refused_for_several(option: str, model: Path) -> None:
    is_refused(command("translate", model, "Red cat. Old dog.", option, "sun"), "go with one sentence", "has 2")


@pytest.mark.parametrize("option", ["--prefix", "--require", "--forbid"])
def test_a_word_that_the_model_cannot_write_is_named(option: str, tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="word"), sentences(20))
    place = save(random_model(tokenizer.vocabulary), tmp_path / "words", tokenizer=tokenizer.tokenizer)
    is_refused(command("translate", place, "red", option, "zebra"), "'zebra' cannot be written by this model")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--beams", 0),
        ("--diverse", 1),
        ("--temperature", -0.1),
        ("--top-k", 0),
        ("--top-p", 1.1),
        ("--min-p", -1),
        ("--repetition", -1),
        ("--seed", "often"),
        ("--alternatives", -1),
        ("--threads", 0),
        ("--engine", "steam"),
    ],
)
def test_values_outside_their_range_are_refused_by_option(option: str, value: object, model: Path) -> None:
    done = command("translate", model, "red", option, value)
    assert (done.code, done.out, option in done.err, "Traceback" in done.err) == (2, "", True, False)


@pytest.mark.parametrize("option", ["--compile", "--no-compile"])
def test_compiled_steps_give_the_same_lines(option: str) -> None:
    pytest.importorskip("numba")
    lines = "The cat ate the mouse.\nSee you soon.\n\nI am a student.\n"
    done = command("translate", "en-tr", option, stdin=lines.encode())
    assert (done.code, done.out) == (0, "Kedi fareyi yedi.\nGörüşürüz.\n\nBen bir öğrenciyim.\n")


def test_weights_rounded_to_bytes_translate_too() -> None:
    pytest.importorskip("numba")
    done = command("translate", "en-tr", "The cat ate the mouse.", "--precision", "int8")
    assert (done.code, done.out) == (0, "Kedi fareyi yedi.\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--precision", "bf16", "--device", "cpu"], "bf16 is for GPUs"),
        (["--precision", "int8", "--no-compile"], "int8 needs compiled kernels"),
        (["--precision", "int8", "--engine", "ctranslate2"], "CTranslate2 has its own kernels"),
        (["--precision", "int8", "--with", "en-tr"], "An ensemble computes in float32"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ",
)
def test_a_precision_that_cannot_be_had_is_refused(words: list[str], sentence: str) -> None:
    pytest.importorskip("numba")
    pytest.importorskip("ctranslate2")
    is_refused(command("translate", "en-tr", "Hello.", *words), sentence)


def test_that_kernels_are_compiled_is_said_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.setattr("regard.fast.swift.is_compiled", lambda: False)
    monkeypatch.setattr("regard.task.forms.Forms.pays_to_compile", lambda self, count: True)
    monkeypatch.setattr("regard.task.forms.Forms.worker", lambda self, count: self.model)
    done = command("translate", model, stdin=b"red cat\n")
    assert done.err.startswith("Compiling for this CPU, once")
    assert done.err.count("\n") == 1


def test_ctranslate2_goes_on_drawing_where_lines_are_taken_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ctranslate2")
    monkeypatch.setattr("regard.cli.lines.CHUNK", 1)
    lines = b"See you soon.\nThe cat ate the mouse.\n"
    done = command("translate", "en-tr", "--engine", "ctranslate2", "--temperature", 0.5, stdin=lines)
    assert (done.code, done.out.count("\n")) == (0, 2)
