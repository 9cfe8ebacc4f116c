"""Runs that are killed, started twice, or given names that they cannot use: refused in a sentence, nothing lost."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from regard.data.store.token_store import cached_store
from regard.errors import UserError
from regard.locks import file_lock, is_locked
from regard.run.checkpoint import FORMAT, CheckpointReader
from regard.run.lock import LOCK, lock_run
from regard.task.claim import claim_folder
from regard.task.recipe_io import read_recipe
from regard.task.run import train
from tests.cli.refusal import assert_refused
from tests.task.small import (
    RecordingCallback,
    command,
    crashed_run,
    pairs,
    quick_runs,
    write_recipe_file,
    write_table,
)


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("runs")
    data = {"train": [{"path": str(write_table(base / "train.tsv", pairs(60)))}]}
    return write_recipe_file(base / "small.toml", data)


def hold(path: Path, ready: Connection) -> None:
    """Hold a lock until the process is killed."""
    with file_lock(path):
        ready.send(True)
        signal.pause()


def start_holder(path: Path) -> Callable[[], None]:
    """Start a process that holds a lock; returns what kills it."""
    context = get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=hold, args=(path, there), daemon=True)
    process.start()
    with closing(here):
        assert here.poll(20)

    def kill() -> None:
        process.kill()
        process.join()

    return kill


# One run, one writer


def test_second_process_in_a_run_is_refused_at_once(recipe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    refused: list[str] = []

    class StartAgain(RecordingCallback):
        def on_train_metrics(self, step: int, values: Mapping[str, float]) -> None:
            if step == 6:
                for arguments in ((folder, "--resume"), (recipe, "--out", folder)):
                    done = command("train", *arguments)
                    assert_refused(done, str(folder), f"process {os.getpid()} on ")
                    refused.append(done.err)

    train(read_recipe(recipe), folder, callback=StartAgain())
    assert len(refused) == 2
    assert CheckpointReader(folder / "checkpoints").steps() == [4, 8, 12]
    assert not (folder / LOCK).exists()


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    kill = start_holder(tmp_path / LOCK)
    with pytest.raises(UserError, match="is in use by"), lock_run(tmp_path, print):
        pass
    kill()
    assert (tmp_path / LOCK).exists()
    with lock_run(tmp_path, print):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
        assert is_locked(tmp_path / LOCK)
    assert list(tmp_path.iterdir()) == []


def test_restarted_processes_wait_for_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank 0 before them may have been on another machine, whose end is noticed late."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    timer = threading.Timer(0.3, start_holder(tmp_path / LOCK))
    timer.start()
    with lock_run(tmp_path, print):
        assert is_locked(tmp_path / LOCK)
    timer.join()


def test_removed_lock_file_is_not_mistaken_for_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may open the file just before its holder removes it; its lock would then protect nothing."""
    path = tmp_path / LOCK
    original, removed = os.open, []

    def open_and_remove(name: object, *args: object, **keys: object) -> int:
        descriptor = original(name, *args, **keys)  # type: ignore[arg-type,call-overload]
        if name == path and not removed:
            removed.append(name)
            os.unlink(path)
        return int(descriptor)

    monkeypatch.setattr(os, "open", open_and_remove)
    with file_lock(path) as descriptor:
        assert descriptor is not None
        assert os.fstat(descriptor).st_ino == path.stat().st_ino
    assert removed


def test_file_system_without_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(path: Path) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("regard.locks._open_locked", unsupported)
    messages: list[str] = []
    with lock_run(tmp_path, messages.append):
        pass
    assert "cannot be locked (Operation not supported)" in messages[0]


# Kills before the first checkpoint


def no_recipe(folder: Path) -> None:
    folder.mkdir()


def lock_file(folder: Path) -> None:
    folder.mkdir()
    (folder / LOCK).write_text('{"pid": 1', encoding="utf-8")


def half_a_recipe(folder: Path) -> None:
    lock_file(folder)
    (folder / ".recipe.toml.unfinished-1").write_text("descr", encoding="utf-8")


