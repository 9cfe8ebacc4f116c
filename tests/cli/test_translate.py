"""`regard translate`."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.data.tokenizers.training import TokenizerConfig, train_tokenizer
from regard.decode import DecodeConfig
from regard.run import load_model, pretrained_models, save_model
from regard.task.translation.pipeline import Translator
from tests.cli.refusal import assert_refused
from tests.task.small import SEARCH, command, random_model, save_random_model, sentences, write_lines


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("models") / "small")


def expected(model: Path, *lines: str, beam_size: int | None = None) -> str:
    """The library's translations of some lines."""
    translator = Translator.load(model)
    return "".join(f"{translator.translate(line, beam_size=beam_size)}\n" for line in lines)


def test_pretrained_model_translates_from_a_shell() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "regard", "translate", "en-tr", "The cat ate the mouse.", "--threads", "1"],
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "Kedi fareyi yedi.\n", "")


def test_each_text_gives_one_line(model: Path) -> None:
    done = command("translate", model, "red cat", "sun")
    assert (done.code, done.out, done.err) == (0, expected(model, "red cat", "sun"), "")


def test_standard_input(model: Path) -> None:
    done = command("translate", model, stdin=b"red cat\nsun\n")
    assert (done.code, done.out) == (0, expected(model, "red cat", "sun"))


def test_last_line_needs_no_line_break(model: Path) -> None:
    assert command("translate", model, stdin=b"red cat\r\nsun").out == expected(model, "red cat", "sun")


def test_empty_lines_are_kept(model: Path) -> None:
    assert command("translate", model, stdin=b"red cat\n\nsun\n").out == expected(model, "red cat", "", "sun")


def test_no_input_gives_no_output(model: Path) -> None:
    assert command("translate", model, stdin=b"").out == ""


