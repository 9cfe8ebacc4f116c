"""A translation and a training step each run through few files of the package, so that readers can follow them."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import regard
from regard.task.recipe_io import read_recipe
from regard.train.distributed.process_group import SINGLE_PROCESS
from regard.train.trainer import Trainer
from tests.task.small import quick_runs

PACKAGE = f"{Path(regard.__file__).parent}/"
MAX_FILES = {"translation": 22, "training step": 22}


def files_called_by(run: Callable[[], object]) -> list[str]:
    """The files of the package whose Python functions are called during a run."""
    called: set[str] = set()

    def record(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            called.add(frame.f_code.co_filename.removeprefix(PACKAGE))

    before = sys.getprofile()
    sys.setprofile(record)
    try:
        run()
    finally:
        sys.setprofile(before)
    return sorted(called)


def test_files_of_a_translation() -> None:
    translator = regard.load("en-tr")
    assert isinstance(translator, regard.Translator)
    translator.translate("The cat ate the mouse.")
    files = files_called_by(lambda: translator.translate("The cat ate the mouse."))
    assert len(files) <= MAX_FILES["translation"], files


def test_files_of_a_training_step(tmp_path: Path) -> None:
    recipe = read_recipe("quick", ["train.steps=10", "train.schedule.warmup_steps=2"])
    with quick_runs(tmp_path / "cache"):
        task = recipe.build_task(tmp_path, lambda message: None, SINGLE_PROCESS)
        steps = Trainer(task, recipe.train, tmp_path).steps(4)
        for _ in range(3):
            next(steps)
        files = files_called_by(lambda: next(steps))
    assert len(files) <= MAX_FILES["training step"], files
