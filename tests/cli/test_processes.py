"""`--processes`: what cannot be done is refused, and a run that loses a process ends and goes on."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from regard.cli.processes import ending
from regard.train.checkpoint import Checkpoints
from regard.train.world import World
from tests.cli.together import child, done, lose, run, when_said, write_recipe
from tests.task.small import command, quick_runs


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path)


# Refusals.


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--parallel", "fsdp", "--set", "train.optimiser.kind=muon"],
            "train.parallel.kind: Muon moves whole matrices, which fsdp cuts up",
        ),
        (["--set", "train.parallel.kind=fsdp", "--set", "train.optimiser.kind=muon"], "Muon moves whole matrices"),
        (["--parallel", "fsdp", "--shard", "3"], "2 processes cannot be divided into groups of 3"),
        (["--shard", "2"], 'train.parallel.shard: only kind = "fsdp" shares out weights'),
        (["--device", "cuda:0"], "--device cuda:0 is one GPU"),
        (["--device", "cuda"], "2 processes need as many GPUs, and this machine has 1"),
    ],
)
def test_what_cannot_be_combined_is_a_line_and_code_two(
    words: list[str], said: str, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "--device" in words:  # a machine with one GPU
        monkeypatch.setattr("regard.cli.processes.chosen_device", lambda name, threads: torch.device(name))
        monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    found = command("train", recipe, "--out", tmp_path / "run", "--processes", 2, *words)
    assert (found.code, found.out, found.err.count("\n")) == (2, "", 1)
    assert said in found.err
    assert not (tmp_path / "run").exists()


def test_processes_are_not_started_inside_torchrun(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    found = command("train", recipe, "--out", tmp_path / "run", "--processes", 2)
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert "torchrun has done so already" in found.err


def test_variables_of_torchrun_that_are_not_all_there_are_a_line_and_code_two(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    found = command("train", recipe, "--out", tmp_path / "run")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert "start several processes by torchrun or --processes" in found.err


def test_a_process_that_nobody_joins_is_a_line_and_code_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = write_recipe(tmp_path, "train.parallel.timeout=1.0")
    variables = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": 0}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    found = command("train", recipe, "--out", tmp_path / "run", "--device", "cpu")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert "The processes did not find each other within 1 second" in found.err
    assert not (tmp_path / "run").exists()


def test_more_processes_than_rows_are_refused_and_leave_nothing(recipe: Path, tmp_path: Path) -> None:
    small = ("--set", "train.tokens=32", "--set", "train.shapes=30", "--set", "data.longest=32")
    found = run("train", recipe, "--out", tmp_path / "run", "--processes", 2, *small)
    said = [line for line in found.err.splitlines() if line.startswith("regard: ")]
    assert (found.code, found.out, len(said)) == (2, "", 1)
    assert "2 processes cannot share a batch of 1 row." in said[0]
    assert not (tmp_path / "run").exists()


# The end.


@pytest.mark.parametrize(("code", "left"), [(0, 0), (2, 2), (None, 0), ("a sentence", 1)])
def test_one_of_several_ends_without_taking_the_interpreter_down(
    code: int | str | None, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that still hold what was sent would abort it."""
    codes: list[int] = []
    monkeypatch.setattr("os._exit", codes.append)
    monkeypatch.setattr("regard.cli.processes._met", [World()])
    with ending():
        raise SystemExit(code)
    assert codes == [left]


def test_a_process_by_itself_ends_as_any_other() -> None:
    with pytest.raises(SystemExit, match="3"), ending():
        raise SystemExit(3)


# A lost process.


def test_a_run_that_loses_a_process_ends_at_once_and_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "train.steps=12", "train.parallel.kind=fsdp")
    folders = [tmp_path / name for name in ("whole", "lost")]
    whole = run("train", recipe, "--out", folders[0], "--processes", 2)
    assert (whole.code, whole.out, "Traceback" in whole.err) == (0, f"{folders[0]}\n", False)

    process = child("train", recipe, "--out", folders[1], "--processes", 2)
    said = when_said(process, "step 6 ")
    lose(process, 1)
    began = time.monotonic()
    lost = done(process, said)
    assert time.monotonic() - began < 30  # the timeout in the recipe
    assert (lost.code, lost.out, "Traceback" in lost.err) == (1, "", False)
    assert lost.err.splitlines()[-1] == (
        "regard: Process 1 of 2 was ended by signal 9, so the others were ended too. Checkpoints are whole; go on "
        f"with: regard train {folders[1]} --resume --processes 2"
    )
    assert Checkpoints(folders[1] / "checkpoints").latest() is not None

    resumed = run("train", folders[1], "--resume", "--processes", 2)
    assert (resumed.code, "Going on from step " in resumed.err) == (0, True)
    first, second = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert first == second
