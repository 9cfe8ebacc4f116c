"""Decoding that goes wrong: empty and endless outputs, and settings that do not exist."""

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.decode import DecodeConfig
from regard.task.translation.pipeline import LineTranslator, Translator
from regard.task.translation.result import Translation
from tests.cli.refusal import assert_refused
from tests.task.small import command, save_random_model, small_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("models") / "small")


class Changed:
    """A model with changed logits."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def change(self, tokens: Tensor, logits: Tensor) -> None:
        raise NotImplementedError

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits, state = self.model.step(tokens, state)
        logits = logits.clone()
        self.change(tokens, logits)
        return logits, state


class Speechless(Changed):
    """Ends at once; if it may not, it writes a space and ends then."""

    eos, space = small_tokenizer().eos, small_tokenizer().encode(" ")[0]

    def change(self, tokens: Tensor, logits: Tensor) -> None:
        assert self.eos is not None
        logits[..., self.space] += 100
        logits[..., self.eos] += 200


class Stuttering(Changed):
    """Repeats its last token without end."""

    def change(self, tokens: Tensor, logits: Tensor) -> None:
        logits.scatter_add_(2, tokens[:, :, None], torch.full_like(logits[:, :, :1], 100))
        logits[..., Speechless.eos] -= 1000


def translate(model: Any, folder: Path, **settings: Any) -> list[Translation]:
    translator = Translator.load(folder)
    lines = LineTranslator(model(translator.model), translator.source_tokenizer, translator.target_tokenizer)
    return [best for best, *_ in lines.translate(["red cat", "", "old dog"], DecodeConfig(**settings))]


EVERY_SEARCH = pytest.mark.parametrize(
    "settings", [{"beam_size": 1}, {"beam_size": 4}, {"beam_size": 4, "beam_groups": 2}], ids=str
)


@EVERY_SEARCH
def test_translation_of_a_text_is_not_empty(settings: dict[str, Any], folder: Path) -> None:
    found = translate(Speechless, folder, **settings)
    assert [bool(one.text.strip()) for one in found] == [True, False, True]
    found = translate(Speechless, folder, min_length=0, **settings)
    assert [one.tokens for one in found] == [(), (), ()]


@EVERY_SEARCH
def test_translation_does_not_loop_by_default(settings: dict[str, Any], folder: Path) -> None:
    def longest_run(tokens: tuple[int, ...]) -> int:
        return max(len(list(run)) for _, run in groupby(tokens))

    assert longest_run(translate(Stuttering, folder, max_repeats=0, **settings)[0].tokens) > 12
    assert longest_run(translate(Stuttering, folder, **settings)[0].tokens) == 6


COMMANDS = {
    "translate": ["translate", "MODEL", "red cat"],
    "score": ["score", "MODEL", "--source", "FILE", "--reference", "FILE"],
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("decode.beam_siz=2", ["decode.beam_siz", "beam_size"]),
        ("beam_siz=2", ["beam_siz=2", "decode.beam_size"]),
        ("train.steps=2", ["train.steps", "decode."]),
        ("decode.length_penalty.alfa=1", ["decode.length_penalty.alfa", "alpha"]),
        ("decode.min_length=-1", ["decode.min_length", "-1"]),
        ("decode.max_repeats=1", ["decode.max_repeats"]),
        ("decode.min_length", ["decode.min_length"]),
    ],
)
def test_unknown_setting_is_refused(name: str, override: str, parts: list[str], folder: Path, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("red cat\n", encoding="utf-8")
    arguments = [{"MODEL": folder, "FILE": tmp_path / "lines"}.get(each, each) for each in COMMANDS[name]]
    assert_refused(command(*arguments, "--set", override), *parts)


def test_settings_of_the_command_line_reach_the_search(folder: Path) -> None:
    def output(*options: object) -> dict[str, Any]:
        done = command("translate", folder, "red cat", "--json", *options)
        assert (done.code, done.err) == (0, "")
        ((found,),) = [one["translations"] for one in json.loads(done.out)["sentences"]]
        return dict(found)

    assert output("--set", "decode.beam_size=2") == output("--beam-size", 2) != output("--beam-size", 1)
    assert output("--set", "decode.beam_size=2", "--beam-size", 1) == output("--beam-size", 1)
    short = ("--set", "decode.max_length_ratio=0", "--set", "decode.max_length_offset=3")
    assert len(output(*short)["tokens"]) == 3
    assert len(output("--min-length", 9)["tokens"]) >= 9
    assert output("--min-length", 9) == output("--set", "decode.min_length=9")
    assert output("--no-repeat-ngram-size", 1) == output("--set", "decode.no_repeat_ngram_size=1")
    assert output("--length-penalty", 0)["score"] == output("--length-penalty", 0)["logprob"]
    assert output("--length-penalty", 1) == output("--set", "decode.length_penalty.alpha=1.0")
