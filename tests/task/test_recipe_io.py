"""Recipes are validated strictly, changed by overrides, and written losslessly."""

import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from regard import UserError
from regard.data.registry import dataset_info
from regard.data.text.corpus import CorpusConfig
from regard.model import EncoderDecoderConfig, count_parameters, transformer_base, transformer_big
from regard.score.word_vectors import PAIR_SETS
from regard.task.base import Recipe
from regard.task.recipe_io import apply_override, read_recipe, shipped_recipes, with_steps, write_recipe
from regard.task.registry import TASKS
from regard.task.run import expected_cost
from regard.task.translation.recipe import TranslationRecipe
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


# Shipped recipes


def test_expected_recipes_ship() -> None:
    assert {"quick", "multi30k-en-de", "tatoeba-en-tr", "transformer-base", "transformer-big"} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_recipe_has_an_expect_table(name: str) -> None:
    expect = read_recipe(name).expect
    assert expect is not None


def test_every_task_has_a_recipe_for_a_cpu() -> None:
    quick = {name: read_recipe(name) for name in SHIPPED if name.startswith("quick")}
    assert {recipe.task for recipe in quick.values()} == set(TASKS)
    for name, recipe in quick.items():
        assert recipe.train.precision != "bfloat16", name
        assert parameters(recipe.expected_model_config) <= 5_000_000, name
        if recipe.expected_model_config.kind not in ("ngram", "skip-gram"):  # which are validated once, or not at all
            assert 2 * recipe.train.validate_every <= recipe.train.steps, name


def evaluation_sets(recipe: Recipe) -> set[str]:
    """The test sets of a recipe; the validation set if it has none. Word vectors are tested on pairs of words."""
    if recipe.task == "word-vectors":
        return set(PAIR_SETS)
    return set(recipe.data_sources()) - {"train", "valid"} or {"valid"}


@pytest.mark.parametrize("name", SHIPPED)
def test_expected_scores_are_of_existing_test_sets(name: str) -> None:
    recipe = read_recipe(name)
    assert recipe.expect is not None
    assert recipe.expect.scores.keys() <= evaluation_sets(recipe)


@pytest.mark.parametrize("name", SHIPPED)
def test_measured_recipe_expects_a_score_for_every_test_set(name: str) -> None:
    recipe = read_recipe(name)
    assert recipe.expect is not None
    if recipe.expect.measured:
        assert recipe.expect.scores.keys() == evaluation_sets(recipe)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_recipe_uses_files_of_its_datasets(name: str) -> None:
    for part in chain.from_iterable(read_recipe(name).data_sources().values()):
        if part.dataset is not None:
            known = {file.name for file in dataset_info(part.dataset).files}
            named = [getattr(part, key, None) for key in ("path", "source", "target", "labels")]
            assert {one for one in named if isinstance(one, str)} <= known


@pytest.mark.parametrize("name", [name for name in SHIPPED if read_recipe(name).task != "word-vectors"])
def test_expected_cost_counts_the_models_parameters(name: str) -> None:
    recipe = read_recipe(name)
    assert expected_cost(recipe).parameters == parameters(recipe.expected_model_config)


def test_multi30k_has_at_most_6_million_non_embedding_parameters() -> None:
    assert expected_cost(read_recipe("multi30k-en-de")).non_embedding_parameters <= 6_000_000


@pytest.mark.parametrize("name", PAPER)
def test_paper_recipes_have_the_papers_models(name: str) -> None:
    assert parameters(read_recipe(name).expected_model_config) == parameters(PAPER[name](37_000))


@pytest.mark.parametrize("name", PAPER)
def test_paper_recipes_have_the_papers_dropout(name: str) -> None:
    """Vaswani et al. 2017, table 3."""
    settings, paper = read_recipe(name).expected_model_config, PAPER[name](37_000)
    actual = (settings.embedding.dropout, settings.encoder.dropout, settings.decoder.dropout)
    assert actual == (paper.embedding.dropout, paper.encoder.dropout, paper.decoder.dropout)


