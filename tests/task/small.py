"""Small corpora, small recipes and the command line, for tests that train: a run takes about a second."""

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
from regard.data.tokenizer import TextTokenizer
from regard.data.tokenizer_training import TokenizerConfig, train_tokenizer
from regard.decode import DecodeConfig
from regard.model import EncoderDecoder
from regard.run import save
from regard.task import Recipe
from regard.task.reading import changed
from regard.task.translation_recipe import TranslationRecipe

WORDS = ("red", "old", "big", "cat", "dog", "sun", "sea", "man")
OTHERS = ("rot", "alt", "groß", "Katze", "Hund", "Sonne", "See", "Mann")


def sentences(count: int, seed: int = 1) -> list[str]:
    """Different sentences of two to five words, no two with the same letters."""
    dice = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[" ".join(dice.choices(WORDS, k=dice.randint(2, 5)))] = None
    return list(found)


def translated(sentence: str) -> str:
    """The sentence in the other language, word by word."""
    return " ".join(OTHERS[WORDS.index(word)] for word in sentence.split())


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
    """The plain values of a small recipe over some data, with changes of the form a.b=c."""
    stack = {"layers": 1, "attention": {"heads": 2}, "feed_forward": {"hidden": 32}}
    values: dict[str, Any] = {
        "description": "A small recipe to test with.",
        "data": copy.deepcopy(dict(data)),
        "tokenizer": {"kind": "character"},
        "model": {"width": 16, "encoder": stack, "decoder": stack},
        "train": {
            "steps": 12,
            "tokens": 256,
            "shapes": 2,
            "log_every": 1,
            "validate_every": 6,
            "save_every": 4,
            "schedule": {"kind": "constant", "rate": 0.01, "warmup": 0},
        },
        "decode": {"beams": 2, "longest_extra": 4},
    }
    for change in changes:
        values = changed(values, change)
    return values


def small_recipe(train: Path, *changes: str) -> Recipe:
    """A small recipe over one file of pairs."""
    return TranslationRecipe.read(small_values({"train": [{"path": str(train)}]}, *changes))


def write_recipe_file(path: Path, data: Mapping[str, Any], *changes: str) -> Path:
    """A small recipe as a file."""
    path.write_text(tomli_w.dumps(small_values(data, *changes)), encoding="utf-8")
    return path


SEARCH = DecodeConfig(beams=3, longest_factor=1e-6, longest_extra=12)
"""Three beams, and at most twelve tokens, however long the source is: an untrained model seldom comes to an end."""


def small_tokenizer() -> TextTokenizer:
    return train_tokenizer(TokenizerConfig(kind="character"), sentences(20))


def random_model(vocabulary: int) -> EncoderDecoder:
    """A small untrained model, its weights so large that each line gets an answer of its own."""
    torch.manual_seed(1)
    model = small_recipe(Path("unused.tsv")).model_settings(vocabulary).build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
        model.vocabulary.weight.normal_(0, 0.3)
    return model


def save_random_model(folder: Path) -> Path:
    """A run folder with such a model, made for `SEARCH`."""
    tokenizer = small_tokenizer()
    origin = {"decode": SEARCH.plain()}
    return save(random_model(tokenizer.vocabulary), folder, tokenizer=tokenizer.tokenizer, origin=origin)


@contextlib.contextmanager
def quick_runs(cache: Path) -> Iterator[None]:
    """A cache of their own for runs in this process, and no half second to time what this machine can do."""
    known = Hardware("a computer", fp32=1e11, bf16=1e11, bandwidth=1e10, memory=1 << 34)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(cache))
        patch.setattr("regard.task.training.this_hardware", lambda device: known)
        yield


class Heard:
    """Remembers all that a run says."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.losses: dict[int, float] = {}

    def say(self, sentence: str) -> None:
        self.said.append(sentence)

    def stepped(self, step: int, values: Mapping[str, float]) -> None:
        self.losses[step] = values["loss"]

    def validated(self, step: int, values: Mapping[str, float]) -> None: ...

    @property
    def text(self) -> str:
        return "\n".join(self.said)


@dataclass(frozen=True)
class Done:
    """What came of a command."""

    code: int
    out: str
    err: str


def command(*words: object, stdin: bytes = b"") -> Done:
    """`regard …` in this process, which spares the start of another. Whatever `main` does not catch is raised."""
    out, err = io.StringIO(), io.StringIO()
    given = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    code: object = 0
    with (
        mock.patch.object(sys, "argv", ["regard", *map(str, words)]),
        mock.patch.object(sys, "stdin", given),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as left:
            code = left.code or 0
    assert isinstance(code, int)
    return Done(code, out.getvalue(), err.getvalue())


def child(*words: object, piped: bool = False) -> subprocess.Popen[str]:
    """`python -m regard …` as a process of its own, on one thread."""
    return subprocess.Popen(
        [sys.executable, "-m", "regard", *map(str, words)],
        stdin=subprocess.PIPE if piped else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    )
