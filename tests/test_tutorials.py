"""The tutorials run: every file, command and piece of Python on a page, in order, in an empty folder.

A page marks what cannot run here with `<!-- not run: REASON -->` before the block, and a block that holds a file with
`<!-- file: NAME -->`. Training is cut to a few steps, and samples to a few lines.
"""

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from tests.interop.huggingface.texts import ENGLISH
from tests.task.small import command

pytestmark = pytest.mark.start_early(11)

TUTORIALS = sorted((Path(__file__).parent.parent / "docs" / "tutorials").glob("*.md"))
MAX_LINES = 40
"""Longer samples are cut to this many lines."""


class Block(NamedTuple):
    """A code block of a page."""

    marker: str
    value: str
    language: str
    text: str


def read_blocks(page: Path) -> Iterator[Block]:
    pattern = r"(?:^ *<!-- (file|not run): (.+?) -->\n)?^( *)```(\w+)\n(.*?)^\3```"
    for found in re.finditer(pattern, page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        yield Block(found[1] or "", found[2] or "", found[4], textwrap.dedent(found[5]))


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def folder(tmp_path: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to follow a tutorial in, with a command `regard` for the lines that a shell runs."""
    program = tmp_path / "bin" / "regard"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m regard "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("REGARD_CACHE", str(shared_cache))
    monkeypatch.delenv("REGARD_DATA", raising=False)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorial_runs(page: Path, folder: Path) -> None:
    names: dict[str, object] = {}
    for block in read_blocks(page):
        if block.marker == "not run":
            _stand_in(block.text)
        elif block.marker == "file":
            (folder / block.value).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            exec(compile(block.text, page.name, "exec"), names)
            _cut_samples(folder)
        elif block.language == "sh":
            for line in block.text.splitlines():
                _run_line(line, folder)


def test_tutorials_use_every_task() -> None:
    lines = [line for page in TUTORIALS for block in read_blocks(page) for line in block.text.splitlines()]
    used = {line.split()[1] for line in lines if line.startswith("regard ")}
    assert {"translate", "generate", "fill", "classify", "tag", "parse", "score", "look", "import", "export"} <= used


def _run_line(line: str, folder: Path) -> None:
    """Run a line: a single command of regard in this process, and all others in a shell."""
    args = shlex.split(line, comments=True)
    if not args:
        return
    if args[0] != "regard" or ">" in args:
        subprocess.run(["bash", "-euo", "pipefail", "-c", line], check=True, cwd=folder)
        _cut_samples(folder)
        return
    done = command(*(_cut_training(args[1:]) if args[1] == "train" else args[1:]))
    assert done.code == 0, f"{line}\n{done.err}"


def _cut_training(args: list[str]) -> list[str]:
    """The arguments of `regard train` for a run of two steps, or of three if an earlier one is extended."""
    settings = [value for name, value in pairwise(args) if name == "--set"]
    kept = [one for one in settings if not one.startswith(("train.steps=", "train.schedule.warmup_steps="))]
    rest = [arg for before, arg in pairwise(["", *args]) if "--set" not in (before, arg)]
    if "--resume" not in args:
        kept += ["train.steps=2", "train.schedule.warmup_steps=1"]
    elif len(kept) < len(settings):
        kept.append("train.steps=3")
    return [*rest, *(f"--set={one}" for one in kept)]


def _cut_samples(folder: Path) -> None:
    """Cut the samples that a tutorial has written to a size that is read in no time."""
    for path in folder.glob("*.*"):
        if path.suffix in (".txt", ".tsv", ".en", ".tr", ".mrg"):
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            path.write_text("".join(lines[:MAX_LINES]), encoding="utf-8")


def _stand_in(text: str) -> None:
    """Put a tiny model of the same kind where a download would have put one."""
    for name, write in (("gpt2", _write_gpt2), ("bert", _write_bert)):
        if f"--local-dir {name}" in text:
            write(name)


def _write_gpt2(folder: str) -> None:
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(ENGLISH, vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 128, "bos_token_id": 0, "eos_token_id": 0}
    GPT2LMHeadModel(GPT2Config(vocab_size=tokenizer.get_vocab_size(), **sizes)).save_pretrained(folder)
    tokenizer.save_model(folder)


def _write_bert(folder: str) -> None:
    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator(ENGLISH, vocab_size=120, show_progress=False)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    BertForMaskedLM(BertConfig(vocab_size=tokenizer.get_vocab_size(), **sizes)).save_pretrained(folder)
    tokenizer.save_model(folder)
