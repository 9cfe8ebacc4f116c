"""`--processes`: contradictory options are refused, and a run that loses a process can be resumed."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from regard.cli.processes import clean_exit
from regard.train.checkpoint import CheckpointManager
from regard.train.distributed.process_group import ProcessGroup
from tests.cli.multi_process import child, kill_worker, read_log_until, run, wait, write_recipe
from tests.task.small import command, quick_runs

pytestmark = pytest.mark.start_early(1)


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--parallel", "fsdp", "--set", "train.optimizer.kind=muon"],
            "train.parallel.kind: ",
        ),
        (["--set", "train.parallel.kind=fsdp", "--set", "train.optimizer.kind=muon"], "train.parallel.kind: "),
        (["--parallel", "fsdp", "--shard", "3"], "groups of 3"),
        (["--shard", "2"], "train.parallel.shard: "),
        (["--device", "cuda:0"], "--device cuda:0"),
        (["--device", "cuda"], "2 processes need as many GPUs"),
    ],
)
def test_contradictory_options_are_refused(
    options: list[str], message: str, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "--device" in options:  # a machine with one GPU
        monkeypatch.setattr("regard.cli.processes.select_device", lambda name, threads: torch.device(name))
        monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    done = command("train", recipe, "--out", tmp_path / "run", "--processes", 2, *options)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err
    assert not (tmp_path / "run").exists()


def test_processes_inside_torchrun_are_refused(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    done = command("train", recipe, "--out", tmp_path / "run", "--processes", 2)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "--processes" in done.err


def test_incomplete_torchrun_variables_are_refused(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = command("train", recipe, "--out", tmp_path / "run")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "LOCAL_RANK" in done.err


def test_missing_processes_end_the_rendezvous(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = write_recipe(tmp_path, "train.parallel.timeout=1.0")
    variables = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": 0}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    done = command("train", recipe, "--out", tmp_path / "run", "--device", "cpu")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "The processes did not find each other within 1 second" in done.err
    assert not (tmp_path / "run").exists()


def test_more_processes_than_sequences_per_batch_are_refused(recipe: Path, tmp_path: Path) -> None:
    small_batches = (
        "--set",
        "train.batch_tokens=32",
        "--set",
        "train.length_buckets=30",
        "--set",
        "data.max_length=32",
    )
    done = run("train", recipe, "--out", tmp_path / "run", "--processes", 2, *small_batches)
    errors = [line for line in done.err.splitlines() if line.startswith("regard: ")]
    assert (done.code, done.out, len(errors)) == (2, "", 1)
    assert "2 processes" in errors[0]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (2, 2), (None, 0), ("an error message", 1)])
def test_members_of_a_process_group_exit_at_once(
    code: int | str | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that still hold sent tensors would abort the interpreter during a normal exit."""
    codes: list[int] = []
    monkeypatch.setattr("os._exit", codes.append)
    monkeypatch.setattr("regard.cli.processes._joined_groups", [ProcessGroup()])
    with clean_exit():
        raise SystemExit(code)
    assert codes == [expected]


def test_single_process_exits_normally() -> None:
    with pytest.raises(SystemExit, match="3"), clean_exit():
        raise SystemExit(3)


def test_run_that_lost_a_process_resumes_to_the_same_weights(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "train.steps=12", "train.parallel.kind=fsdp")
    folders = [tmp_path / name for name in ("uninterrupted", "killed")]
    uninterrupted = run("train", recipe, "--out", folders[0], "--processes", 2)
    assert (uninterrupted.code, uninterrupted.out, "Traceback" in uninterrupted.err) == (0, f"{folders[0]}\n", False)

    process = child("train", recipe, "--out", folders[1], "--processes", 2)
    log = read_log_until(process, "step 6 ")
    kill_worker(process, 1)
    start = time.monotonic()
    killed = wait(process, log)
    assert time.monotonic() - start < 30  # the timeout in the recipe
    assert (killed.code, killed.out, "Traceback" in killed.err) == (1, "", False)
    assert killed.err.splitlines()[-1] == (
        "regard: Process 1 of 2 was killed by signal 9; the others were terminated. Checkpoints are complete; continue "
        f"with: regard train {folders[1]} --resume --processes 2"
    )
    assert CheckpointManager(folders[1] / "checkpoints").load_latest() is not None

    resumed = run("train", folders[1], "--resume", "--processes", 2)
    assert (resumed.code, "Resuming from step " in resumed.err) == (0, True)
    first, second = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert first == second
