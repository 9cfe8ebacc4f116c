"""Commands that start several processes, for tests that follow them and get in their way."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from tests.task.small import Done, child, pairs, small_values, write_aligned

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def write_recipe(folder: Path, *changes: str) -> Path:
    """A small recipe and its data. With dropout, so that random numbers count."""
    write_aligned(folder, pairs(60))
    data = {"train": [{"source": "train.en", "target": "train.de"}]}
    often = ("train.parallel={timeout = 30.0}", "model.embedding={dropout = 0.1}", *changes)
    path = folder / "small.toml"
    path.write_text(tomli_w.dumps(small_values(data, *often)), encoding="utf-8")
    return path


def torchrun(*words: object) -> subprocess.Popen[str]:
    """`torchrun … -m regard …` as a process of its own."""
    return subprocess.Popen(
        [sys.executable, *TORCHRUN, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    )


def done(process: subprocess.Popen[str], before: str = "", given: str | None = None) -> Done:
    out, err = process.communicate(given, timeout=100)
    return Done(process.returncode, out, before + err)


def run(*words: object, given: str | None = None) -> Done:
    """A command in a process of its own, with something on its standard input where it is given."""
    return done(child(*words, piped=given is not None), given=given)


def when_said(process: subprocess.Popen[str], beginning: str) -> str:
    """All that was said up to a line that begins so."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if line.startswith(beginning):
            return said
    raise AssertionError(said)


def workers(process: subprocess.Popen[str]) -> Sequence[int]:
    """The processes that one has started, in the order of their start."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8")
    return [int(number) for number in children.split()]


def lose(process: subprocess.Popen[str], rank: int) -> None:
    os.kill(workers(process)[rank], signal.SIGKILL)
