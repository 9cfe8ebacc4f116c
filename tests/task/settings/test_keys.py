"""Every key of every recipe can be found: by its name, by part of it, or by words of its description."""

import pytest

from regard.errors import UserError
from regard.task.recipe_io import read_recipe, shipped_recipes
from regard.task.registry import TASKS
from regard.task.settings import Setting, all_settings, find_settings, get_task_settings, task_settings
from tests.task.settings.keys import keys_of


def keys(found: list[Setting]) -> list[str]:
    return list(dict.fromkeys(one.key for one in found))


def found_key(query: str, task: str = "translation") -> Setting:
    (found,) = find_settings(query, task_settings(task))
    return found


def test_every_key_of_every_recipe_is_a_known_setting() -> None:
    for shipped in shipped_recipes():
        recipe = shipped.recipe
        known = {one.key for one in task_settings(recipe.task)} | {f"train.{key}" for key in recipe.unused_train_keys}
        assert keys_of(recipe.resolved()) <= known, shipped.name


def test_a_key_is_found_by_its_name() -> None:
    setting = found_key("train.schedule.warmup_steps")
    assert (setting.type, setting.default, setting.required) == ("integer of at least 0", "4000", False)
    assert setting.meaning.startswith("The number of steps")
    assert found_key("train.schedule.lr").required


def test_indices_and_names_are_placeholders() -> None:
    assert found_key("data.train.0.weight").key == "data.train.N.weight"
    assert found_key("data.test.news.source").key == "data.test.NAME.source"


def test_a_table_is_found_with_its_keys_but_not_those_of_nested_tables() -> None:
    found = keys(find_settings("[train]", all_settings()))
    assert found[0] == "train"
    assert {"train.steps", "train.schedule"} <= set(found)
    assert "train.schedule.lr" not in found


def test_part_of_a_key_finds_all_keys_that_contain_it() -> None:
    assert keys(find_settings("warmup", all_settings())) == ["train.schedule.warmup_steps"]
    heads = keys(find_settings("attention.heads", all_settings()))
    assert heads == ["model.decoder.attention.heads", "model.encoder.attention.heads"]


def test_words_of_the_description_find_a_key() -> None:
    assert keys(find_settings("nucleus sampling", all_settings())) == ["decode.top_p"]


@pytest.mark.parametrize(
    ("query", "nearest"), [("train.lr", "train.schedule.lr"), ("train.optimiser.kind", "train.optimizer.kind")]
)
def test_an_unknown_key_is_an_error_with_the_nearest(query: str, nearest: str) -> None:
    with pytest.raises(UserError, match=f"'{query}'.*{nearest}"):
        find_settings(query, all_settings())


def test_an_unknown_task_is_an_error() -> None:
    with pytest.raises(UserError, match=r"'translaton'.*'translation'"):
        get_task_settings("translaton")


def test_settings_name_their_tasks() -> None:
    tasks = {one.key: one.tasks for one in all_settings()}
    assert set(tasks["train.save_dtype"]) == set(TASKS)
    assert tasks["masking.probability"] == ("masked-lm",)
    assert "language-modeling" not in tasks["train.length_buckets"]  # where it has no effect, it cannot be given


def test_keys_that_follow_from_the_data_are_no_settings() -> None:
    known = {one.key for one in all_settings()}
    assert not known & {"model.vocab_size", "model.special_tokens", "model.head.labels", "model.image_size"}


def test_defaults_are_those_of_the_task() -> None:
    assert found_key("decode.beam_size").default == "5"
    assert found_key("decode.beam_size", "parsing").default == "4"
    assert found_key("model.head.pooling", "text-classification").default == '"mean"'


def test_a_table_that_is_given_in_part_keeps_the_defaults_of_its_task() -> None:
    recipe = read_recipe("gum-parse", ["decode={beam_size = 2}"])
    assert recipe.decode.beam_size == 2
    assert recipe.decode.max_length_ratio == 4.0
    assert recipe.decode.length_penalty.kind == "none"


def test_keys_of_one_kind_name_it() -> None:
    assert found_key("model.encoder.attention.kv_latent").condition == 'model.encoder.attention.kind = "latent"'
    assert found_key("model.encoder.attention.heads").condition == ""
