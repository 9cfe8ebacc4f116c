"""The name of a model may be a run that has not finished, or one of a run's checkpoints, wherever a model is named."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import regard
from regard import UserError
from regard.run import find_model, load_model, pin_checkpoint
from regard.run.checkpoint import CheckpointReader
from regard.run.locate import split_checkpoint
from regard.run.tensors import read_tensors
from regard.task.run import train
from tests.cli.refusal import assert_refused
from tests.look.support import embedded
from tests.task.small import (
    RecordingCallback,
    command,
    crashed_run,
    pairs,
    quick_runs,
    save_random_model,
    small_recipe,
    write_table,
)


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("data") / "train.tsv", pairs(60))


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    """A run that crashed at step 9 of 12, with checkpoints of steps 4 and 8; it would end with the EMA."""
    recipe = small_recipe(data, "train.validate_every=4", "train.ema_decay=0.5", "train.final_weights=ema")
    return crashed_run(recipe, data.parent / "run", 9)


def weights(name: str | Path) -> dict[str, torch.Tensor]:
    return dict(load_model(name).model.state_dict())


def is_equal(name: str | Path, path: Path) -> bool:
    """Whether the weights of a model are those in a file."""
    loaded, expected = weights(name), read_tensors(path)
    return loaded.keys() == expected.keys() and all(torch.equal(loaded[key], expected[key]) for key in expected)


def test_unfinished_run_is_its_newest_checkpoint_with_the_weights_it_would_end_with(run: Path) -> None:
    assert is_equal(run, run / "checkpoints" / "step-00000008" / "ema.safetensors")
    assert load_model(run).checkpoint == 8
    assert pin_checkpoint(run) == f"{run}@8"


def test_checkpoint_is_named_after_an_at_sign(run: Path) -> None:
    best = CheckpointReader(run / "checkpoints").best_step()
    for name, step in (("last", 8), ("4", 4), ("best", best)):
        assert is_equal(f"{run}@{name}", run / "checkpoints" / f"step-{step:08}" / "ema.safetensors"), name


def test_finished_run_is_its_final_model_unless_a_checkpoint_is_named(data: Path, tmp_path: Path) -> None:
    train(small_recipe(data, "train.final_weights=average", "train.average_last=2"), tmp_path / "run")
    assert is_equal(tmp_path / "run", tmp_path / "run" / "model.safetensors")
    assert is_equal(f"{tmp_path / 'run'}@12", tmp_path / "run" / "checkpoints" / "step-00000012" / "model.safetensors")


def test_one_message_says_which_checkpoint_and_which_weights_are_used(data: Path, tmp_path: Path) -> None:
    recipe = small_recipe(data, "train.ema_decay=0.5", "train.final_weights=ema")
    folder = crashed_run(recipe, tmp_path / "run", 5)
    done = command("translate", folder, "red cat")
    assert (done.code, done.err.count("\n")) == (0, 1)
    assert "step 4" in done.err
    assert "ema" in done.err
    assert done.out == f"{regard.load(folder).translate('red cat')}\n"


def test_every_command_takes_the_same_names(run: Path, tmp_path: Path) -> None:
    name = f"{run}@4"
    for arguments in (
        ("translate", name, "red cat"),
        ("score", name, "--test", "held-out"),
        ("look", name, "red cat", "--html", tmp_path / "page.html"),
        ("export", name, "hf", tmp_path / "hf"),
        ("cost", name),
        ("shortlist", name, "--out", tmp_path / "shortlist.safetensors"),
    ):
        assert command(*arguments).code == 0, arguments
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert embedded(page)["trace"]["model"]["name"] == "run@4"


def test_run_starts_from_a_checkpoint(run: Path, data: Path, tmp_path: Path) -> None:
    callback = RecordingCallback()
    recipe = small_recipe(data, f"init_from={run}@4", "train.steps=1", "train.schedule.lr=1e-30")
    train(recipe, tmp_path / "run", callback=callback)
    assert f"{run}@4" in callback.text
    new, old = weights(tmp_path / "run"), weights(f"{run}@4")
    for key in new:
        torch.testing.assert_close(new[key], old[key])


def test_folder_with_an_at_sign_keeps_its_name(run: Path, tmp_path: Path) -> None:
    folder = save_random_model(tmp_path / "me@best")
    assert find_model(folder) == folder
    (tmp_path / "run@4").symlink_to(run, target_is_directory=True)
    assert load_model(tmp_path / "run@4").checkpoint == 8
    assert load_model(f"{tmp_path / 'run@4'}@4").checkpoint == 4


def test_name_without_such_a_folder_is_left_as_it_is() -> None:
    assert split_checkpoint("nowhere@home") == (Path("nowhere@home"), None)


def test_missing_checkpoints_are_named(run: Path, tmp_path: Path) -> None:
    assert_refused(command("translate", f"{run}@5", "a"), f"{run}@5", "step 5", "4, 8")
    assert_refused(command("translate", f"{run}@bset", "a"), f"{run}@bset", "last, best")
    assert_refused(command("translate", "en-tr@last", "a"), "en-tr@last", "no checkpoints")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "recipe.toml").write_text("", encoding="utf-8")
    assert_refused(command("translate", tmp_path / "new", "a"), "not finished", "--resume")


def test_run_without_validation_has_no_best_checkpoint(data: Path, tmp_path: Path) -> None:
    folder = crashed_run(small_recipe(data, "data.dev_size=0"), tmp_path / "run", 5)
    with pytest.raises(UserError, match="run@best: no checkpoint is marked"):
        load_model(f"{folder}@best")
