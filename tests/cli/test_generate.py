"""`regard generate` as a person meets it."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from regard.decode import DecodeConfig
from regard.task import Generator, load_generator
from regard.task.generator import SAMPLING
from tests.task.small import Done, command, save_random_model, write_lines
from tests.task.test_generator import save_random_writer

GREEDY = DecodeConfig(beams=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_writer(tmp_path_factory.mktemp("models") / "writer")


@pytest.fixture(scope="module")
def generator(model: Path) -> Generator:
    return load_generator(model)


def seeded(seed: int, **more: float) -> DecodeConfig:
    return SAMPLING.model_copy(update={"seed": seed, **more})


def is_refused(done: Done, *words: str) -> None:
    """Code two, nothing written, and one line that has these words."""
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("regard: ")
    for word in words:
        assert word in done.err


# What is gone on with.


def test_one_prompt_is_written_with_what_follows(model: Path, generator: Generator) -> None:
    done = command("generate", model, "red cat", "--length", 12)
    assert (done.code, done.out, done.err) == (0, f"red cat{generator.generate('red cat', limit=12)}\n", "")


def test_several_prompts_become_a_line_each(model: Path, generator: Generator) -> None:
    found = generator.generate_all(["red", "sun"], limit=12)
    done = command("generate", model, "red", "sun", "--length", 12)
    assert done.out == "".join(f"{one.prompt}{one.text}\n" for (one,) in found)


def test_standard_input_is_a_prompt_a_line(model: Path) -> None:
    done = command("generate", model, "--length", 12, stdin=b"red\nsun\n")
    assert (done.code, done.out) == (0, command("generate", model, "red", "sun", "--length", 12).out)


def test_an_empty_line_is_an_empty_prompt(model: Path, generator: Generator) -> None:
    assert command("generate", model, "--beams", 1, "--length", 6, stdin=b"\n").out == (
        f"{generator.generate('', limit=6, decode=GREEDY)}\n"
    )


def test_no_input_gives_no_output(model: Path) -> None:
    assert command("generate", model, stdin=b"") == Done(0, "", "")


def test_files_hold_a_prompt_a_line_compressed_or_not(model: Path, tmp_path: Path) -> None:
    first, second = write_lines(tmp_path / "one.txt", ["red"]), tmp_path / "two.txt.gz"
    second.write_bytes(gzip.compress(b"sun\n"))
    done = command("generate", model, "--file", first, "--file", second, "--length", 8)
    assert done.out == command("generate", model, "red", "sun", "--length", 8).out


def test_prompts_taken_some_at_a_time_are_drawn_as_if_all_were_taken_at_once(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = b"red\nold\nbig cat\nsun\nsea\n"
    whole = command("generate", model, "--length", 8, "--count", 2, stdin=lines).out
    monkeypatch.setattr("regard.cli.lines.CHUNK", 2)
    assert command("generate", model, "--length", 8, "--count", 2, stdin=lines).out == whole


def test_a_line_break_in_a_text_does_not_break_its_line(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = command("generate", model, "red\nsun", "old", "--length", 3, "--beams", 1)
    assert done.out.startswith("red\\nsun")
    assert done.out.count("\n") == 2


# Options.


@pytest.mark.parametrize("length", [1, 5])
def test_the_length_is_kept(length: int, model: Path) -> None:
    facts = json.loads(command("generate", model, "red", "--length", length, "--json").out)
    assert len(facts["tokens"]) <= length


def test_a_count_gives_as_many_continuations_drawn_anew(model: Path, generator: Generator) -> None:
    lines = command("generate", model, "red", "--count", 4, "--length", 12).out.splitlines()
    assert lines == [f"red{generator.generate('red', limit=12, decode=seeded(seed))}" for seed in range(4)]
    assert len(set(lines)) > 2


def test_a_count_with_beams_gives_the_best_of_them(model: Path, generator: Generator) -> None:
    ((*found,),) = generator.generate_all(["red"], limit=8, decode=DecodeConfig(beams=4))
    done = command("generate", model, "red", "--beams", 4, "--count", 2, "--length", 8)
    assert done.out.splitlines() == [f"red{one.text}" for one in found[:2]]


def test_more_continuations_than_beams_make_the_search_wider(model: Path) -> None:
    assert command("generate", model, "red", "--beams", 1, "--count", 3, "--length", 8).out.count("\n") == 3


def test_fewer_continuations_than_were_asked_for_are_followed_by_empty_lines(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Generator.generate_all
    monkeypatch.setattr(
        Generator, "generate_all", lambda self, *given, **more: [each[:1] for each in real(self, *given, **more)]
    )
    lines = command("generate", model, "red", "sun", "--beams", 3, "--count", 3, "--length", 8).out.splitlines()
    assert [line[:3] for line in lines] == ["red", "", "", "sun", "", ""]


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
        (["--beams", 1], {"beams": 1, "sample": False}),
        (["--beams", 3], {"beams": 3, "sample": False}),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_each_setting_of_the_search_is_the_librarys(
    option: list[Any], changes: dict[str, Any], model: Path, generator: Generator
) -> None:
    decode = DecodeConfig.read(SAMPLING.plain() | changes)
    wanted = generator.generate("big dog", limit=15, decode=decode)
    assert command("generate", model, "big dog", "--length", 15, *option).out == f"big dog{wanted}\n"


def test_the_same_seed_writes_the_same(model: Path) -> None:
    first, second = (command("generate", model, "red", "--seed", 5, "--length", 20).out for _ in range(2))
    assert first == second
    assert first != command("generate", model, "red", "--seed", 6, "--length", 20).out


@pytest.mark.parametrize("more", [[], ["sun"]], ids=["as it comes", "line by line"])
def test_a_text_ends_before_a_stop(more: list[str], model: Path) -> None:
    whole = command("generate", model, "red", *more, "--beams", 1, "--length", 20).out.splitlines()[0]
    stop = whole[5:7]
    done = command("generate", model, "red", *more, "--beams", 1, "--length", 20, "--stop", "zzzz", "--stop", stop)
    assert done.out.splitlines()[0] == "red" + whole[3:].split(stop)[0]


def test_a_required_word_is_written(model: Path) -> None:
    assert " sun" in command("generate", model, "red", "--require", "sun", "--beams", 2, "--length", 10).out


def test_a_forbidden_word_is_not_written(model: Path) -> None:
    whole = command("generate", model, "big", "--length", 20, "--beams", 1).out
    letter = whole[3]
    done = command("generate", model, "big", "--length", 20, "--beams", 1, "--forbid", letter)
    assert letter not in done.out[3:]


def test_forbidden_words_are_minded_while_drawing(model: Path) -> None:
    done = command("generate", model, "big", "--length", 30, "--forbid", "e", "--forbid", "a")
    assert not {"e", "a"} & set(done.out[3:])


def test_an_output_file_has_what_would_have_been_printed(model: Path, tmp_path: Path) -> None:
    done = command("generate", model, "red", "--length", 8, "--output", tmp_path / "out.txt")
    assert (done.code, done.out) == (0, "")
    printed = command("generate", model, "red", "--length", 8).out
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == printed


def test_what_was_written_before_an_interruption_is_kept_and_named(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.cli.lines.CHUNK", 1)
    real, calls = Generator.generate_all, []

    def interrupted(self: Generator, *given: Any, **more: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, *given, **more)

    monkeypatch.setattr(Generator, "generate_all", interrupted)
    out = tmp_path / "out.txt"
    done = command("generate", model, "--length", 5, "--output", out, stdin=b"red\nsun\n")
    assert (done.code, done.out, out.exists(), done.err.count("\n")) == (130, "", False, 1)
    assert f"{out}.partial" in done.err
    assert (tmp_path / "out.txt.partial").read_text(encoding="utf-8").startswith("red")


def test_json_has_the_text_its_scores_and_its_tokens(model: Path, generator: Generator) -> None:
    facts = json.loads(command("generate", model, "red", "--length", 8, "--json").out)
    assert facts.keys() == {"prompt", "text", "log_probability", "score", "tokens", "ended"}
    assert (facts["prompt"], facts["text"]) == ("red", generator.generate("red", limit=8))
    assert "".join(token["text"] for token in facts["tokens"]) == facts["text"]
    total = sum(token["log_probability"] for token in facts["tokens"])
    assert total == pytest.approx(facts["log_probability"], abs=1e-3)


def test_json_has_a_line_for_each_continuation(model: Path) -> None:
    done = command("generate", model, "red", "sun", "--count", 2, "--length", 5, "--json")
    assert [json.loads(line)["prompt"] for line in done.out.splitlines()] == ["red", "red", "sun", "sun"]


def test_alternatives_stand_beside_every_token_best_first(model: Path) -> None:
    done = command("generate", model, "red", "--length", 5, "--json", "--alternatives", 3)
    for token in json.loads(done.out)["tokens"]:
        chances = [each["log_probability"] for each in token["alternatives"]]
        assert len(chances) == 3
        assert chances == sorted(chances, reverse=True)


def test_without_being_asked_for_there_are_no_alternatives(model: Path) -> None:
    done = command("generate", model, "red", "--length", 5, "--json")
    assert all(token.keys() == {"text", "log_probability"} for token in json.loads(done.out)["tokens"])


def test_a_device_and_threads_may_be_named(model: Path) -> None:
    done = command("generate", model, "red", "--length", 5, "--device", "cpu", "--threads", 1)
    assert done == command("generate", model, "red", "--length", 5)


# What a person got wrong.


WRONG: dict[str, tuple[list[Any], list[str]]] = {
    "prompt and file": (["red", "--file", "in.txt"], ["PROMPT and --file"]),
    "beams and chance": (["red", "--beams", 2, "--temperature", 1], ["--beams"]),
    "beams and a seed": (["red", "--beams", 1, "--seed", 1], ["--beams"]),
    "required while drawing": (["red", "--require", "sun"], ["add --beams 5"]),
    "required beyond the length": (["red", "--require", "sun", "--beams", 2, "--length", 2], ["at most 2"]),
    "required and forbidden": (["red", "--require", "sun", "--beams", 2, "--forbid", "un"], ["must not contain"]),
    "an empty required word": (["red", "--require", " ", "--beams", 2], ["A required word is empty"]),
    "an empty forbidden word": (["red", "--forbid", ""], ["A forbidden word is empty"]),
    "no share at all": (["red", "--top-p", 0], ["top_p", "greater than 0"]),
    "no repetition factor": (["red", "--repetition", 0], ["repetition", "greater than 0"]),
    "no such device": (["red", "--device", "abacus"], ["--device abacus"]),
    "alternatives and no JSON": (["red", "--alternatives", 2], ["--alternatives", "add --json"]),
    "no such file": (["--file", "none.txt"], ["none.txt: there is no such file"]),
    "no such folder to write to": (["red", "--output", "nowhere/out.txt"], ["nowhere/out.txt could not be written"]),
}


@pytest.mark.parametrize(("words", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_is_a_line_and_code_two(
    words: list[Any], sentence: list[str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    is_refused(command("generate", model, *words), *sentence)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--length", 0),
        ("--count", 0),
        ("--beams", 0),
        ("--temperature", -0.1),
        ("--temperature", "nan"),
        ("--top-k", 0),
        ("--top-p", 1.1),
        ("--min-p", -1),
        ("--repetition", -1),
        ("--seed", "often"),
        ("--alternatives", -1),
        ("--threads", 0),
    ],
)
def test_values_outside_their_range_are_refused_by_option(option: str, value: object, model: Path) -> None:
    done = command("generate", model, "red", option, value)
    assert (done.code, done.out, option in done.err, "Traceback" in done.err) == (2, "", True, False)


def test_standard_input_that_is_no_utf8_is_a_line_and_code_two(model: Path) -> None:
    is_refused(command("generate", model, stdin=b"caf\xe9\n"), "Standard input is not UTF-8")


def test_a_translator_is_named_with_the_command_for_it(tmp_path: Path) -> None:
    place = save_random_model(tmp_path / "translator")
    is_refused(command("generate", place, "red"), str(place), "regard translate")


def test_an_unknown_model_is_named(tmp_path: Path) -> None:
    is_refused(command("generate", tmp_path / "none", "red"), "there is no such folder")
