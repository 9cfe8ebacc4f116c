"""Recipes are read strictly, changed by a word, and written so that the same comes back."""

import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from regard import UserError
from regard.data.corpus import CorpusConfig
from regard.data.registry import dataset
from regard.model import EncoderDecoderConfig, count_parameters, transformer_base, transformer_big
from regard.task import Recipe, read_recipe, shipped_recipes
from regard.task.reading import changed, write_recipe
from regard.task.training import likely_cost
from regard.task.translation_recipe import TranslationRecipe
from tests.task.small import small_values, write_recipe_file

SHIPPED = [one.name for one in shipped_recipes()]
PAPER = {"transformer-base": transformer_base, "transformer-big": transformer_big}
DATA = {"train": [{"path": "train.tsv"}]}


def refusal(values: dict[str, Any]) -> str:
    with pytest.raises(UserError) as refused:
        TranslationRecipe.read(values)
    return str(refused.value)


def parameters(config: EncoderDecoderConfig) -> int:
    with torch.device("meta"):
        return count_parameters(config.build())


# What ships.


def test_the_recipes_that_are_promised_ship() -> None:
    assert {"quick", "multi30k-en-de", "tatoeba-en-tr", "transformer-base", "transformer-big"} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_says_what_to_expect(name: str) -> None:
    expect = read_recipe(name).expect
    assert expect is not None


def judged_on(recipe: Recipe) -> set[str]:
    """The sets a recipe is tested on: the validation part, where it names no others."""
    return set(recipe.places()) - {"train", "valid"} or {"valid"}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_expects_scores_of_test_sets_that_it_has(name: str) -> None:
    recipe = read_recipe(name)
    assert recipe.expect is not None
    assert recipe.expect.scores.keys() <= judged_on(recipe)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_that_was_measured_expects_a_score_of_each_of_its_test_sets(name: str) -> None:
    recipe = read_recipe(name)
    assert recipe.expect is not None
    if recipe.expect.measured:
        assert recipe.expect.scores.keys() == judged_on(recipe)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_uses_files_that_its_named_sets_have(name: str) -> None:
    for part in chain.from_iterable(read_recipe(name).places().values()):
        if part.set is not None:
            known = {file.name for file in dataset(part.set).files}
            named = [getattr(part, key, None) for key in ("path", "source", "target", "labels")]
            assert {one for one in named if isinstance(one, str)} <= known


@pytest.mark.parametrize("name", SHIPPED)
def test_the_cost_of_a_shipped_recipe_counts_the_parameters_that_its_model_has(name: str) -> None:
    recipe = read_recipe(name)
    assert likely_cost(recipe).parameters == parameters(recipe.settings)


