"""`regard generate`."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from regard.decode import DecodeConfig
from regard.task.language_modeling.pipeline import SAMPLING, TextGenerator
from tests.cli.refusal import assert_refused
from tests.task.language_modeling.test_pipeline import save_random_writer
from tests.task.small import Result, command, save_random_model, write_lines

GREEDY = DecodeConfig(beam_size=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_writer(tmp_path_factory.mktemp("models") / "writer")


@pytest.fixture(scope="module")
def generator(model: Path) -> TextGenerator:
    return TextGenerator.load(model)


def seeded(seed: int, **more: float) -> DecodeConfig:
    return SAMPLING.model_copy(update={"seed": seed, **more})


def test_one_prompt_is_streamed_with_its_continuation(model: Path, generator: TextGenerator) -> None:
    done = command("generate", model, "red cat", "--max-new-tokens", 12)
    assert (done.code, done.out, done.err) == (0, f"red cat{generator.generate('red cat', max_new_tokens=12)}\n", "")


def test_several_prompts_give_one_line_each(model: Path, generator: TextGenerator) -> None:
    continuations = generator.generate_batch(["red", "sun"], max_new_tokens=12)
    done = command("generate", model, "red", "sun", "--max-new-tokens", 12)
    assert done.out == "".join(f"{one.prompt}{one.text}\n" for (one,) in continuations)


def test_prompts_from_standard_input(model: Path) -> None:
    done = command("generate", model, "--max-new-tokens", 12, stdin=b"red\nsun\n")
    assert (done.code, done.out) == (0, command("generate", model, "red", "sun", "--max-new-tokens", 12).out)


def test_an_empty_line_is_an_empty_prompt(model: Path, generator: TextGenerator) -> None:
    assert command("generate", model, "--beam-size", 1, "--max-new-tokens", 6, stdin=b"\n").out == (
        f"{generator.generate('', max_new_tokens=6, decode=GREEDY)}\n"
    )


def test_no_input_gives_no_output(model: Path) -> None:
    assert command("generate", model, stdin=b"") == Result(0, "", "")


def test_prompts_from_files(model: Path, tmp_path: Path) -> None:
    first, second = write_lines(tmp_path / "one.txt", ["red"]), tmp_path / "two.txt.gz"
    second.write_bytes(gzip.compress(b"sun\n"))
    done = command("generate", model, "--file", first, "--file", second, "--max-new-tokens", 8)
    assert done.out == command("generate", model, "red", "sun", "--max-new-tokens", 8).out


def test_sampling_does_not_depend_on_chunks(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = b"red\nold\nbig cat\nsun\nsea\n"
    full = command("generate", model, "--max-new-tokens", 8, "--nbest", 2, stdin=lines).out
    monkeypatch.setattr("regard.cli.lines.CHUNK_LINES", 2)
    assert command("generate", model, "--max-new-tokens", 8, "--nbest", 2, stdin=lines).out == full


def test_line_breaks_are_escaped(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = command("generate", model, "red\nsun", "old", "--max-new-tokens", 3, "--beam-size", 1)
    assert done.out.startswith("red\\nsun")
    assert done.out.count("\n") == 2


@pytest.mark.parametrize("length", [1, 5])
def test_max_new_tokens(length: int, model: Path) -> None:
    facts = json.loads(command("generate", model, "red", "--max-new-tokens", length, "--json").out)
    assert len(facts["tokens"]) <= length


def test_nbest_samples_several_times(model: Path, generator: TextGenerator) -> None:
    lines = command("generate", model, "red", "--nbest", 4, "--max-new-tokens", 12).out.splitlines()
    assert lines == [f"red{generator.generate('red', max_new_tokens=12, decode=seeded(seed))}" for seed in range(4)]
    assert len(set(lines)) > 2


def test_nbest_with_beam_search(model: Path, generator: TextGenerator) -> None:
    ((*continuations,),) = generator.generate_batch(["red"], max_new_tokens=8, decode=DecodeConfig(beam_size=4))
    done = command("generate", model, "red", "--beam-size", 4, "--nbest", 2, "--max-new-tokens", 8)
    assert done.out.splitlines() == [f"red{one.text}" for one in continuations[:2]]


def test_nbest_above_the_beam_size_widens_the_beam(model: Path) -> None:
    assert command("generate", model, "red", "--beam-size", 1, "--nbest", 3, "--max-new-tokens", 8).out.count("\n") == 3


def test_missing_continuations_are_padded_with_empty_lines(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = TextGenerator.generate_batch
    monkeypatch.setattr(
        TextGenerator,
        "generate_batch",
        lambda self, *args, **kwargs: [candidates[:1] for candidates in real(self, *args, **kwargs)],
    )
    lines = command(
        "generate", model, "red", "sun", "--beam-size", 3, "--nbest", 3, "--max-new-tokens", 8
    ).out.splitlines()
    assert [line[:3] for line in lines] == ["red", "", "", "sun", "", ""]


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
        (["--beam-size", 1], {"beam_size": 1, "sample": False}),
        (["--beam-size", 3], {"beam_size": 3, "sample": False}),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_decoding_options_equal_the_library(
    option: list[Any], changes: dict[str, Any], model: Path, generator: TextGenerator
) -> None:
    decode = DecodeConfig.read(SAMPLING.plain() | changes)
    expected = generator.generate("big dog", max_new_tokens=15, decode=decode)
    assert command("generate", model, "big dog", "--max-new-tokens", 15, *option).out == f"big dog{expected}\n"


def test_seed(model: Path) -> None:
    first, second = (command("generate", model, "red", "--seed", 5, "--max-new-tokens", 20).out for _ in range(2))
    assert first == second
    assert first != command("generate", model, "red", "--seed", 6, "--max-new-tokens", 20).out


@pytest.mark.parametrize("more", [[], ["sun"]], ids=["as it comes", "line by line"])
def test_stop(more: list[str], model: Path) -> None:
    full = command("generate", model, "red", *more, "--beam-size", 1, "--max-new-tokens", 20).out.splitlines()[0]
    stop = full[5:7]
    done = command(
        "generate", model, "red", *more, "--beam-size", 1, "--max-new-tokens", 20, "--stop", "zzzz", "--stop", stop
    )
    assert done.out.splitlines()[0] == "red" + full[3:].split(stop)[0]


def test_require(model: Path) -> None:
    assert " sun" in command("generate", model, "red", "--require", "sun", "--beam-size", 2, "--max-new-tokens", 10).out


def test_forbid(model: Path) -> None:
    full = command("generate", model, "big", "--max-new-tokens", 20, "--beam-size", 1).out
    letter = full[3]
    done = command("generate", model, "big", "--max-new-tokens", 20, "--beam-size", 1, "--forbid", letter)
    assert letter not in done.out[3:]


def test_forbid_with_sampling(model: Path) -> None:
    done = command("generate", model, "big", "--max-new-tokens", 30, "--forbid", "e", "--forbid", "a")
    assert not {"e", "a"} & set(done.out[3:])


def test_output_file_equals_standard_output(model: Path, tmp_path: Path) -> None:
    done = command("generate", model, "red", "--max-new-tokens", 8, "--output", tmp_path / "out.txt")
    assert (done.code, done.out) == (0, "")
    printed = command("generate", model, "red", "--max-new-tokens", 8).out
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == printed


def test_interruption_keeps_the_partial_output(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.cli.lines.CHUNK_LINES", 1)
    real, calls = TextGenerator.generate_batch, []

    def interrupted(self: TextGenerator, *args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, *args, **kwargs)

    monkeypatch.setattr(TextGenerator, "generate_batch", interrupted)
    out = tmp_path / "out.txt"
    done = command("generate", model, "--max-new-tokens", 5, "--output", out, stdin=b"red\nsun\n")
    assert (done.code, done.out, out.exists(), done.err.count("\n")) == (130, "", False, 1)
    assert f"{out}.partial" in done.err
    assert (tmp_path / "out.txt.partial").read_text(encoding="utf-8").startswith("red")


def test_json(model: Path, generator: TextGenerator) -> None:
    facts = json.loads(command("generate", model, "red", "--max-new-tokens", 8, "--json").out)
    assert facts.keys() == {"prompt", "text", "logprob", "score", "tokens", "ended"}
    assert (facts["prompt"], facts["text"]) == ("red", generator.generate("red", max_new_tokens=8))
    assert "".join(token["text"] for token in facts["tokens"]) == facts["text"]
    total = sum(token["logprob"] for token in facts["tokens"])
    assert total == pytest.approx(facts["logprob"], abs=1e-3)


def test_json_with_nbest(model: Path) -> None:
    done = command("generate", model, "red", "sun", "--nbest", 2, "--max-new-tokens", 5, "--json")
    assert [json.loads(line)["prompt"] for line in done.out.splitlines()] == ["red", "red", "sun", "sun"]


def test_alternatives_in_json(model: Path) -> None:
    done = command("generate", model, "red", "--max-new-tokens", 5, "--json", "--alternatives", 3)
    for token in json.loads(done.out)["tokens"]:
        probabilities = [each["logprob"] for each in token["alternatives"]]
        assert len(probabilities) == 3
        assert probabilities == sorted(probabilities, reverse=True)


def test_json_has_no_alternatives_by_default(model: Path) -> None:
    done = command("generate", model, "red", "--max-new-tokens", 5, "--json")
    assert all(token.keys() == {"text", "logprob"} for token in json.loads(done.out)["tokens"])


def test_device_and_threads(model: Path) -> None:
    done = command("generate", model, "red", "--max-new-tokens", 5, "--device", "cpu", "--threads", 1)
    assert done == command("generate", model, "red", "--max-new-tokens", 5)


WRONG: dict[str, tuple[list[Any], list[str]]] = {
    "prompt and file": (["red", "--file", "in.txt"], ["PROMPT and --file"]),
    "beam search and sampling": (["red", "--beam-size", 2, "--temperature", 1], ["--beam-size"]),
    "beam search and a seed": (["red", "--beam-size", 1, "--seed", 1], ["--beam-size"]),
    "required while sampling": (["red", "--require", "sun"], ["add --beam-size 5"]),
    "required beyond the length": (["red", "--require", "sun", "--beam-size", 2, "--max-new-tokens", 2], ["at most 2"]),
    "required and forbidden": (["red", "--require", "sun", "--beam-size", 2, "--forbid", "un"], ["forbidden word"]),
    "an empty required word": (["red", "--require", " ", "--beam-size", 2], ["required word"]),
    "an empty forbidden word": (["red", "--forbid", ""], ["forbidden word"]),
    "top-p of 0": (["red", "--top-p", 0], ["top_p", "greater than 0"]),
    "repetition penalty of 0": (["red", "--repetition-penalty", 0], ["repetition", "greater than 0"]),
    "no such device": (["red", "--device", "abacus"], ["--device abacus"]),
    "alternatives and no JSON": (["red", "--alternatives", 2], ["--alternatives", "add --json"]),
    "no such file": (["--file", "none.txt"], ["none.txt"]),
    "no such folder to write to": (["red", "--output", "nowhere/out.txt"], ["nowhere/out.txt"]),
}


@pytest.mark.parametrize(("args", "parts"), WRONG.values(), ids=WRONG.keys())
def test_contradictory_options_are_refused(
    args: list[Any], parts: list[str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(command("generate", model, *args), *parts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--max-new-tokens", 0),
        ("--nbest", 0),
        ("--beam-size", 0),
        ("--temperature", -0.1),
        ("--temperature", "nan"),
        ("--top-k", 0),
        ("--top-p", 1.1),
        ("--min-p", -1),
        ("--repetition-penalty", -1),
        ("--seed", "often"),
        ("--alternatives", -1),
        ("--threads", 0),
    ],
)
def test_values_outside_their_range_are_refused_by_option(option: str, value: object, model: Path) -> None:
    done = command("generate", model, "red", option, value)
    assert (done.code, done.out, option in done.err, "Traceback" in done.err) == (2, "", True, False)


def test_invalid_utf8_is_refused(model: Path) -> None:
    assert_refused(command("generate", model, stdin=b"caf\xe9\n"), "Standard input is not UTF-8")


def test_translator_is_refused_with_its_command(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path / "translator")
    assert_refused(command("generate", folder, "red"), "regard translate")


def test_unknown_model_is_refused(tmp_path: Path) -> None:
    assert_refused(command("generate", tmp_path / "none", "red"), "none")