@pytest.mark.parametrize("resume", [False, True], ids=["again", "resume"])
@pytest.mark.parametrize("leave", [no_recipe, lock_file, half_a_recipe])
def test_run_killed_before_its_recipe_was_written_can_be_started(
    leave: Callable[[Path], None], resume: bool, recipe: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    leave(folder)
    with ExitStack() as stack:
        assert not claim_folder(read_recipe(recipe), folder, resume, stack, print)
        assert sorted(path.name for path in folder.iterdir()) == [LOCK, "recipe.toml"]


def test_run_killed_after_its_recipe_was_written_is_resumed(recipe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with ExitStack() as stack:  # a run decides on its precision before it writes its recipe
        claim_folder(read_recipe(recipe, ["train.precision=float32"]), folder, False, stack, print)
    (folder / ".tokenizer.json.unfinished-1").write_text("{", encoding="utf-8")
    assert_refused(command("train", recipe, "--out", folder), "--resume")
    assert command("train", folder, "--resume").code == 0
    assert not (folder / ".tokenizer.json.unfinished-1").exists()


def test_folder_without_a_recipe_says_what_to_do(tmp_path: Path) -> None:
    assert_refused(command("train", tmp_path, "--resume"), str(tmp_path), "recipe.toml", "--out")


def test_message_about_a_lost_process_names_a_command_that_works(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []

    def lose(processes: int, advice: Callable[[], str]) -> int:
        messages.append(advice())
        return 1

    monkeypatch.setattr("regard.cli.processes._launch", lose)
    arguments = ("train", recipe, "--out", tmp_path / "run", "--processes", 2, "--device", "cpu")
    assert command(*arguments).code == 1
    crashed_run(read_recipe(recipe), tmp_path / "run", 5)
    command(*arguments)
    assert "the same command" in messages[0]
    assert f"regard train {tmp_path / 'run'} --resume" in messages[1]


# Names that are not UTF-8


def test_name_that_is_not_utf8_is_refused_before_training(recipe: Path, tmp_path: Path) -> None:
    bad = tmp_path / os.fsdecode(b"run\xff")
    assert_refused(command("train", recipe, "--out", bad), "UTF-8", "run\\udcff")
    run = crashed_run(read_recipe(recipe), tmp_path / "run", 5)
    assert_refused(command("average", run, "--out", bad), "UTF-8", "run\\udcff")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_recipe_with_a_path_that_is_not_utf8_is_refused(recipe: Path, tmp_path: Path) -> None:
    path = write_table(tmp_path / os.fsdecode(b"bad\xff.tsv"), pairs(20))
    done = command("train", recipe, "--data", path, "--out", tmp_path / "run")
    assert_refused(done, "bad\\udcff.tsv")
    assert not (tmp_path / "run").exists()


# Checkpoints of a newer version


def test_checkpoint_of_a_newer_format_is_refused_and_kept(recipe: Path, tmp_path: Path) -> None:
    folder = crashed_run(read_recipe(recipe), tmp_path / "run", 9)
    path = folder / "checkpoints" / "step-00000008" / "state.json"
    text = json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"format": FORMAT + 1})
    path.write_text(text, encoding="utf-8")
    for arguments in (("train", folder, "--resume"), ("translate", folder, "a"), ("average", folder)):
        assert_refused(command(*arguments), "step-00000008", "upgrade")
    assert path.read_text(encoding="utf-8") == text


# Leftovers


def test_abandoned_folders_of_the_token_cache_are_removed_unless_they_are_in_use(tmp_path: Path) -> None:
    dead, alive = (tmp_path / f".{letter * 32}.{letter * 32}" for letter in "ab")
    for folder in (dead, alive):
        folder.mkdir()
        folder.with_name(f"{folder.name}.lock").touch()
    kill = start_holder(alive.with_name(f"{alive.name}.lock"))
    store = cached_store(tmp_path, "key", lambda: [([1],)], ["text"], 10)
    found = {path.name for path in tmp_path.iterdir()}
    kill()
    assert found == {alive.name, f"{alive.name}.lock", store.path.name}


def test_temporary_files_are_left_while_another_process_trains(recipe: Path, tmp_path: Path) -> None:
    folder = crashed_run(read_recipe(recipe), tmp_path / "run", 5)
    leftover = folder / "checkpoints" / ".step-00000008.unfinished-1"
    leftover.mkdir()
    kill = start_holder(folder / LOCK)
    assert_refused(command("train", folder, "--resume"), str(folder))
    assert leftover.exists()
    kill()
    with ExitStack() as stack:
        assert not claim_folder(read_recipe(folder), folder, True, stack, print)
    assert not leftover.exists()
