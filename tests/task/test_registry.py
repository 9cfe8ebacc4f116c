"""A new task is one package and one line in the registry: `train`, `score`, `look` and `regard.load` then know it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w

import regard
from regard.task.registry import TASKS, get_task
from tests.task.small import command, quick_runs, write_lines
from tests.task.toy_task.pipeline import Reverser

LINES = ["abc", "cab", "bacb", "ccab", "ba", "acbb"]


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, quick_runs(tmp_path_factory.mktemp("cache")):
        patch.setitem(TASKS, "reversal", "tests.task.toy_task:TASK")
        yield


@pytest.fixture(scope="module")
def run(registered: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    write_lines(folder / "lines.txt", LINES)
    stack = {"layers": 1, "attention": {"heads": 2}, "feed_forward": {"hidden": 32}}
    recipe = {
        "description": "A toy task.",
        "task": "reversal",
        "data": {"train": [{"path": "lines.txt"}], "test": {"same": {"path": "lines.txt"}}},
        "model": {"width": 16, "encoder": stack, "decoder": stack},
        "train": {"steps": 60, "batch_tokens": 64, "schedule": {"kind": "constant", "lr": 0.01, "warmup_steps": 0}},
    }
    (folder / "toy.toml").write_text(tomli_w.dumps(recipe), encoding="utf-8")
    done = command("train", folder / "toy.toml", "--out", folder / "run", "--device", "cpu")
    assert (done.code, done.out) == (0, f"{folder / 'run'}\n")
    return folder / "run"


def test_train_writes_a_run_folder_with_a_card(run: Path) -> None:
    card = (run / "README.md").read_text(encoding="utf-8")
    assert "| test set | exact | lines |" in card
    assert "reverse(" in card


def test_score_evaluates_the_test_sets(run: Path) -> None:
    done = command("score", run, "--device", "cpu")
    assert done.code == 0
    assert done.out.startswith(f"{run} on same: exact match ")


def test_load_opens_the_tasks_pipeline(run: Path) -> None:
    reverser = regard.load(run)
    assert isinstance(reverser, Reverser)
    assert isinstance(reverser.reverse("abc"), str)


def test_look_traces_the_model(run: Path, tmp_path: Path) -> None:
    done = command("look", run, "abc", "--html", tmp_path / "page.html")
    assert done.code == 0
    assert (tmp_path / "page.html").stat().st_size > 0
    header = regard.load(run).trace("abc").header
    assert [token.text for token in header.source][:3] == ["a", "b", "c"]


@pytest.mark.parametrize("name", TASKS)
def test_every_registered_task_names_classes_that_exist(name: str) -> None:
    info = get_task(name)
    assert info.name == name
    assert info.recipe_class().model_fields["task"].default == name
    assert info.commands
    assert callable(info.task_class().prepare)
    assert callable(info.pipeline_class().load)
