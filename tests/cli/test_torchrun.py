"""torchrun: several processes train as one does, restart after one is killed, and stop on a signal."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.multi_process import child, kill_worker, read_log_until, torchrun, wait, write_recipe
from tests.task.small import command, quick_runs

pytestmark = pytest.mark.start_early(5)

NO_DROPOUT = (
    "model.embedding={dropout = 0.0}",
    *(f"model.{stack}.{key}=0.0" for stack in ("encoder", "decoder") for key in ("dropout", "attention.dropout")),
    *(f"model.{stack}.feed_forward.dropout=0.0" for stack in ("encoder", "decoder")),
)


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


def losses(folder: Path) -> dict[tuple[int, str], float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    names = ("loss", "valid/loss", "valid/chrf", "tokens")
    return {(line["step"], name): line[name] for line in lines for name in names if name in line}


def test_two_restarted_processes_train_as_one(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, *NO_DROPOUT)
    assert command("train", recipe, "--out", tmp_path / "one").code == 0
    process = torchrun("--max-restarts", 1, "-m", "regard", "train", recipe, "--out", tmp_path / "two")
    log = read_log_until(process, "step 6 ")
    kill_worker(process, 0)
    two = wait(process, log)
    assert (two.code, two.out) == (0, f"{tmp_path / 'two'}\n")
    assert two.err.count("another process of this run ended".capitalize()) <= 1
    assert two.err.count("Resuming from step 4.") == 1
    assert two.err.count("step 12 of 12 ") == 1
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=0, abs=1e-4)


def test_two_processes_stop_on_a_signal_and_one_resumes(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "train.steps=80", "train.save_every=1000", "train.validate_every=1000")
    process = child("train", recipe, "--out", tmp_path / "run", "--processes", 2)
    log = read_log_until(process, "step 5 ")
    os.kill(process.pid, signal.SIGTERM)
    stopped = wait(process, log)
    assert (stopped.code, stopped.out, "Traceback" in stopped.err) == (130, "", False)
    assert f"Continue with: regard train {tmp_path / 'run'} --resume --processes 2" in stopped.err.splitlines()[-1]
    resumed = command("train", tmp_path / "run", "--resume")
    assert (resumed.code, "Resuming from step " in resumed.err) == (0, True)
