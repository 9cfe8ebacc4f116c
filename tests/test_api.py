"""The public API: complete, typed, fast to import, and documented in docs/api.md."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from scripts import api_docs

import regard
from tests.task.small import pairs, quick_runs, write_recipe_file, write_table


def test_dir_lists_exactly_the_public_names() -> None:
    assert dir(regard) == sorted(regard.__all__)
    assert all(getattr(regard, name) is not None for name in regard.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = regard.nothing


def test_import_does_not_import_torch() -> None:
    code = "import sys, regard; print('torch' in sys.modules, 'pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_types_ship_with_the_package() -> None:
    assert (Path(regard.__file__).parent / "py.typed").is_file()


def test_api_page_is_up_to_date() -> None:
    page = api_docs.PAGE.read_text(encoding="utf-8")
    assert page == api_docs.render(), "run `python scripts/api_docs.py`"


class RecordingCallback(regard.Callback):
    def __init__(self) -> None:
        self.messages: list[str] = []
        self.steps: list[int] = []

    def log(self, message: str) -> None:
        self.messages.append(message)

    def on_train_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self.steps.append(step)


def test_train_and_evaluate_a_recipe(tmp_path: Path) -> None:
    write_table(tmp_path / "pairs.tsv", pairs(20))
    write_table(tmp_path / "mine.tsv", pairs(10, seed=2))
    data = {"train": [{"path": "pairs.tsv"}], "test": {"same": {"path": "pairs.tsv"}}}
    recipe = write_recipe_file(tmp_path / "small.toml", data)
    first, second = RecordingCallback(), RecordingCallback()
    with quick_runs(tmp_path / "cache"):
        result = regard.train(recipe, out=tmp_path / "run", overrides=["train.steps=2"], callbacks=[first, second])
        assert regard.evaluate(tmp_path / "run")["same"] == result.scores["same"]
        assert isinstance(regard.load(tmp_path / "run"), regard.Translator)
        mine = regard.train(recipe, data=tmp_path / "mine.tsv", out=tmp_path / "mine", overrides=["train.steps=1"])
    assert mine.folder == tmp_path / "mine"
    assert first.messages == second.messages != []
    assert first.steps == [1, 2]
    with pytest.raises(regard.UserError, match="change the Recipe object"):
        regard.train(regard.read_recipe(recipe), overrides=["train.steps=2"])
