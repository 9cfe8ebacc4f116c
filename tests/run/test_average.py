"""`regard average` writes the mean of checkpoints as a model that can be used like any other."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from regard.run import load_model
from regard.run.checkpoint import CheckpointReader
from tests.cli.refusal import assert_refused
from tests.task.small import command, crashed_run, pairs, quick_runs, small_recipe, write_table


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unfinished run with checkpoints of steps 3, 6 and 9."""
    base = tmp_path_factory.mktemp("average")
    recipe = small_recipe(write_table(base / "train.tsv", pairs(60)), "train.save_every=3")
    return crashed_run(recipe, base / "run", 10)


def test_average_is_the_mean_of_the_last_checkpoints(run: Path, tmp_path: Path) -> None:
    done = command("average", run, "--last", 2, "--out", tmp_path / "mean")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{tmp_path / 'mean'}: ")
    expected = CheckpointReader(run / "checkpoints").average_weights(2)
    loaded = load_model(tmp_path / "mean")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.model.state_dict().items())
    assert loaded.origin["final_weights"] == {"kind": "average", "step": 9, "checkpoints": 2}
    assert command("score", tmp_path / "mean").code == 0  # it has the recipe's test sets


def test_single_checkpoints_are_averaged(run: Path, tmp_path: Path) -> None:
    assert command("average", f"{run}@3", f"{run}@9", f"{run}@last", "--out", tmp_path / "mean").code == 0
    first, last, mean = (load_model(name).model.state_dict() for name in (f"{run}@3", f"{run}@9", tmp_path / "mean"))
    for name, tensor in mean.items():
        torch.testing.assert_close(tensor, (first[name] + last[name]) / 2)


def test_default_folder_is_beside_the_run(run: Path) -> None:
    done = command("average", run)
    assert (run.parent / "run-average" / "run.json").is_file()
    assert "3 checkpoints" in done.err  # fewer than the default of five
    assert_refused(command("average", run, "--last", 3), "run-average exists already")


def test_what_cannot_be_averaged_is_refused(run: Path, tmp_path: Path) -> None:
    other = small_recipe(write_table(tmp_path / "train.tsv", pairs(60)), "model.width=8")
    crashed_run(other, tmp_path / "other", 5)
    out = tmp_path / "mean"
    assert_refused(command("average", f"{run}@3", f"{tmp_path / 'other'}@4", "--out", out), "other", "model config")
    assert_refused(command("average", "en-tr", "--out", out), "en-tr", "no checkpoints")
    assert_refused(command("average", tmp_path / "nowhere", "--out", out), "nowhere")
    assert not out.exists()
