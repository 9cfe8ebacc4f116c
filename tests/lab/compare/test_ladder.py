"""Ladders: what is wrong with one is said in a sentence that names the key or the rung."""

from importlib import resources
from pathlib import Path

import pytest

from regard.data.registry import find_dataset
from regard.errors import UserError
from regard.lab.compare.complexity import complexity_of
from regard.lab.compare.ladder import BudgetConfig, Ladder, dotted, list_ladders, read_ladder
from regard.lab.compare.plan import plan_runs, validate
from regard.task.recipe_io import read_recipe
from tests.lab.tiny import LADDER, RECIPE, write_tiny


def changed(folder: Path, old: str, new: str) -> Ladder:
    assert old in LADDER
    return read_ladder(write_tiny(folder, LADDER.replace(old, new)))[0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "steps"', 'kind = "hours"', "budget.kind: found 'hours'"),
        ("value = 6", "value = 0", "budget.value: found 0"),
        ("sizes = [1.0]", "sizes = [1.5]", "sizes.0: found 1.5; expected less than or equal to 1"),
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


def with_own_recipe(folder: Path, old: str = "", new: str = "") -> Ladder:
    """The rung "wide" has a recipe of its own: that of the ladder, with a part of its text replaced."""
    assert old in RECIPE
    (folder / "wide.toml").write_text(RECIPE.replace(old, new), encoding="utf-8")
    return changed(folder, "overrides = { model = { width = 32 } }", 'recipe = "wide.toml"')


def test_a_rung_has_the_settings_of_its_own_recipe(tmp_path: Path) -> None:
    ladder = with_own_recipe(tmp_path, "width = 16", "width = 24")
    small, wide = plan_runs(ladder, [], tmp_path / "data")
    assert (small.recipe.model["width"], wide.recipe.model["width"]) == (16, 24)
    assert ladder.recipe_of(wide.rung) == str(tmp_path / "wide.toml")


def test_settings_of_the_ladder_hold_for_recipes_of_rungs(tmp_path: Path) -> None:
    ladder = with_own_recipe(tmp_path, "batch_tokens = 128", "batch_tokens = 64")
    ladder = ladder.model_copy(update={"overrides": {"train": {"log_every": 5}}})
    small, wide = plan_runs(ladder, ["train.save_every=2"], tmp_path / "data")
    assert [run.recipe.train.batch_tokens for run in (small, wide)] == [128, 64]
    assert {(run.recipe.train.log_every, run.recipe.train.save_every) for run in (small, wide)} == {(5, 2)}


def test_budget_of_parameters_has_the_steps_of_the_base(tmp_path: Path) -> None:
    ladder = with_own_recipe(tmp_path, "steps = 6", "steps = 60")
    ladder = ladder.model_copy(update={"budget": BudgetConfig(kind="parameters", value=50_000)})
    assert {run.recipe.train.steps for run in plan_runs(ladder, [], tmp_path / "data")} == {6}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('train = [{ path = "train.tsv" }]', 'train = [{ path = "valid.tsv" }]', "data.train: "),
        ('valid = { path = "valid.tsv" }', 'valid = { path = "test.tsv" }', "data.valid: "),
        ('test = { test = { path = "test.tsv" } }', 'test = { test = { path = "valid.tsv" } }', "data.test.test: "),
        ("[decode]", "[score]\nlowercase = true\n[decode]", "score: "),
        ('task = "translation"', 'task = "parsing"', "wide.toml is for parsing, and "),
        ("width = 16", "widht = 16", "model.widht: "),
    ],
)
def test_recipe_of_a_rung_that_cannot_be_compared_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        validate(with_own_recipe(tmp_path, old, new))
    assert "rung 'wide': " in str(error.value)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_recipe_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rung 'wide': .*other.toml: there is no such recipe"):
        validate(changed(tmp_path, "overrides = { model = { width = 32 } }", 'recipe = "other.toml"'))


def test_a_rung_that_starts_from_another_has_its_recipe(tmp_path: Path) -> None:
    more = 'label = "Wide & Transformer"\ninit_from = "small"\nrecipe = "recipe.toml"'
    with pytest.raises(UserError, match=r"rungs.1.recipe: the recipe is that of 'small'"):
        changed(tmp_path, 'label = "Wide & Transformer"', more)


def test_a_folder_named_like_a_recipe_is_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `regard train brown-lstm --out brown-lstm`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "brown-lstm").mkdir()
    (tmp_path / "brown-lstm" / "recipe.toml").write_text("a recipe that cannot be read", encoding="utf-8")
    lstm = validate(read_ladder("language")[0].only(["lstm"]))["lstm"]
    assert lstm.recipe.model == read_recipe(Path(str(resources.files("regard"))) / "recipes" / "brown-lstm.toml").model


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

    for rung in validate(ladder).values():
        assert count_parameters(build_meta(rung.recipe.expected_model_config)) == pytest.approx(50_000, rel=0.1)


def test_parts_of_the_data_are_nested(tmp_path: Path) -> None:
    ladder = changed(tmp_path, "sizes = [1.0]", "sizes = [1.0, 0.5, 0.1]")
    runs = plan_runs(ladder, [], tmp_path / "data")
    assert len(runs) == 6
    half, tenth = (
        (tmp_path / "data" / f"train-{name}.jsonl").read_text(encoding="utf-8").splitlines() for name in ("0.5", "0.1")
    )
    assert (len(half), len(tenth)) == (150, 30)
    assert half[:30] == tenth


def test_parts_of_the_data_have_a_budget_of_their_own(tmp_path: Path) -> None:
    budget = '{ kind = "steps", value = 6 }'
    path = write_tiny(tmp_path, LADDER.replace(budget, '{ kind = "steps", value = 6, value_of_parts = 3 }'))
    ladder, _ = read_ladder(path, ["sizes=[1.0, 0.5]"])
    steps = {run.key: run.recipe.train.steps for run in plan_runs(ladder, [], tmp_path / "data")}
    assert steps == {"small-full-1": 6, "wide-full-1": 6, "small-0.5-1": 3, "wide-0.5-1": 3}
    with pytest.raises(UserError, match=r"budget\.value_of_parts: a model is as large for a part of the data"):
        read_ladder(path, ["budget.kind=parameters"])


def test_a_model_with_a_kind_replaces_that_of_the_recipe() -> None:
    table = {"model": {"kind": "recurrent", "width": 8}, "train": {"schedule": {"lr": 0.1}}}
    assert dotted(table) == {"model": {"kind": "recurrent", "width": 8}, "train.schedule.lr": 0.1}


@pytest.mark.parametrize("ladder", list_ladders(), ids=lambda ladder: ladder.name)
def test_shipped_ladder_is_valid(ladder: Ladder) -> None:
    recipes = validate(ladder)
    assert [*recipes] == [rung.name for rung in ladder.rungs]
    assert all(rung.reference for rung in ladder.rungs)
    # A number for the ladder's own test set names none, so that the reading compares with it.
    named = {each.test.replace(" ", "_") for rung in ladder.rungs for each in rung.published}
    assert ladder.test not in named
    assert all(complexity_of(each.recipe.expected_model_config) for each in recipes.values())


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
