"""Commands that start several processes, and helpers that read their log and kill single workers."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from tests.task.small import Result, child, pairs, small_values, write_aligned

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def write_recipe(folder: Path, *changes: str) -> Path:
    """A small recipe and its data. Dropout makes the weights depend on the random state."""
    write_aligned(folder, pairs(60))
    data = {"train": [{"source": "train.en", "target": "train.de"}]}
    overrides = ("train.parallel={timeout = 30.0}", "model.embedding={dropout = 0.1}", *changes)
    path = folder / "small.toml"
    path.write_text(tomli_w.dumps(small_values(data, *overrides)), encoding="utf-8")
    return path


def torchrun(*args: object) -> subprocess.Popen[str]:
    """Start `torchrun …` as a child process."""
    return subprocess.Popen(
        [sys.executable, *TORCHRUN, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    )


def wait(process: subprocess.Popen[str], log: str = "", stdin: str | None = None) -> Result:
    """Wait for a process to end. `log`: the part of its standard error that was read already."""
    out, err = process.communicate(stdin, timeout=100)
    return Result(process.returncode, out, log + err)


def run(*args: object, stdin: str | None = None) -> Result:
    """Run `regard …` as a child process, with this text on its standard input if there is one."""
    return wait(child(*args, piped=stdin is not None), stdin=stdin)


def read_log_until(process: subprocess.Popen[str], prefix: str) -> str:
    """The log (standard error) of a process up to the first line with this prefix."""
    assert process.stderr is not None
    log = ""
    for line in process.stderr:
        log += line
        if line.startswith(prefix):
            return log
    raise AssertionError(log)


def workers(process: subprocess.Popen[str]) -> Sequence[int]:
    """The ids of a process's children, in the order of their start."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8")
    return [int(number) for number in children.split()]


def kill_worker(process: subprocess.Popen[str], rank: int) -> None:
    os.kill(workers(process)[rank], signal.SIGKILL)