def test_multi30k_has_at_most_six_million_parameters_outside_word_vectors() -> None:
    assert likely_cost(read_recipe("multi30k-en-de")).non_embedding <= 6_000_000


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_recipes_have_the_papers_models(name: str) -> None:
    assert parameters(read_recipe(name).settings) == parameters(PAPER[name](37_000))


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_recipes_have_the_papers_dropout(name: str) -> None:
    """Vaswani et al. 2017, table 3."""
    settings, paper = read_recipe(name).settings, PAPER[name](37_000)
    found = (settings.embedding.dropout, settings.encoder.dropout, settings.decoder.dropout)
    assert found == (paper.embedding.dropout, paper.encoder.dropout, paper.decoder.dropout)


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_recipes_have_the_rate_of_equation_3(name: str) -> None:
    """rate = width^-½ · min(step^-½, step · warmup^-1.5), Vaswani et al. 2017, eq. 3."""
    recipe = read_recipe(name)
    warmup = recipe.train.schedule.warmup
    for step in (1, warmup // 2, warmup, 10 * warmup):
        wanted = recipe.settings.width**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert recipe.train.schedule.at(step) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_recipes_search_as_the_paper_did(name: str) -> None:
    """Beam 4, α = 0.6, at most the input's length + 50 (Vaswani et al. 2017, §6.1)."""
    decode = read_recipe(name).decode
    found = (decode.beams, decode.penalty, decode.strength, decode.longest_factor, decode.longest_extra)
    assert found == (4, "paper", 0.6, 1.0, 50)


@pytest.mark.parametrize(
    ("name", "steps", "averaged"), [("transformer-base", 100_000, 5), ("transformer-big", 300_000, 20)]
)
def test_the_papers_recipes_train_and_average_as_the_paper_did(name: str, steps: int, averaged: int) -> None:
    """Vaswani et al. 2017, §5.2 and §6.1."""
    train = read_recipe(name).train
    assert (train.steps, train.final, train.average, train.loss.smoothing) == (steps, "mean", averaged, 0.1)


# Written and read again.


@pytest.mark.parametrize("name", SHIPPED)
def test_a_recipe_written_into_a_folder_and_read_again_is_the_same_run(name: str, tmp_path: Path) -> None:
    """A run folder keeps its recipe so that the run can go on by it: all but the model's defaults must come back."""
    recipe = read_recipe(name)
    path = tmp_path / "recipe.toml"
    path.write_text(write_recipe(recipe), encoding="utf-8")
    again = read_recipe(path)
    assert again.plain() | {"model": None} == recipe.plain() | {"model": None}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_recipe_written_and_read_again_has_the_same_model(name: str, tmp_path: Path) -> None:
    recipe = read_recipe(name)
    path = tmp_path / "recipe.toml"
    path.write_text(write_recipe(recipe), encoding="utf-8")
    assert read_recipe(path).settings == recipe.settings


def test_a_recipe_written_twice_is_the_same_text(tmp_path: Path) -> None:
    first = write_recipe(read_recipe("quick"))
    path = tmp_path / "recipe.toml"
    path.write_text(first, encoding="utf-8")
    assert write_recipe(read_recipe(path)) == first


# Changes.


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ("train.steps=7", 7),
        ("train.steps = 7", 7),
        ("train.steps=1_000", 1000),
        ("train.steps=0.5", 0.5),
        ("train.steps=true", True),
        ("train.steps=[1, 2]", [1, 2]),
        ('train.steps="7"', "7"),
        ("train.steps=float16", "float16"),
        ("train.steps=a=b", "a=b"),
        ("train.steps=", ""),
    ],
)
def test_a_change_is_read_as_toml_and_else_as_text(change: str, wanted: object) -> None:
    found = changed({"train": {"steps": 3}}, change)["train"]["steps"]
    assert (found, type(found)) == (wanted, type(wanted))


def test_a_change_leaves_the_rest_and_what_it_was_given_alone() -> None:
    before = {"train": {"steps": 3, "seed": 1}, "task": "translation"}
    after = changed(before, "train.steps=7")
    assert after == {"train": {"steps": 7, "seed": 1}, "task": "translation"}
    assert before["train"] == {"steps": 3, "seed": 1}


def test_a_change_makes_the_tables_that_are_missing() -> None:
    assert changed({}, "train.schedule.rate=0.1") == {"train": {"schedule": {"rate": 0.1}}}


def test_a_change_reaches_into_a_list_by_number() -> None:
    values = {"data": {"train": [{"weight": 1.0}, {"weight": 1.0}]}}
    assert changed(values, "data.train.1.weight=2.0") == {"data": {"train": [{"weight": 1.0}, {"weight": 2.0}]}}


@pytest.mark.parametrize("number", ["2", "-1", "first"])
def test_a_change_of_an_entry_that_is_not_there_says_how_many_there_are(number: str) -> None:
    with pytest.raises(UserError, match="none of the 2 entries there; they count from 0"):
        changed({"data": {"train": [{}, {}]}}, f"data.train.{number}.weight=2")


@pytest.mark.parametrize("change", ["train.steps", "=7", "train..steps=7", ".=1", ""])
def test_a_change_without_key_or_value_is_refused_with_an_example(change: str) -> None:
    with pytest.raises(UserError, match=r"expected a key and a value, such as train\.steps=1000"):
        changed({}, change)


def test_a_change_inside_a_single_value_is_refused() -> None:
    with pytest.raises(UserError, match="no 'more' inside a single value"):
        changed({"train": {"steps": 3}}, "train.steps.more=1")


def test_a_changed_recipe_is_checked_as_any_other() -> None:
    with pytest.raises(UserError, match=r"recipe quick: train\.stepz: unknown key; did you mean 'steps'\?"):
        read_recipe("quick", ["train.stepz=7"])


def test_changes_are_made_one_after_the_other() -> None:
    assert read_recipe("quick", ["train.seed=7", "train.seed=8"]).train.seed == 8


# Paths.


