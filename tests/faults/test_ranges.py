"""Ids and positions that a model does not have are refused before training: on a GPU they would end the process."""

from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from regard import UserError
from regard.data.images.dataset import ImagesConfig, read_images
from regard.model import LanguageModelConfig
from regard.task.base import check_ranges
from tests.task.classification.test_task import recipe_file as classification_recipe
from tests.task.language_modeling.test_task import TEXT
from tests.task.language_modeling.test_task import recipe_file as language_recipe
from tests.task.masked_lm.test_task import recipe_file as masked_recipe
from tests.task.small import command, pairs, quick_runs, write_recipe_file, write_table


@pytest.fixture(autouse=True)
def quick(tmp_path: Path) -> Iterator[None]:
    with quick_runs(tmp_path / "cache"):
        yield


def translation_recipe(folder: Path) -> Path:
    write_table(folder / "pairs.tsv", pairs(30))
    return write_recipe_file(folder / "small.toml", {"train": [{"path": "pairs.tsv"}]})


RECIPES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "translation": (translation_recipe, "data.max_length"),
    "language-modeling": (lambda folder: language_recipe(folder, TEXT), "data.context_length"),
    "masked-lm": (masked_recipe, "data.context_length"),
    "text-classification": (lambda folder: classification_recipe(folder, "text-classification"), "data.max_length"),
    "token-classification": (lambda folder: classification_recipe(folder, "token-classification"), "data.max_length"),
}


@pytest.mark.parametrize("task", list(RECIPES))
def test_rows_longer_than_the_learned_positions_are_refused_before_a_step(task: str, tmp_path: Path) -> None:
    make, key = RECIPES[task]
    recipe, run = make(tmp_path), tmp_path / "run"
    learned = ("--set", "model.position.kind=learned", "--set")
    with mock.patch("regard.train.trainer.Trainer.run", side_effect=AssertionError("a step was taken")):
        done = command("train", recipe, "--out", run, "--device", "cpu", *learned, "model.position.max_length=3")
        assert done.code == 2
        assert key in done.err.splitlines()[-1]
        assert "model.position.max_length" in done.err.splitlines()[-1]
        assert not run.exists()
        with pytest.raises(AssertionError, match="a step was taken"):
            command("train", recipe, "--out", run, "--device", "cpu", *learned, "model.position.max_length=1000")


def test_tokenizer_with_more_ids_than_the_model_is_refused() -> None:
    config = LanguageModelConfig(vocab_size=9, width=8, decoder={"layers": 1, "attention": {"heads": 2}})
    with torch.device("meta"):
        model = config.build()
    check_ranges(model, {"text": 9}, 10**6, "data.context_length")
    with pytest.raises(UserError, match=r"tokenizer of the text has 10 ids.*has 9"):
        check_ranges(model, {"text": 10}, 1, "data.context_length")


def test_absurd_class_number_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.zeros((2, 4, 4), dtype=np.uint8))
    np.save(tmp_path / "labels.npy", np.array([0, 10**12]))
    with pytest.raises(UserError, match="image 1 has the label 1000000000000"):
        read_images(ImagesConfig(path=str(tmp_path / "images.npy"), labels=str(tmp_path / "labels.npy")))
