"""Recipes whose data must be brought: `regard recipes` and `regard train` say what to bring."""

import json
from pathlib import Path

import pytest

from regard import UserError
from regard.task.recipe_io import read_recipe, shipped_recipes
from regard.task.run import train
from tests.task.small import command


@pytest.fixture(autouse=True)
def no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No datasets but those that ship with the package, and an empty folder."""
    monkeypatch.delenv("REGARD_DATA", raising=False)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "option"),
    [("transformer-base", "--source"), ("gpt2-124m", "--data"), ("gum-tags", "--data"), ("tatoeba-en-de", "--source")],
)
def test_needed_data_names_the_option(name: str, option: str) -> None:
    assert read_recipe(name).describe_needed_data().startswith(option)


@pytest.mark.parametrize("name", ["quick", "quick-lm", "quick-fill", "quick-classify", "quick-images", "digits"])
def test_downloadable_and_shipped_data_need_not_be_brought(name: str) -> None:
    assert read_recipe(name).describe_needed_data() == ""


def test_own_data_takes_the_place_of_needed_data(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("one\n", encoding="utf-8")
    assert read_recipe("gpt2-124m", data=path).describe_needed_data() == ""


@pytest.mark.parametrize(
    ("name", "missing", "advice"),
    [("transformer-base", "wmt14", "prepare_wmt14"), ("quick-tags", "gum", "--data FILE")],
)
def test_training_without_the_data_says_what_to_bring(name: str, missing: str, advice: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{missing}.*{advice}"):
        train(read_recipe(name), tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.toml").exists()


def test_list_of_recipes_has_needed_data() -> None:
    done = command("recipes", "--json")
    records = {record["name"]: record for record in map(json.loads, done.out.splitlines())}
    assert records.keys() == {one.name for one in shipped_recipes()}
    assert "prepare_wmt14" in records["transformer-big"]["data_needed"]
    assert records["quick"]["data_needed"] is None