@pytest.mark.parametrize("name", PAPER)
def test_paper_recipes_have_the_learning_rate_of_equation_3(name: str) -> None:
    """lr = width^-½ · min(step^-½, step · warmup^-1.5), Vaswani et al. 2017, eq. 3."""
    recipe = read_recipe(name)
    warmup = recipe.train.schedule.warmup_steps
    for step in (1, warmup // 2, warmup, 10 * warmup):
        expected = recipe.expected_model_config.width**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert recipe.train.schedule.at(step) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", PAPER)
def test_paper_recipes_have_the_papers_beam_search(name: str) -> None:
    """Beam 4, α = 0.6, at most the input's length + 50 (Vaswani et al. 2017, §6.1)."""
    decode = read_recipe(name).decode
    assert (decode.beam_size, decode.max_length_ratio, decode.max_length_offset) == (4, 1.0, 50)
    assert (decode.length_penalty.kind, decode.length_penalty.alpha) == ("gnmt", 0.6)


@pytest.mark.parametrize(
    ("name", "steps", "averaged"), [("transformer-base", 100_000, 5), ("transformer-big", 300_000, 20)]
)
def test_paper_recipes_average_checkpoints_as_the_paper(name: str, steps: int, averaged: int) -> None:
    """Vaswani et al. 2017, §5.2 and §6.1."""
    train = read_recipe(name).train
    assert (train.steps, train.final_weights, train.average_last, train.loss.label_smoothing) == (
        steps,
        "average",
        averaged,
        0.1,
    )


# Round trips


@pytest.mark.parametrize("name", SHIPPED)
def test_written_recipe_reads_as_the_same_run(name: str, tmp_path: Path) -> None:
    """Runs resume from the recipe in their folder, so everything but the model's defaults must round-trip."""
    recipe = read_recipe(name)
    path = tmp_path / "recipe.toml"
    path.write_text(write_recipe(recipe), encoding="utf-8")
    again = read_recipe(path)
    assert again.plain() | {"model": None} == recipe.plain() | {"model": None}


@pytest.mark.parametrize("name", SHIPPED)
def test_written_recipe_has_the_same_model(name: str, tmp_path: Path) -> None:
    recipe = read_recipe(name)
    path = tmp_path / "recipe.toml"
    path.write_text(write_recipe(recipe), encoding="utf-8")
    assert read_recipe(path).expected_model_config == recipe.expected_model_config


def test_writing_a_recipe_is_deterministic(tmp_path: Path) -> None:
    first = write_recipe(read_recipe("quick"))
    path = tmp_path / "recipe.toml"
    path.write_text(first, encoding="utf-8")
    assert write_recipe(read_recipe(path)) == first


# Overrides


@pytest.mark.parametrize(
    ("change", "expected"),
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
def test_override_is_read_as_toml_or_as_a_string(change: str, expected: object) -> None:
    actual = apply_override({"train": {"steps": 3}}, change)["train"]["steps"]
    assert (actual, type(actual)) == (expected, type(expected))


def test_override_changes_one_value_in_a_copy() -> None:
    before = {"train": {"steps": 3, "seed": 1}, "task": "translation"}
    after = apply_override(before, "train.steps=7")
    assert after == {"train": {"steps": 7, "seed": 1}, "task": "translation"}
    assert before["train"] == {"steps": 3, "seed": 1}


def test_override_creates_missing_tables() -> None:
    assert apply_override({}, "train.schedule.lr=0.1") == {"train": {"schedule": {"lr": 0.1}}}


def test_override_indexes_lists() -> None:
    values = {"data": {"train": [{"weight": 1.0}, {"weight": 1.0}]}}
    assert apply_override(values, "data.train.1.weight=2.0") == {"data": {"train": [{"weight": 1.0}, {"weight": 2.0}]}}


@pytest.mark.parametrize("number", ["2", "-1", "first"])
def test_override_of_a_missing_entry_gives_their_number(number: str) -> None:
    with pytest.raises(UserError, match="none of the 2 entries there; they count from 0"):
        apply_override({"data": {"train": [{}, {}]}}, f"data.train.{number}.weight=2")


@pytest.mark.parametrize("change", ["train.steps", "=7", "train..steps=7", ".=1", ""])
def test_override_without_key_or_value_is_refused(change: str) -> None:
    with pytest.raises(UserError, match=r"expected a key and a value, such as train\.steps=1000"):
        apply_override({}, change)


def test_override_inside_a_single_value_is_refused() -> None:
    with pytest.raises(UserError, match="no 'more' inside a single value"):
        apply_override({"train": {"steps": 3}}, "train.steps.more=1")


def test_overridden_recipe_is_validated() -> None:
    with pytest.raises(UserError, match=r"recipe quick: train\.stepz: unknown key; did you mean 'steps'\?"):
        read_recipe("quick", ["train.stepz=7"])


def test_overrides_apply_in_order() -> None:
    assert read_recipe("quick", ["train.seed=7", "train.seed=8"]).train.seed == 8


# Paths


def test_paths_are_relative_to_the_recipe_file(tmp_path: Path) -> None:
    data = {
        "train": [{"path": "a.tsv"}],
        "valid": {"source": "b.en", "target": "../b.de"},
        "test": {"t": {"path": "c.tsv"}},
    }
    actual = read_recipe(write_recipe_file(tmp_path / "small.toml", data)).data
    assert actual.valid is not None
    paths = [actual.train[0].path, actual.valid.source, actual.valid.target, actual.test["t"].path]
    assert [Path(str(place)).resolve() for place in paths] == [
        tmp_path / "a.tsv",
        tmp_path / "b.en",
        tmp_path.parent / "b.de",
        tmp_path / "c.tsv",
    ]


def test_init_from_is_relative_to_the_recipe_file(tmp_path: Path) -> None:
    path = write_recipe_file(tmp_path / "small.toml", DATA)
    path.write_text('init_from = "old/run"\n' + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert read_recipe(path).init_from == str(tmp_path / "old" / "run")


def test_init_from_keeps_the_name_of_a_pretrained_model(tmp_path: Path) -> None:
    assert read_recipe(write_recipe_file(tmp_path / "small.toml", DATA, "init_from=en-tr")).init_from == "en-tr"


def test_init_from_keeps_that_name_in_a_recipe_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_recipe_file(tmp_path / "small.toml", DATA, "init_from=en-tr")
    monkeypatch.chdir(tmp_path)
    assert read_recipe("small.toml").init_from == "en-tr"


def test_paths_inside_a_dataset_are_unchanged(tmp_path: Path) -> None:
    path = write_recipe_file(
        tmp_path / "small.toml", {"train": [{"dataset": "tatoeba-en-tr-small", "path": "train.tsv.gz"}]}
    )
    assert read_recipe(path).data.train[0].path == "train.tsv.gz"


def test_absolute_path_is_unchanged(tmp_path: Path) -> None:
    path = write_recipe_file(tmp_path / "small.toml", {"train": [{"path": "/elsewhere/a.tsv"}]})
    assert read_recipe(path).data.train[0].path == "/elsewhere/a.tsv"


@pytest.mark.parametrize(
    "change", ["data.train.0.path=own.tsv", 'data.train=[{path="own.tsv"}]', 'data.valid={path="own.tsv"}']
)
def test_path_in_an_override_is_relative_to_the_working_directory(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not to the run folder, whose recipe.toml is read when the run resumes."""
    path = write_recipe_file(tmp_path / "small.toml", DATA)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    data = read_recipe(path, [change]).data
    assert str(here / "own.tsv") in (data.train[0].path, None if data.valid is None else data.valid.path)


# Invalid recipes


@pytest.mark.parametrize(
    ("change", "key", "near"),
    [
        ("desciption=1", "desciption", "description"),
        ("data.dev_sise=1", "data.dev_sise", "dev_size"),
        ("data.train.0.pth=1", "data.train.0.pth", "path"),
        ("data.filter.max_word=1", "data.filter.max_word", "max_words"),
        ("tokenizer.share=true", "tokenizer.share", "shared"),
        ("train.schedule.warmup_step=1", "train.schedule.warmup_step", "warmup_steps"),
        ("train.optimizer.beta=1", "train.optimizer.beta", "betas"),
        ("model.widht=16", "model.widht", "width"),
        ("model.encoder.layer=1", "model.encoder.layer", "layers"),
        ("model.encoder.attention.haeds=1", "model.encoder.attention.haeds", "heads"),
        ("decode.beam=1", "decode.beam", "beam_size"),
        ("score.lowercased=true", "score.lowercased", "lowercase"),
    ],
)
def test_unknown_key_suggests_the_nearest(change: str, key: str, near: str) -> None:
    assert refusal(small_values(DATA, change)) == f"{key}: unknown key; did you mean {near!r}?"


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("train.steps=0", "train.steps"),
        ("train.steps=1.5", "train.steps"),
        ("train.seed=-1", "train.seed"),
        ("train.schedule.lr=0", "train.schedule.lr"),
        ("train.loss.label_smoothing=1.5", "train.loss.label_smoothing"),
        ("train.precision=fp8", "train.precision"),
        ("data.dev_size=-1", "data.dev_size"),
        ("data.train=[]", "data.train"),
        ("data.train.0.weight=0", "data.train.0.weight"),
        ("data.train.0.columns=[0, 1]", "data.train.0.columns"),
        ("data.max_length=0", "data.max_length"),
        ("tokenizer.vocab_size=5", "tokenizer.vocab_size"),
        ("model.width=0", "model.width"),
        ("model.encoder.attention.heads=0", "model.encoder.attention.heads"),
        ("decode.beam_size=0", "decode.beam_size"),
        ("task=speech", "task"),
    ],
)
def test_value_out_of_range_names_its_key(change: str, key: str) -> None:
    assert re.match(rf"{re.escape(key)}(\.\d+)?: ", refusal(small_values(DATA, change)))


@pytest.mark.parametrize("key", ["vocab_size", "source_vocab_size", "special_tokens"])
def test_model_keys_that_follow_from_the_data_are_refused(key: str) -> None:
    expected = f"model.{key}: this follows from the data; leave this key out."
    assert refusal(small_values(DATA, f"model.{key}=300")) == expected


@pytest.mark.parametrize("key", ["description", "data", "train"])
def test_missing_key_is_named(key: str) -> None:
    values = {name: value for name, value in small_values(DATA).items() if name != key}
    assert refusal(values) == f"{key}: this key is required."


@pytest.mark.parametrize("left_out", ["scores", "seeds", "minutes", "hardware"])
def test_incomplete_measured_recipe_is_refused(left_out: str) -> None:
    expect = {"measured": True, "scores": {"t": {"bleu": 1.0}}, "seeds": 1, "minutes": 1.0, "hardware": "a computer"}
    del expect[left_out]
    assert refusal(small_values(DATA) | {"expect": expect}).startswith("expect.measured: ")


def test_complete_measured_recipe_is_accepted() -> None:
    expect = {"measured": True, "scores": {"t": {"bleu": 1.0}}, "seeds": 1, "minutes": 1.0, "hardware": "a computer"}
    assert TranslationRecipe.read(small_values(DATA) | {"expect": expect}).expect is not None


def test_unmeasured_scores_need_a_source() -> None:
    expect = {"measured": False, "scores": {"t": {"bleu": 1.0}}}
    assert refusal(small_values(DATA) | {"expect": expect}).startswith("expect.source: ")


def test_invalid_toml_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text('description = "x"\n[data\n', encoding="utf-8")
    with pytest.raises(UserError, match=rf"{re.escape(str(path))} is not TOML: .*line 2"):
        read_recipe(path)


def test_undecodable_recipe_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(b'description = "\xff"\n')
    with pytest.raises(UserError, match=re.escape(str(path))):
        read_recipe(path)


def test_error_names_the_recipe_file(tmp_path: Path) -> None:
    path = write_recipe_file(tmp_path / "small.toml", DATA, "train.steps=0")
    with pytest.raises(UserError, match=rf"{re.escape(str(path))}: train\.steps: "):
        read_recipe(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(str(tmp_path / "none.toml"))):
        read_recipe(tmp_path / "none.toml")


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no recipe named 'multi30k-de'; did you mean .*multi30k-en-de"):
        read_recipe("multi30k-de")


def test_unknown_name_points_to_the_list() -> None:
    with pytest.raises(UserError, match="`regard recipes` lists them"):
        read_recipe("zzzzzz")


# User data


def test_user_pairs_replace_all_data() -> None:
    own = CorpusConfig(path="/own.tsv")
    data = read_recipe("quick", pairs=own).data
    assert (data.train, data.valid, data.test) == ((own,), None, {})


def test_user_pairs_keep_other_data_settings(tmp_path: Path) -> None:
    path = write_recipe_file(tmp_path / "small.toml", DATA | {"dev_size": 7, "max_length": 99})
    data = read_recipe(path, pairs=CorpusConfig(path="/own.tsv")).data
    assert (data.dev_size, data.max_length) == (7, 99)


def test_user_pairs_drop_the_expect_table() -> None:
    assert read_recipe("quick").expect is not None
    assert read_recipe("quick", pairs=CorpusConfig(path="/own.tsv")).expect is None


def test_user_pairs_are_scored_as_raw_text() -> None:
    assert read_recipe("multi30k-en-de").score.tokenized
    assert not read_recipe("multi30k-en-de", pairs=CorpusConfig(path="/own.tsv")).score.tokenized


def test_description_names_the_user_pairs() -> None:
    assert read_recipe("quick", pairs=CorpusConfig(path="/own.tsv")).description == "quick, on /own.tsv."


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["train.steps=160"], 20),  # of 200 for 1,600 steps
        (["train.steps=5"], 0),
        (["train.steps=400"], 200),
        (["train.steps=160", "train.schedule.warmup_steps=3"], 3),
    ],
)
def test_warmup_that_no_longer_fits_is_shortened_with_the_steps(overrides: list[str], expected: int) -> None:
    assert read_recipe("quick", overrides).train.schedule.warmup_steps == expected


def test_warmup_that_is_given_is_never_shortened() -> None:
    with pytest.raises(UserError, match=r"train\.schedule\.warmup_steps"):
        read_recipe("quick", ["train.steps=160", "train.schedule.warmup_steps=160"])


def test_recipe_with_other_steps_has_a_schedule_of_that_length() -> None:
    recipe = read_recipe("quick", ["train.schedule.warmup_steps=200"])
    fewer = with_steps(recipe, 100)
    assert (fewer.train.steps, fewer.train.schedule.steps) == (100, 100)
    assert fewer.train.schedule.warmup_steps == 200 * 100 // recipe.train.steps
    assert with_steps(fewer, recipe.train.steps).train.schedule.steps == recipe.train.steps
    assert write_recipe(with_steps(recipe, recipe.train.steps)) == write_recipe(recipe)