def test_paths_in_a_file_are_meant_from_where_it_lies(tmp_path: Path) -> None:
    data = {
        "train": [{"path": "a.tsv"}],
        "valid": {"source": "b.en", "target": "../b.de"},
        "test": {"t": {"path": "c.tsv"}},
    }
    found = read_recipe(write_recipe_file(tmp_path / "small.toml", data)).data
    assert found.valid is not None
    places = [found.train[0].path, found.valid.source, found.valid.target, found.test["t"].path]
    assert [Path(str(place)).resolve() for place in places] == [
        tmp_path / "a.tsv",
        tmp_path / "b.en",
        tmp_path.parent / "b.de",
        tmp_path / "c.tsv",
    ]


def test_the_folder_of_old_weights_in_a_file_is_meant_from_where_the_file_lies(tmp_path: Path) -> None:
    path = write_recipe_file(tmp_path / "small.toml", DATA)
    path.write_text('init_from = "old/run"\n' + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert read_recipe(path).init_from == str(tmp_path / "old" / "run")


def test_the_name_of_a_shipped_model_to_start_from_stays_as_it_is(tmp_path: Path) -> None:
    assert read_recipe(write_recipe_file(tmp_path / "small.toml", DATA, "init_from=en-tr")).init_from == "en-tr"


def test_paths_inside_a_named_set_stay_as_they_are(tmp_path: Path) -> None:
    path = write_recipe_file(
        tmp_path / "small.toml", {"train": [{"set": "tatoeba-en-tr-small", "path": "train.tsv.gz"}]}
    )
    assert read_recipe(path).data.train[0].path == "train.tsv.gz"


def test_a_path_that_is_absolute_stays_as_it_is(tmp_path: Path) -> None:
    path = write_recipe_file(tmp_path / "small.toml", {"train": [{"path": "/elsewhere/a.tsv"}]})
    assert read_recipe(path).data.train[0].path == "/elsewhere/a.tsv"


@pytest.mark.parametrize(
    "change", ["data.train.0.path=own.tsv", 'data.train=[{path="own.tsv"}]', 'data.valid={path="own.tsv"}']
)
def test_a_path_given_by_a_change_is_meant_from_where_one_is(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not from where the run folder will be, whose recipe.toml is read again when the run goes on."""
    path = write_recipe_file(tmp_path / "small.toml", DATA)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    data = read_recipe(path, [change]).data
    assert str(here / "own.tsv") in (data.train[0].path, None if data.valid is None else data.valid.path)


# Wrong recipes.


@pytest.mark.parametrize(
    ("change", "key", "near"),
    [
        ("desciption=1", "desciption", "description"),
        ("data.hold_uot=1", "data.hold_uot", "hold_out"),
        ("data.train.0.pth=1", "data.train.0.pth", "path"),
        ("data.filter.longest_word=1", "data.filter.longest_word", "longest_words"),
        ("tokenizer.share=true", "tokenizer.share", "shared"),
        ("train.schedule.warmpu=1", "train.schedule.warmpu", "warmup"),
        ("train.optimiser.beta=1", "train.optimiser.beta", "betas"),
        ("model.widht=16", "model.widht", "width"),
        ("model.encoder.layer=1", "model.encoder.layer", "layers"),
        ("model.encoder.attention.haeds=1", "model.encoder.attention.haeds", "heads"),
        ("decode.beam=1", "decode.beam", "beams"),
        ("score.lowercased=true", "score.lowercased", "lowercase"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_that_is_known(change: str, key: str, near: str) -> None:
    assert refusal(small_values(DATA, change)) == f"{key}: unknown key; did you mean {near!r}?"


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("train.steps=0", "train.steps"),
        ("train.steps=1.5", "train.steps"),
        ("train.seed=-1", "train.seed"),
        ("train.schedule.rate=0", "train.schedule.rate"),
        ("train.loss.smoothing=1.5", "train.loss.smoothing"),
        ("train.precision=fp8", "train.precision"),
        ("data.hold_out=-1", "data.hold_out"),
        ("data.train=[]", "data.train"),
        ("data.train.0.weight=0", "data.train.0.weight"),
        ("data.train.0.columns=[0, 1]", "data.train.0.columns"),
        ("data.longest=0", "data.longest"),
        ("tokenizer.vocabulary=5", "tokenizer.vocabulary"),
        ("model.width=0", "model.width"),
        ("model.encoder.attention.heads=0", "model.encoder.attention.heads"),
        ("decode.beams=0", "decode.beams"),
        ("task=speech", "task"),
    ],
)
def test_a_value_out_of_range_names_its_key(change: str, key: str) -> None:
    assert re.match(rf"{re.escape(key)}(\.\d+)?: ", refusal(small_values(DATA, change)))


@pytest.mark.parametrize("key", ["vocabulary", "source_vocabulary", "tokens"])
def test_what_follows_from_the_tokenizer_is_refused_in_the_model(key: str) -> None:
    wanted = f"model.{key}: this follows from the tokenizer; leave this key out."
    assert refusal(small_values(DATA, f"model.{key}=300")) == wanted


@pytest.mark.parametrize("key", ["description", "data", "train"])
def test_a_key_that_is_missing_is_asked_for(key: str) -> None:
    values = {name: value for name, value in small_values(DATA).items() if name != key}
    assert refusal(values) == f"{key}: this key is required; please give it a value."


@pytest.mark.parametrize("left_out", ["scores", "seeds", "minutes", "hardware"])
def test_a_measured_recipe_gives_all_that_was_measured(left_out: str) -> None:
    expect = {"measured": True, "scores": {"t": {"bleu": 1.0}}, "seeds": 1, "minutes": 1.0, "hardware": "a computer"}
    del expect[left_out]
    assert refusal(small_values(DATA) | {"expect": expect}).startswith("expect.measured: ")


def test_a_measured_recipe_that_gives_all_of_it_is_taken() -> None:
    expect = {"measured": True, "scores": {"t": {"bleu": 1.0}}, "seeds": 1, "minutes": 1.0, "hardware": "a computer"}
    assert TranslationRecipe.read(small_values(DATA) | {"expect": expect}).expect is not None


def test_scores_that_were_not_measured_need_their_source() -> None:
    expect = {"measured": False, "scores": {"t": {"bleu": 1.0}}}
    assert refusal(small_values(DATA) | {"expect": expect}).startswith("expect.source: ")


def test_toml_that_does_not_parse_names_the_file_and_the_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text('description = "x"\n[data\n', encoding="utf-8")
    with pytest.raises(UserError, match=rf"{re.escape(str(path))} is not TOML: .*line 2"):
        read_recipe(path)


def test_a_file_that_is_no_utf8_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(b'description = "\xff"\n')
    with pytest.raises(UserError, match=re.escape(str(path))):
        read_recipe(path)


def test_an_error_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = write_recipe_file(tmp_path / "small.toml", DATA, "train.steps=0")
    with pytest.raises(UserError, match=rf"{re.escape(str(path))}: train\.steps: "):
        read_recipe(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(str(tmp_path / "none.toml"))):
        read_recipe(tmp_path / "none.toml")


def test_an_unknown_name_suggests_those_near_it() -> None:
    with pytest.raises(UserError, match=r"no recipe named 'multi30k-de'; did you mean .*multi30k-en-de"):
        read_recipe("multi30k-de")


def test_a_name_like_no_other_points_to_the_list() -> None:
    with pytest.raises(UserError, match="`regard recipes` lists them"):
        read_recipe("zzzzzz")


# One's own pairs.


def test_given_pairs_take_the_place_of_all_data() -> None:
    own = CorpusConfig(path="/own.tsv")
    data = read_recipe("quick", pairs=own).data
    assert (data.train, data.valid, data.test) == ((own,), None, {})


def test_given_pairs_leave_other_settings_of_the_data_alone(tmp_path: Path) -> None:
    path = write_recipe_file(tmp_path / "small.toml", DATA | {"hold_out": 7, "longest": 99})
    data = read_recipe(path, pairs=CorpusConfig(path="/own.tsv")).data
    assert (data.hold_out, data.longest) == (7, 99)


def test_given_pairs_drop_what_the_recipe_expects_of_its_own() -> None:
    assert read_recipe("quick").expect is not None
    assert read_recipe("quick", pairs=CorpusConfig(path="/own.tsv")).expect is None


def test_given_pairs_are_scored_as_ordinary_text_where_the_recipes_own_are_tokenised() -> None:
    assert read_recipe("multi30k-en-de").score.tokenised
    assert not read_recipe("multi30k-en-de", pairs=CorpusConfig(path="/own.tsv")).score.tokenised


def test_the_description_names_the_given_pairs() -> None:
    assert read_recipe("quick", pairs=CorpusConfig(path="/own.tsv")).description == "quick, on /own.tsv."
