"""Ladders: what is wrong with one is said in a sentence that names the key or the rung."""

from importlib import resources
from pathlib import Path

import pytest

from regard.data.registry import find_dataset
from regard.errors import UserError
from regard.lab.compare.complexity import complexity_of
from regard.lab.compare.ladder import Ladder, dotted, list_ladders, read_ladder
from regard.lab.compare.plan import plan_runs, validate
from regard.task.recipe_io import read_recipe
from tests.lab.tiny import LADDER, write_tiny


def changed(folder: Path, old: str, new: str) -> Ladder:
    assert old in LADDER
    return read_ladder(write_tiny(folder, LADDER.replace(old, new)))[0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "steps"', 'kind = "hours"', "budget.kind: found 'hours'"),
        ("value = 6", "value = 0", "budget.value: found 0"),
        ("sizes = [1.0]", "sizes = [1.5]", "sizes.0: found 1.5; expected a fraction"),
        ('name = "wide"', 'name = "small"', "rungs.1.name: 'small' is the name of another rung"),
        ('label = "Wide & Transformer"', 'labl = "Wide"', "rungs.1.labl: unknown key; did you mean 'label'?"),
        ("recall = [1, 3]", "recall = [0]", "recall.0: found 0"),
    ],
)
def test_error_names_the_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        changed(tmp_path, old, new)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("model = { width = 32 }", 'model = { kind = "abacus" }', "rung 'wide': "),
        ("model = { width = 32 }", "model = { widht = 32 }", "rung 'wide': "),
        ("model = { width = 32 }", "train = { batch_tokens = 0 }", "rung 'wide': "),
        ("recall = [1, 3]", 'test = "dev"', "has no test set 'dev'; it has test"),
        (
            '{ kind = "steps", value = 6 }',
            '{ kind = "parameters", value = 100 }',
            "rung 'small': the budget of 100 param",
        ),
    ],
)
def test_error_names_the_rung(tmp_path: Path, old: str, new: str, message: str) -> None:
    ladder = changed(tmp_path, old, new)
    with pytest.raises(UserError) as error:
        validate(ladder)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_ladder_suggests_a_known_one() -> None:
    with pytest.raises(UserError, match="did you mean what-attention-buys"):
        read_ladder("what-attention-buy")


def test_unknown_rung_suggests_a_known_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no rung 'wyde'; did you mean 'wide'"):
        read_ladder(write_tiny(tmp_path))[0].only(["wyde"])


def test_override_of_ladder_and_of_recipes(tmp_path: Path) -> None:
    ladder, rest = read_ladder(write_tiny(tmp_path), ["seeds=2", "train.batch_tokens=64"])
    assert ladder.seeds == 2
    runs = plan_runs(ladder, rest, tmp_path / "data")
    assert [run.key for run in runs] == ["small-full-1", "wide-full-1", "small-full-2", "wide-full-2"]
    assert {run.recipe.train.batch_tokens for run in runs} == {64}
    assert [run.recipe.model["width"] for run in runs[:2]] == [16, 32]


def test_budget_of_parameters_scales_every_rung_to_it(tmp_path: Path) -> None:
    ladder = changed(tmp_path, '{ kind = "steps", value = 6 }', '{ kind = "parameters", value = 50000 }')
    from regard.model import build_meta, count_parameters

    for recipe, _ in validate(ladder).values():
        assert count_parameters(build_meta(recipe.expected_model_config)) == pytest.approx(50_000, rel=0.1)


def test_parts_of_the_data_are_nested(tmp_path: Path) -> None:
    ladder = changed(tmp_path, "sizes = [1.0]", "sizes = [1.0, 0.5, 0.1]")
    runs = plan_runs(ladder, [], tmp_path / "data")
    assert len(runs) == 6
    half, tenth = (
        (tmp_path / "data" / f"train-{name}.jsonl").read_text(encoding="utf-8").splitlines() for name in ("0.5", "0.1")
    )
    assert (len(half), len(tenth)) == (150, 30)
    assert half[:30] == tenth


def test_a_model_with_a_kind_replaces_that_of_the_recipe() -> None:
    table = {"model": {"kind": "recurrent", "width": 8}, "train": {"schedule": {"lr": 0.1}}}
    assert dotted(table) == {"model": {"kind": "recurrent", "width": 8}, "train.schedule.lr": 0.1}


@pytest.mark.parametrize("ladder", list_ladders(), ids=lambda ladder: ladder.name)
def test_shipped_ladder_is_valid(ladder: Ladder) -> None:
    recipes = validate(ladder)
    assert [*recipes] == [rung.name for rung in ladder.rungs]
    assert all(rung.reference for rung in ladder.rungs)
    assert all(complexity_of({"kind": recipe.expected_model_config.kind}) for recipe, _ in recipes.values())


@pytest.mark.parametrize("ladder", list_ladders(), ids=lambda ladder: ladder.name)
def test_all_runs_of_a_shipped_ladder_are_planned(ladder: Ladder, tmp_path: Path) -> None:
    recipe = read_recipe(ladder.base, dotted(ladder.overrides))
    if any(find_dataset(source.dataset, source.paths_given()) is None for source in recipe.data.train):
        pytest.skip("its data are not on this machine")
    keys = [run.key for run in plan_runs(ladder, [], tmp_path)]
    assert len(set(keys)) == len(keys)
    assert {key.rsplit("-", 2)[0] for key in keys} == {rung.name for rung in ladder.rungs}


@pytest.mark.parametrize("name", ["what-attention-buys-quick", "language-quick"])
def test_data_of_a_quick_ladder_ship_with_the_package(name: str) -> None:
    ladder, _ = read_ladder(name)
    recipe = read_recipe(ladder.base, dotted(ladder.overrides))
    sources = [*recipe.data.train, recipe.data.valid, *recipe.test_sources().values()]
    shipped = resources.files("regard.data") / "shipped"
    for source in sources:
        assert (shipped / source.dataset / source.path).is_file()
    assert ladder.device == "cpu"
