"""A bidirectional language model is trained, resumed, scored and used by the same task as any language model."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import regard
from regard.errors import UserError
from regard.run import load_model, save_model
from regard.task.recipe_io import read_recipe
from regard.task.run import train
from tests.task.language_modeling.test_task import TEXT, recipe_file
from tests.task.small import quick_runs

CHANGES = ['model={kind="bidirectional-lm", width=16, layers=1}', "train.loss.label_smoothing=0.0"]


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bidirectional")
    train(read_recipe(recipe_file(place, TEXT), CHANGES), place / "run")
    return place / "run"


def test_resumed_run_ends_with_the_same_weights(trained: Path, tmp_path: Path) -> None:
    class Interrupted(regard.Callback):
        def on_train_metrics(self, step: int, metrics: object) -> None:
            if step == 6:
                raise KeyboardInterrupt

    recipe = read_recipe(recipe_file(tmp_path, TEXT), CHANGES)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "run", callback=Interrupted())
    train(recipe, tmp_path / "run", resume=True)
    expected = load_model(trained).model.state_dict()
    for name, tensor in load_model(tmp_path / "run").model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_scores_are_those_of_the_forward_direction(trained: Path, tmp_path: Path) -> None:
    """The same as of a plain language model with its weights."""
    loaded = load_model(trained)
    values = {**loaded.config.plain(), "kind": "recurrent-lm"}
    plain = regard.model.read_any_config(values).build()
    plain.load_state_dict(
        {name: each for name, each in loaded.model.state_dict().items() if not name.startswith("backward")}
    )
    save_model(plain, tmp_path / "plain", tokenizer=loaded.tokenizer)
    lines = TEXT.splitlines()[:5]
    for one, other in zip(regard.load(trained).score(lines), regard.load(tmp_path / "plain").score(lines), strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    generator = regard.load(trained)
    assert generator.generate("red", max_new_tokens=4) == regard.load(tmp_path / "plain").generate(
        "red", max_new_tokens=4
    )
    score = regard.evaluate(trained)["valid"]
    assert 0 < score.bits_per_byte < 8


def test_packed_documents_are_refused(tmp_path: Path) -> None:
    recipe = read_recipe(recipe_file(tmp_path, TEXT), [*CHANGES, "data.packing=packed"])
    with pytest.raises(UserError, match="packed documents"):
        train(recipe, tmp_path / "run")


def test_a_translator_of_one_direction_only_is_refused() -> None:
    with pytest.raises(UserError, match=r"model\.kind: .*only learn its forward direction"):
        _ = read_recipe("multi30k-en-de-lm", ['model={kind="bidirectional-lm"}']).expected_model_config
