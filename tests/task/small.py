"""Small corpora, small recipes and the command line for tests that train: a run takes about a second."""

import contextlib
import copy
import io
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import tomli_w
import torch

from regard.cli import main
from regard.cost import Hardware
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.data.tokenizers.training import TokenizerConfig, train_tokenizer
from regard.decode import DecodeConfig
from regard.model import EncoderDecoder
from regard.run import save_model
from regard.task.base import Recipe
from regard.task.recipe_io import apply_override
from regard.task.run import train
from regard.task.translation.recipe import TranslationRecipe
from regard.train.callback import Callback

WORDS = ("red", "old", "big", "cat", "dog", "sun", "sea", "man")
TRANSLATIONS = ("rot", "alt", "groß", "Katze", "Hund", "Sonne", "See", "Mann")


def sentences(count: int, seed: int = 1) -> list[str]:
    """Distinct sentences of two to five words."""
    rng = random.Random(seed)
    distinct: dict[str, None] = {}
    while len(distinct) < count:
        distinct[" ".join(rng.choices(WORDS, k=rng.randint(2, 5)))] = None
    return list(distinct)


def translated(sentence: str) -> str:
    """The word-by-word translation of a sentence."""
    return " ".join(TRANSLATIONS[WORDS.index(word)] for word in sentence.split())


def pairs(count: int, seed: int = 1) -> list[tuple[str, str]]:
    return [(sentence, translated(sentence)) for sentence in sentences(count, seed)]


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_table(path: Path, rows: Sequence[tuple[str, str]]) -> Path:
    """Pairs as a .tsv file."""
    return write_lines(path, ["\t".join(row) for row in rows])


def write_aligned(folder: Path, rows: Sequence[tuple[str, str]]) -> tuple[Path, Path]:
    """Pairs as two text files, line by line."""
    return (
        write_lines(folder / "train.en", [source for source, _ in rows]),
        write_lines(folder / "train.de", [target for _, target in rows]),
    )


def small_values(data: Mapping[str, Any], *changes: str) -> dict[str, Any]:
    """A small recipe for some data as a plain dict, with overrides of the form a.b=c."""
    stack = {"layers": 1, "attention": {"heads": 2}, "feed_forward": {"hidden": 32}}
    values: dict[str, Any] = {
        "description": "A small recipe to test with.",
        "data": copy.deepcopy(dict(data)),
        "tokenizer": {"kind": "character"},
        "model": {"width": 16, "encoder": stack, "decoder": stack},
        "train": {
            "steps": 12,
            "batch_tokens": 256,
            "length_buckets": 2,
            "log_every": 1,
            "validate_every": 6,
            "save_every": 4,
            "schedule": {"kind": "constant", "lr": 0.01, "warmup_steps": 0},
        },
        "decode": {"beam_size": 2, "max_length_offset": 4},
    }
    for change in changes:
        values = apply_override(values, change)
    return values


def small_recipe(train: Path, *changes: str) -> Recipe:
    """A small recipe for one file of pairs."""
    return TranslationRecipe.read(small_values({"train": [{"path": str(train)}]}, *changes))


def write_recipe_file(path: Path, data: Mapping[str, Any], *changes: str) -> Path:
    """A small recipe as a file."""
    path.write_text(tomli_w.dumps(small_values(data, *changes)), encoding="utf-8")
    return path


SEARCH = DecodeConfig(beam_size=3, max_length_ratio=1e-6, max_length_offset=12)
"""Three beams and at most twelve tokens, because an untrained model seldom predicts EOS."""


def small_tokenizer() -> TextTokenizer:
    return train_tokenizer(TokenizerConfig(kind="character"), sentences(20))


def random_model(vocab_size: int) -> EncoderDecoder:
    """A small untrained model with weights so large that each line gets its own translation."""
    torch.manual_seed(1)
    model = small_recipe(Path("unused.tsv")).make_model_config(vocab_size).build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
        model.embed_tokens.weight.normal_(0, 0.3)
    return model


def save_random_model(folder: Path) -> Path:
    """A run folder with a `random_model` that decodes with `SEARCH`."""
    tokenizer = small_tokenizer()
    origin = {"decode": SEARCH.plain()}
    return save_model(random_model(tokenizer.vocab_size), folder, tokenizer=tokenizer.tokenizer, origin=origin)


@contextlib.contextmanager
def quick_runs(cache: Path) -> Iterator[None]:
    """Give runs in this process a separate cache, and skip measuring the hardware, which takes half a second."""
    hardware = Hardware("a computer", float32_flops=1e11, bfloat16_flops=1e11, bandwidth=1e10, memory=1 << 34)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(cache))
        patch.setattr("regard.task.run.detect_hardware", lambda device: hardware)
        yield


class RecordingCallback(Callback):
    """Records what a run logs."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.losses: dict[int, float] = {}

    def log(self, message: str) -> None:
        self.messages.append(message)

    def on_train_metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.losses[step] = values["loss"]

    def on_validation_metrics(self, step: int, values: Mapping[str, float]) -> None: ...

    @property
    def text(self) -> str:
        return "\n".join(self.messages)


@dataclass(frozen=True)
class Result:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str


def command(*args: object, stdin: bytes = b"") -> Result:
    """Run `regard …` in this process, which is faster than starting another. Exceptions are not caught."""
    out, err = io.StringIO(), io.StringIO()
    wrapped = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    code: object = 0
    with (
        mock.patch.object(sys, "argv", ["regard", *map(str, args)]),
        mock.patch.object(sys, "stdin", wrapped),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ending:
            code = ending.code or 0
    assert isinstance(code, int)
    return Result(code, out.getvalue(), err.getvalue())


def child(*args: object, piped: bool = False) -> subprocess.Popen[str]:
    """Start `python -m regard …` as a child process with one thread."""
    return subprocess.Popen(
        [sys.executable, "-m", "regard", *map(str, args)],
        stdin=subprocess.PIPE if piped else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    )


class CrashError(Exception):
    """Ends a run as a crash would: without a last checkpoint."""


class CrashAtStep(RecordingCallback):
    """Crashes the run at a step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def on_train_metrics(self, step: int, values: Mapping[str, float]) -> None:
        super().on_train_metrics(step, values)
        if step == self.step:
            raise CrashError


def crashed_run(recipe: Recipe, folder: Path, step: int) -> Path:
    """The folder of a run that crashed at a step, so that its newest checkpoint is an earlier one."""
    with pytest.raises(CrashError):
        train(recipe, folder, callback=CrashAtStep(step))
    return folder
