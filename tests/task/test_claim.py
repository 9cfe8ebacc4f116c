"""A resumed run may go on for longer, and with other intervals and final weights; anything else is refused."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from regard import UserError
from regard.run.tensors import read_tensors
from regard.task.recipe_io import read_recipe
from regard.task.run import train
from tests.cli.refusal import assert_refused
from tests.task.small import (
    CrashAtStep,
    CrashError,
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
    """Twelve steps with dropout, a constant learning rate, checkpoints at 4, 8 and 12, validations at 6 and 12."""
    base = tmp_path_factory.mktemp("claim")
    data = {"train": [{"path": str(write_table(base / "train.tsv", pairs(60)))}]}
    return write_recipe_file(base / "small.toml", data, "model.embedding={dropout = 0.1}")


@pytest.fixture(scope="module")
def finished(recipe: Path) -> Path:
    train(read_recipe(recipe), recipe.parent / "finished")
    return recipe.parent / "finished"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def train_steps(folder: Path) -> list[int]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if "loss" in line]


def test_extended_run_equals_one_that_was_longer_from_the_start(recipe: Path, run: Path, tmp_path: Path) -> None:
    train(read_recipe(recipe, ["train.steps=18"]), tmp_path / "longer")
    before = weights(run)
    with pytest.raises(CrashError):
        train(read_recipe(run, ["train.steps=18"]), run, resume=True, callback=CrashAtStep(17))
    assert weights(run) == before  # the finished model is there until the next one is
    assert json.loads((run / "run.json").read_text())["origin"]["steps"] == 12
    assert read_recipe(run).train.steps == 18
    assert command("train", run, "--resume").code == 0  # the recipe in the folder says how far it goes
    assert weights(run) == weights(tmp_path / "longer") != before
    assert train_steps(run) == list(range(1, 19))
    assert json.loads((run / "run.json").read_text())["origin"]["steps"] == 18


def test_run_can_be_ended_at_its_last_checkpoint(recipe: Path, tmp_path: Path) -> None:
    folder = crashed_run(read_recipe(recipe), tmp_path / "run", 9)
    train(read_recipe(folder, ["train.steps=8"]), folder, resume=True)
    assert json.loads((folder / "run.json").read_text())["origin"]["steps"] == 8


def test_final_weights_of_a_finished_run_may_change(recipe: Path, run: Path, tmp_path: Path) -> None:
    change = ["train.final_weights=average", "train.average_last=2"]
    callback = RecordingCallback()
    train(read_recipe(run, change), run, resume=True, callback=callback)
    train(read_recipe(recipe, change), tmp_path / "averaged")
    assert weights(run) == weights(tmp_path / "averaged")
    assert "train.final_weights = average (was last)" in callback.text
    train(read_recipe(run), run, resume=True, callback=callback)
    assert "already finished" in callback.messages[-1]


def test_schedule_that_ends_with_the_run_follows_it_with_a_message(recipe: Path, tmp_path: Path) -> None:
    linear = read_recipe(recipe, ['train.schedule={kind = "linear", lr = 0.01, warmup_steps = 0}'])
    train(linear, tmp_path / "run")
    callback = RecordingCallback()
    train(read_recipe(tmp_path / "run", ["train.steps=20"]), tmp_path / "run", resume=True, callback=callback)
    saved = read_recipe(tmp_path / "run").train
    assert (saved.steps, saved.schedule.steps) == (20, 20)
    assert "step 13 is 0.004, and was to be 0" in callback.text
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["lr"] for line in lines if line["step"] == 13 and "lr" in line] == [pytest.approx(0.004)]


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (["train.steps=11"], ["12 steps", "train.steps"]),
        (["train.steps=20", "train.schedule.lr=0.1"], ["train.schedule.lr"]),
        (["train.monitor=score"], ["train.monitor"]),
    ],
    ids=str,
)
def test_other_changes_are_refused_and_nothing_changes(change: list[str], parts: list[str], finished: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    options = [argument for one in change for argument in ("--set", one)]
    assert_refused(command("train", finished, "--resume", *options), *parts)
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


def test_best_weights_that_were_not_kept_cannot_become_the_final_ones(recipe: Path, tmp_path: Path) -> None:
    folder = crashed_run(read_recipe(recipe, ["train.save_every=8"]), tmp_path / "run", 9)
    with pytest.raises(UserError, match=r"train\.final_weights.*step 6"):
        train(read_recipe(folder, ["train.final_weights=best"]), folder, resume=True)


def test_run_that_stopped_early_needs_more_patience(recipe: Path, tmp_path: Path) -> None:
    change = ["train.patience=1", "train.validate_every=1", "train.schedule.lr=1e-30"]
    train(read_recipe(recipe, change), tmp_path / "run")
    taken = json.loads((tmp_path / "run" / "run.json").read_text())["origin"]["steps"]
    assert taken < 12
    with pytest.raises(UserError, match=re.escape("train.patience to more than 1")):
        train(read_recipe(tmp_path / "run", ["train.steps=20"]), tmp_path / "run", resume=True)
    train(read_recipe(tmp_path / "run", ["train.patience=2"]), tmp_path / "run", resume=True)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["origin"]["steps"] > taken


def test_finished_run_without_checkpoints_is_not_started_again(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    before = weights(run)
    with pytest.raises(UserError, match="no checkpoint"):
        train(read_recipe(run, ["train.steps=20"]), run, resume=True)
    assert weights(run) == before
    assert read_recipe(run).train.steps == 12
    assert read_tensors(run / "model.safetensors")