def test_file(model: Path, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in.txt", ["red cat", "sun"])
    assert command("translate", model, "--file", path).out == expected(model, "red cat", "sun")


def test_several_files(model: Path, tmp_path: Path) -> None:
    first, second = write_lines(tmp_path / "one.txt", ["red cat"]), tmp_path / "two.txt.gz"
    second.write_bytes(gzip.compress(b"sun\n"))
    assert command("translate", model, "--file", first, "--file", second).out == expected(model, "red cat", "sun")


def test_chunks_keep_their_order(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.cli.lines.CHUNK_LINES", 2)
    lines = ["red", "old", "big cat", "sun", "sea"]
    path = write_lines(tmp_path / "in.txt", lines)
    assert command("translate", model, "--file", path, "--beam-size", 1).out == expected(model, *lines, beam_size=1)


def test_output_file_equals_standard_output(model: Path, tmp_path: Path) -> None:
    done = command("translate", model, "red cat", "sun", "--output", tmp_path / "out.txt")
    assert (done.code, done.out) == (0, "")
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == expected(model, "red cat", "sun")


def test_output_file_in_a_missing_folder_is_refused(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "out.txt"
    done = command("translate", model, "red", "--output", path)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert str(path) in done.err


def test_existing_output_file_is_kept_on_errors(model: Path, tmp_path: Path) -> None:
    write_lines(tmp_path / "out.txt", ["old"])
    assert command("translate", model, "--output", tmp_path / "out.txt", stdin=b"red\n\xff\n").code == 2
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == "old\n"


@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_beam_size(beam_size: int, model: Path) -> None:
    done = command("translate", model, "old cat sea", "--beam-size", beam_size)
    assert done.out == expected(model, "old cat sea", beam_size=beam_size)


def test_nbest(model: Path) -> None:
    (result,) = Translator.load(model).translate_batch(["old cat sea"])
    assert command("translate", model, "old cat sea", "--nbest", 3).out.splitlines() == [
        result.texts[number] for number in range(3)
    ]


def test_nbest_above_the_beam_size_widens_the_beam(model: Path) -> None:
    assert command("translate", model, "old cat sea", "--beam-size", 1, "--nbest", 4).out.count("\n") == 4


def test_nbest_of_an_empty_line_is_as_many_empty_lines(model: Path) -> None:
    done = command("translate", model, "--nbest", 3, stdin=b"red cat\n\nsun\n")
    first, last = (command("translate", model, text, "--nbest", 3).out for text in ("red cat", "sun"))
    assert done.out == f"{first}\n\n\n{last}"


def test_missing_translations_are_padded_with_empty_lines(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beam groups may find the same translation."""
    real = Translator.translate_sentences

    def fewer(self: Translator, *args: Any, **kwargs: Any) -> Any:
        return [result[: number + 1] for number, result in enumerate(real(self, *args, **kwargs))]

    monkeypatch.setattr(Translator, "translate_sentences", fewer)
    lines = command("translate", model, "red cat", "sun", "--nbest", 3).out.splitlines()
    assert [bool(line) for line in lines] == [True, False, False, True, True, False]


def test_json_is_not_padded(model: Path) -> None:
    lines = command("translate", model, "--json", "--nbest", 3, stdin=b"red cat\n\n").out.splitlines()
    first, second = (json.loads(line)["sentences"] for line in lines)
    assert ([len(one["translations"]) for one in first], second) == ([3], [])


def test_json_has_one_object_per_line(model: Path) -> None:
    lines = command("translate", model, "--json", stdin=b"red cat. Old dog.\n\nsun\n").out.splitlines()
    facts = [json.loads(line) for line in lines]
    assert [one["source"] for one in facts] == ["red cat. Old dog.", "", "sun"]
    assert [[each["source"] for each in one["sentences"]] for one in facts] == [["red cat.", "Old dog."], [], ["sun"]]


def test_json_contains_the_plain_translation(model: Path) -> None:
    shown = json.loads(command("translate", model, "red cat. Old dog.", "--json").out)["translation"]
    assert f"{shown}\n" == command("translate", model, "red cat. Old dog.").out


def test_json_has_scores(model: Path) -> None:
    facts = json.loads(command("translate", model, "old cat sea", "--json", "--nbest", 3).out)
    ((sentence),) = facts["sentences"]
    result = sentence["translations"]
    assert all(one.keys() == {"text", "score", "logprob", "tokens", "ended"} for one in result)
    scores = [one["score"] for one in result]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)


def test_json_does_not_escape_letters() -> None:
    assert "ı" in command("translate", "en-tr", "I saw the woman.", "--json").out


def test_invalid_utf8_on_standard_input_is_refused(model: Path) -> None:
    done = command("translate", model, stdin=b"caf\xe9\n")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "Standard input is not UTF-8" in done.err


def test_invalid_utf8_in_a_file_is_refused_with_its_line(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"red\ncaf\xe9\n")
    done = command("translate", model, "--file", path)
    assert done.code == 2
    assert f"regard: {path}, line 2: byte 4" in done.err


def test_missing_file_is_refused(model: Path, tmp_path: Path) -> None:
    done = command("translate", model, "--file", tmp_path / "none.txt")
    assert_refused(done, str(tmp_path / "none.txt"))


def test_unknown_model_is_refused_with_the_pretrained() -> None:
    done = command("translate", "en-xx", "red")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("regard: en-xx: ")
    assert all(name in done.err for name in pretrained_models())


def test_text_and_file_together_are_refused(model: Path, tmp_path: Path) -> None:
    done = command("translate", model, "red", "--file", tmp_path / "in.txt")
    assert (done.code, done.err) == (2, "regard: TEXT and --file both name what to translate; give one of the two.\n")


@pytest.mark.parametrize("option", ["--beam-size", "--nbest"])
def test_numbers_below_1_are_refused(option: str, model: Path) -> None:
    done = command("translate", model, "red", option, 0)
    assert (done.code, option in done.err, "Traceback" in done.err) == (2, True, False)


def test_prefix(model: Path) -> None:
    done = command("translate", model, "old cat sea", "--prefix", "sun")
    assert done.out == f"{Translator.load(model).translate('old cat sea', prefix='sun')}\n"
    assert done.out.startswith("sun")


def test_prefix_of_every_line(model: Path) -> None:
    lines = command("translate", model, "--prefix", "sun", stdin=b"red\n\nold\n").out.splitlines()
    assert [line[:3] for line in lines] == ["sun", "", "sun"]


def test_require(model: Path) -> None:
    done = command("translate", model, "old cat sea", "--require", "sun", "--require", "red")
    assert " sun" in done.out
    assert " red" in done.out


def test_forbid() -> None:
    assert "fareyi" in command("translate", "en-tr", "The cat ate the mouse.").out
    done = command("translate", "en-tr", "The cat ate the mouse.", "--forbid", "fareyi")
    assert (done.code, "fareyi" in done.out) == (0, False)


def test_example_of_the_readme() -> None:
    done = command("translate", "en-tr", "The cat ate the mouse.", "--require", "kedi", "--forbid", "fare")
    assert done.code == 0
    assert done.out.startswith("Kedi ")
    assert "fare" not in done.out.lower()


def test_prefix_and_require_with_the_pretrained_model() -> None:
    done = command("translate", "en-tr", "The cat ate the mouse.", "--prefix", "Fareyi", "--require", "yedi")
    assert done.out.startswith("Fareyi")
    assert " yedi" in done.out


def test_beam_groups(model: Path) -> None:
    decode = DecodeConfig.read(SEARCH.plain() | {"beam_size": 4, "beam_groups": 2})
    (result,) = Translator.load(model).translate_batch(["old cat sea"], decode)
    done = command("translate", model, "old cat sea", "--beam-groups", 2, "--beam-size", 4, "--nbest", 4)
    assert done.out.splitlines() == list(result.texts)


def test_beam_size_is_rounded_up_to_groups(model: Path) -> None:
    done = command("translate", model, "old cat sea", "--beam-groups", 2, "--beam-size", 3, "--nbest", 3)
    assert (done.code, done.out.count("\n")) == (0, 3)


@pytest.mark.parametrize(
    ("option", "changes"),
    [
        (["--temperature", 1.7], {"temperature": 1.7}),
        (["--temperature", 0], {"temperature": 0.0}),
        (["--top-k", 2], {"top_k": 2}),
        (["--top-p", 0.5], {"top_p": 0.5}),
        (["--min-p", 0.3], {"min_p": 0.3}),
        (["--repetition-penalty", 1.5], {"repetition_penalty": 1.5}),
        (["--seed", 9], {"seed": 9}),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_sampling_options_equal_the_library(option: list[Any], changes: dict[str, Any], model: Path) -> None:
    decode = DecodeConfig.read(SEARCH.plain() | {"beam_size": 1, "sample": True} | changes)
    result = Translator.load(model).translate_batch(["old cat sea", "sun"], decode)
    done = command("translate", model, "old cat sea", "sun", *option)
    assert done.out == "".join(f"{one.text}\n" for one in result)


def test_seed() -> None:
    first, again, other = (
        command("translate", "en-tr", "We will meet in front of the museum.", "--temperature", 2, "--seed", seed).out
        for seed in (1, 1, 2)
    )
    assert first == again != other


@pytest.fixture(scope="module")
def sibling(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model with the same tokenizer."""
    loaded = load_model(model)
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return save_model(loaded.model, tmp_path_factory.mktemp("models") / "sibling", tokenizer=loaded.tokenizer)


def test_ensemble(model: Path, sibling: Path) -> None:
    joined = Translator.load(model).ensemble_with([Translator.load(sibling)])
    done = command("translate", model, "old cat sea", "--ensemble", sibling, "--json")
    (sentence,) = json.loads(done.out)["sentences"]
    ((best, *_),) = joined.translate_sentences(["old cat sea"])
    assert sentence["translations"][0]["text"] == best.text
    assert sentence["translations"][0]["logprob"] == pytest.approx(best.logprob, abs=1e-3)


def test_ensemble_with_another_tokenizer_is_refused(model: Path) -> None:
    assert_refused(command("translate", model, "red", "--ensemble", "en-tr"), "tokenizers")


def test_ensemble_with_a_missing_model_is_refused(model: Path, tmp_path: Path) -> None:
    assert_refused(command("translate", model, "red", "--ensemble", tmp_path / "none"), "none")


def test_json_has_token_logprobs(model: Path) -> None:
    (sentence,) = json.loads(command("translate", model, "old cat sea", "--json").out)["sentences"]
    (best,) = sentence["translations"]
    total = sum(token["logprob"] for token in best["tokens"])
    assert total == pytest.approx(best["logprob"], abs=2e-3)
    assert all(token.keys() == {"text", "logprob"} for token in best["tokens"])


def test_alternatives_in_json(model: Path) -> None:
    done = command("translate", model, "old cat sea", "--json", "--alternatives", 3)
    ((best,),) = [sentence["translations"] for sentence in json.loads(done.out)["sentences"]]
    for token in best["tokens"]:
        probabilities = [each["logprob"] for each in token["alternatives"]]
        assert len(probabilities) == 3
        assert probabilities == sorted(probabilities, reverse=True)


def test_json_of_an_empty_line(model: Path) -> None:
    facts = json.loads(command("translate", model, "--json", stdin=b"\n").out)
    assert facts == {"source": "", "translation": "", "sentences": []}


@pytest.fixture
def interrupted_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Raises KeyboardInterrupt at the n-th line."""

    def at(number: int) -> None:
        monkeypatch.setattr("regard.cli.lines.CHUNK_LINES", 1)
        real, calls = Translator.translate_batch, []

        def translate_batch(self: Translator, *args: Any, **kwargs: Any) -> Any:
            calls.append(args)
            if len(calls) == number:
                raise KeyboardInterrupt
            return real(self, *args, **kwargs)

        monkeypatch.setattr(Translator, "translate_batch", translate_batch)

    return at


def test_interruption_keeps_the_partial_output(
    model: Path, tmp_path: Path, interrupted_at: Callable[[int], None]
) -> None:
    interrupted_at(3)
    out = tmp_path / "out.txt"
    done = command("translate", model, "--output", out, stdin=b"red cat\nsun\nsea\n")
    assert (done.code, done.out, out.exists()) == (130, "", False)
    assert done.err == f"Stopped: 2 lines are in {out}.partial.\n"
    partial = (tmp_path / "out.txt.partial").read_text(encoding="utf-8")
    assert partial == expected(model, "red cat", "sun")


def test_interruption_keeps_an_existing_output_file(
    model: Path, tmp_path: Path, interrupted_at: Callable[[int], None]
) -> None:
    interrupted_at(2)
    out = write_lines(tmp_path / "out.txt", ["old"])
    assert command("translate", model, "--output", out, stdin=b"red cat\nsun\n").code == 130
    assert out.read_text(encoding="utf-8") == "old\n"


def test_interruption_before_the_first_line_leaves_no_file(
    model: Path, tmp_path: Path, interrupted_at: Callable[[int], None]
) -> None:
    interrupted_at(1)
    done = command("translate", model, "--output", tmp_path / "out.txt", stdin=b"red cat\n")
    assert list(tmp_path.iterdir()) == []
    assert (done.code, ".partial" in done.err) == (130, False)


CONTRADICTIONS: dict[str, tuple[list[Any], list[str]]] = {
    "sampling and beams": (
        ["--temperature", 1, "--beam-size", 2],
        ["leave out --beam-size, --nbest and --beam-groups"],
    ),
    "sampling and nbest": (["--seed", 1, "--nbest", 2], ["leave out --beam-size, --nbest and --beam-groups"]),
    "sampling and groups": (["--top-k", 5, "--beam-groups", 2], ["leave out --beam-size, --nbest and --beam-groups"]),
    "sampling and a required word": (["--temperature", 1, "--require", "sun"], ["Required words"]),
    "groups and a required word": (["--beam-groups", 3, "--require", "sun"], ["Required words"]),
    "required and forbidden": (["--require", "sun", "--forbid", "un"], ["required word", "forbidden word"]),
    "prefix and forbidden": (["--prefix", "sun", "--forbid", "un"], ["prefix", "forbidden word"]),
    "prefix longer than the output": (["--prefix", "sun" * 9], ["27 tokens", "at most 12"]),
    "required words longer than the output": (["--require", "sun" * 9], ["27 tokens", "at most 12"]),
    "an empty required word": (["--require", ""], ["required word"]),
    "an empty forbidden word": (["--forbid", " "], ["forbidden word"]),
    "top-p of 0": (["--top-p", 0], ["top_p", "greater than 0"]),
    "no such device": (["--device", "abacus"], ["--device abacus"]),
    "alternatives and no JSON": (["--alternatives", 2], ["--alternatives", "add --json"]),
}


@pytest.mark.parametrize(("args", "parts"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_contradictory_options_are_refused(args: list[Any], parts: list[str], model: Path) -> None:
    assert_refused(command("translate", model, "red", *args), *parts)


@pytest.mark.parametrize("option", ["--prefix", "--require"])
def test_prefix_and_require_are_refused_for_several_sentences(option: str, model: Path) -> None:
    assert_refused(command("translate", model, "Red cat. Old dog.", option, "sun"), "has 2")


@pytest.mark.parametrize("option", ["--prefix", "--require", "--forbid"])
def test_unknown_words_are_refused(option: str, tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="word"), sentences(20))
    folder = save_model(random_model(tokenizer.vocab_size), tmp_path / "words", tokenizer=tokenizer.tokenizer)
    assert_refused(command("translate", folder, "red", option, "zebra"), "'zebra'")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--beam-size", 0),
        ("--beam-groups", 1),
        ("--temperature", -0.1),
        ("--top-k", 0),
        ("--top-p", 1.1),
        ("--min-p", -1),
        ("--repetition-penalty", -1),
        ("--seed", "often"),
        ("--alternatives", -1),
        ("--threads", 0),
        ("--engine", "steam"),
    ],
)
def test_values_out_of_range_are_refused(option: str, value: object, model: Path) -> None:
    done = command("translate", model, "red", option, value)
    assert (done.code, done.out, option in done.err, "Traceback" in done.err) == (2, "", True, False)


@pytest.mark.parametrize("option", ["--fused", "--no-fused"])
def test_fused_kernels_give_the_same_lines(option: str) -> None:
    pytest.importorskip("numba")
    lines = "The cat ate the mouse.\nSee you soon.\n\nI am a student.\n"
    done = command("translate", "en-tr", option, stdin=lines.encode())
    assert (done.code, done.out) == (0, "Kedi fareyi yedi.\nGörüşürüz.\n\nBen bir öğrenciyim.\n")


def test_int8() -> None:
    pytest.importorskip("numba")
    done = command("translate", "en-tr", "The cat ate the mouse.", "--dtype", "int8")
    assert (done.code, done.out) == (0, "Kedi fareyi yedi.\n")


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--dtype", "bfloat16", "--device", "cpu"], "bfloat16"),
        (["--dtype", "int8", "--no-fused"], "--no-fused"),
        (["--dtype", "int8", "--engine", "ctranslate2"], "--dtype"),
        (["--dtype", "int8", "--ensemble", "en-tr"], "--ensemble"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ",
)
def test_unavailable_dtypes_are_refused(args: list[str], parts: str) -> None:
    pytest.importorskip("numba")
    pytest.importorskip("ctranslate2")
    assert_refused(command("translate", "en-tr", "Hello.", *args), parts)


def test_compilation_is_announced_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.setattr("regard.fused.cpu_decoder.is_compiled", lambda: False)
    monkeypatch.setattr("regard.task.backend.Backend.uses_fused", lambda self, count: True)
    monkeypatch.setattr("regard.task.backend.Backend.decoder_model", lambda self, count: self.model)
    done = command("translate", model, stdin=b"red cat\n")
    assert done.err.startswith("Compiling fused CPU kernels, once")
    assert done.err.count("\n") == 1


def test_ctranslate2_samples_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ctranslate2")
    monkeypatch.setattr("regard.cli.lines.CHUNK_LINES", 1)
    lines = b"See you soon.\nThe cat ate the mouse.\n"
    done = command("translate", "en-tr", "--engine", "ctranslate2", "--temperature", 0.5, stdin=lines)
    assert (done.code, done.out.count("\n")) == (0, 2)
