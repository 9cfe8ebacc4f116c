"""`regard recipes` and `regard recipe`."""

import json
import tomllib
from pathlib import Path

import pytest

from regard.task.recipe_io import read_recipe, recipe_text, shipped_recipes
from regard.task.registry import read_values
from tests.cli.refusal import assert_refused
from tests.task.small import command


@pytest.fixture(scope="module")
def lines() -> dict[str, str]:
    """The first line of each recipe, by name."""
    shown = command("recipes").out.splitlines()
    return {line.split()[0]: line for line in shown if not line.startswith(" ")}


def test_recipes_lists_every_recipe() -> None:
    shown = command("recipes").out
    for one in shipped_recipes():
        assert f"\n{one.name} " in f"\n{shown}"
        assert one.recipe.description in shown


def test_recipes_shows_expected_scores(lines: dict[str, str]) -> None:
    quick = read_recipe("quick").expect
    assert quick is not None
    assert f"BLEU {quick.scores['test'].bleu:.1f}" in lines["quick"]
    assert f"{quick.minutes:g} min on {quick.hardware}" in lines["quick"]
    assert "BLEU 27.3 (published: Vaswani et al. 2017" in lines["transformer-base"]


def test_recipes_are_aligned(lines: dict[str, str]) -> None:
    header = lines.pop("RECIPE")
    assert list(lines) == [one.name for one in shipped_recipes()]
    for one in shipped_recipes():
        assert lines[one.name][header.index("TASK") :].startswith(f"{one.recipe.task} ")
        assert lines[one.name][header.index("DATA") :].startswith(one.data_availability())


def test_recipes_tells_whether_data_must_be_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("REGARD_DATA", raising=False)
    data = {one.name: one.data_availability() for one in shipped_recipes()}
    assert data["quick"] == "included"
    assert data["shakespeare"] == "download"
    assert data["transformer-base"] == "bring"
    path = tmp_path / "own" / "tinyshakespeare" / "input.txt.gz"
    path.parent.mkdir(parents=True)
    path.touch()
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "own"))
    assert {one.name: one.data_availability() for one in shipped_recipes()}["shakespeare"] == "here"


def test_recipes_as_json() -> None:
    facts = [json.loads(line) for line in command("recipes", "--json").out.splitlines()]
    assert [one["name"] for one in facts] == [one.name for one in shipped_recipes()]
    assert all(one.keys() == {"name", "task", "description", "data", "data_needed", "expect"} for one in facts)


def test_recipe_prints_the_file_with_its_comments(tmp_path: Path) -> None:
    done = command("recipe", "gum-tags")
    assert (done.code, done.out, done.err) == (0, recipe_text("gum-tags"), "")
    assert "\n# " in done.out
    (tmp_path / "gum-tags.toml").write_text(done.out, encoding="utf-8")
    assert read_recipe(tmp_path / "gum-tags.toml") == read_recipe("gum-tags")
    assert command("recipe", tmp_path / "gum-tags.toml").out == done.out


def test_resolved_recipe_has_every_default() -> None:
    done = command("recipe", "quick", "--resolved")
    values = tomllib.loads(done.out)
    assert values["train"]["max_grad_norm"] == 1.0
    assert read_values(values).resolved() == read_recipe("quick").resolved()


def test_unknown_recipe_is_refused() -> None:
    assert_refused(command("recipe", "quik"), "'quik'", "quick")
