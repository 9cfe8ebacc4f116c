"""Preparing data: held-out pairs, filters, tokenizers, token stores and their cache."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from regard import UserError
from regard.data.store.token_store import TokenStore
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.task.base import Recipe
from regard.task.translation.prepare import PreparedPairs, prepare_pairs
from regard.task.translation.recipe import TranslationRecipe
from regard.task.translation.task import TranslationTask
from tests.task.small import (
    RecordingCallback,
    pairs,
    random_model,
    sentences,
    small_recipe,
    small_values,
    translated,
    write_table,
)

Row = tuple[str, str]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def prepared(recipe: Recipe, folder: Path, callback: RecordingCallback | None = None) -> PreparedPairs:
    folder.mkdir(exist_ok=True)
    return prepare_pairs(recipe, folder, (callback or RecordingCallback()).log, None)


def prepare_rows(
    rows: Sequence[Row], tmp_path: Path, *changes: str, callback: RecordingCallback | None = None
) -> PreparedPairs:
    """Prepare some pairs."""
    return prepared(small_recipe(write_table(tmp_path / "train.tsv", rows), *changes), tmp_path / "run", callback)


def texts(store: TokenStore, data: PreparedPairs) -> list[Row]:
    """The pairs in a store, as text."""
    return [(data.source.decode(source.tolist()), data.target.decode(target.tolist())) for source, target in store]


def held(data: PreparedPairs) -> list[Row]:
    return [tuple(pair) for pair in data.valid_pairs]


# Held-out pairs


def test_held_out_pairs_are_not_trained_on(tmp_path: Path) -> None:
    result = prepare_rows(pairs(60), tmp_path)
    assert held(result)
    assert not set(held(result)) & set(texts(result.train, result))


def test_all_other_pairs_are_trained_on(tmp_path: Path) -> None:
    rows = pairs(60)
    result = prepare_rows(rows, tmp_path)
    assert sorted(held(result) + texts(result.train, result)) == sorted(rows)


def test_validation_store_holds_the_held_out_pairs(tmp_path: Path) -> None:
    result = prepare_rows(pairs(60), tmp_path)
    assert result.valid is not None
    assert texts(result.valid, result) == held(result)


def test_pairs_sharing_a_held_out_sentence_are_not_trained_on(tmp_path: Path) -> None:
    """Each source has a second translation, each target a second source, so every held-out pair has such neighbors."""
    rows = pairs(40)
    rows += [(source, f"{target} ja") for source, target in rows[:40]] + [
        (f"{source} yes", target) for source, target in rows[:40]
    ]
    result = prepare_rows(rows, tmp_path)
    known = {side for pair in held(result) for side in pair}
    assert len(known) > 2
    assert not any(known & set(pair) for pair in texts(result.train, result))


def test_shared_sentences_ignore_case_and_punctuation(tmp_path: Path) -> None:
    rows = pairs(40)
    disguised = [(f"«{source.upper()}!»", f"{number} {target}") for number, (source, target) in enumerate(rows)]
    result = prepare_rows(rows + disguised, tmp_path)
    plain = {source.strip("«!»").lower() for source, _ in held(result)}
    assert plain
    assert not plain & {source.strip("«!»").lower() for source, _ in texts(result.train, result)}


@pytest.mark.parametrize("count", [20, 39, 40, 60])
def test_at_most_a_twentieth_is_held_out(count: int, tmp_path: Path) -> None:
    assert len(held(prepare_rows(pairs(count), tmp_path))) == count // 20


def test_dev_size_limits_held_out_pairs(tmp_path: Path) -> None:
    assert len(held(prepare_rows(pairs(60), tmp_path, "data.dev_size=2"))) == 2


def test_dev_size_of_0_holds_nothing_out(tmp_path: Path) -> None:
    result = prepare_rows(pairs(60), tmp_path, "data.dev_size=0")
    assert (held(result), result.valid, len(result.train)) == ([], None, 60)


def test_held_out_pairs_do_not_depend_on_the_seed(tmp_path: Path) -> None:
    """So runs with different seeds can be compared."""
    assert held(prepare_rows(pairs(60), tmp_path)) == held(prepare_rows(pairs(60), tmp_path, "train.seed=5"))


def test_held_out_pairs_do_not_depend_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    assert held(prepare_rows(pairs(60), tmp_path)) == held(prepare_rows(pairs(60), tmp_path / "elsewhere"))


def test_number_of_held_out_pairs_is_logged(tmp_path: Path) -> None:
    callback = RecordingCallback()
    prepare_rows(pairs(60), tmp_path, callback=callback)
    assert callback.messages == ["3 of 60 pairs are held out for validation (data.dev_size)."]


def test_single_pair_is_not_held_out(tmp_path: Path) -> None:
    callback = RecordingCallback()
    result = prepare_rows(pairs(1), tmp_path, callback=callback)
    assert (held(result), len(result.train)) == ([], 1)
    assert len(callback.messages) == 1
    assert callback.messages[0].startswith("With only 1 pair, none is held out")


def test_given_validation_set_holds_nothing_out(tmp_path: Path) -> None:
    rows, others = pairs(40), pairs(5, seed=2)
    data = {
        "train": [{"path": str(write_table(tmp_path / "train.tsv", rows))}],
        "valid": {"path": str(write_table(tmp_path / "valid.tsv", others))},
    }
    result = prepared(TranslationRecipe.read(small_values(data)), tmp_path / "run")
    assert (held(result), len(result.train)) == (others, 40)


def test_too_long_pair_is_not_validated_on(tmp_path: Path) -> None:
    """It would be translated at every validation; a very long line would take hours."""
    rows = [
        (source * 9, target * 9) if number % 2 else (source, target)
        for number, (source, target) in enumerate(pairs(60))
    ]
    result = prepare_rows(rows, tmp_path, "data.max_length=40")
    sides = [result.source.encode_batch([pair.source for pair in result.valid_pairs])]
    sides += [result.target.encode_batch([pair.target for pair in result.valid_pairs])]
    assert 0 < max(len(ids) for side in sides for ids in side) < 40  # with EOS on each side


def test_nothing_is_held_out_if_all_pairs_share_a_sentence(tmp_path: Path) -> None:
    result = prepare_rows([("hello", target) for target in sentences(20)], tmp_path)
    assert len(result.train) > 0


# Filters


def test_dropped_pairs_are_logged_once(tmp_path: Path) -> None:
    callback = RecordingCallback()
    prepare_rows(
        [*pairs(10), ("", "leer"), ("a" * 80, "b")], tmp_path, "data.filter.max_characters=50", callback=callback
    )
    (report,) = [sentence for sentence in callback.messages if "kept" in sentence]
    assert report.splitlines()[0] == "10 of 12 pairs kept"
    assert "1 dropped: a side is empty, first pair 11" in report
    assert "1 dropped: too many characters, first pair 12" in report


def test_filter_without_effect_is_not_logged(tmp_path: Path) -> None:
    callback = RecordingCallback()
    prepare_rows(pairs(10), tmp_path, callback=callback)
    assert not any("kept" in sentence for sentence in callback.messages)


def test_dropped_pairs_are_not_trained_on(tmp_path: Path) -> None:
    result = prepare_rows([*pairs(10), ("x" * 80, "y")], tmp_path, "data.filter.max_characters=50")
    assert sorted(texts(result.train, result)) == sorted(pairs(10))


def test_filter_that_drops_everything_is_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"(?s)No sentence pair is left to train on.*5 dropped: too many characters"):
        prepare_rows(pairs(5), tmp_path, "data.filter.max_characters=1")


# Tokenizers


def test_shared_tokenizer_is_trained_on_both_sides(tmp_path: Path) -> None:
    result = prepare_rows(pairs(20), tmp_path)
    assert result.source is result.target
    assert [path.name for path in (tmp_path / "run").glob("*.json")] == ["tokenizer.json"]
    assert {"r", "ß"} <= TextTokenizer.load(tmp_path / "run" / "tokenizer.json").tokenizer.get_vocab().keys()


def test_separate_tokenizers_are_trained_on_one_side_each(tmp_path: Path) -> None:
    result = prepare_rows(pairs(20), tmp_path, "tokenizer.shared=false")
    saved = [TextTokenizer.load(tmp_path / "run" / name) for name in ("tokenizer.json", "target_tokenizer.json")]
    assert [one.fingerprint for one in saved] == [result.source.fingerprint, result.target.fingerprint]
    assert ["ß" in one.tokenizer.get_vocab() for one in saved] == [False, True]


def test_max_examples_limits_tokenizer_training(tmp_path: Path) -> None:
    rows = [("aaa", "bbb"), ("ccc", "ddd")]
    known = prepare_rows(rows, tmp_path, "tokenizer.max_examples=1").source.tokenizer.get_vocab().keys()
    assert ({"a", "b"} <= known, {"c", "d"} & known) == (True, set())


def test_tokenizer_is_not_trained_on_held_out_pairs(tmp_path: Path) -> None:
    """One pair in twenty is held out; each pair has a unique character."""
    signs = [chr(0x4E00 + number) for number in range(20)]
    result = prepare_rows([(sign, f"{number}") for number, sign in enumerate(signs)], tmp_path)
    known = result.source.tokenizer.get_vocab().keys()
    assert {sign for sign in signs if sign not in known} == {source for source, _ in held(result)}


def test_existing_tokenizer_is_reused(tmp_path: Path) -> None:
    result = prepare_rows(pairs(20), tmp_path)
    again = prepare_rows([("zzz", "qqq")], tmp_path)
    assert again.source.fingerprint == result.source.fingerprint


# Stores


def count_tokenizing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that records how many texts each later call tokenizes."""
    counts: list[int] = []
    plain = TextTokenizer.encode_batch

    def counting(self: TextTokenizer, lines: Sequence[str]) -> list[list[int]]:
        counts.append(len(lines))
        return plain(self, lines)

    monkeypatch.setattr(TextTokenizer, "encode_batch", counting)
    return counts


def test_same_recipe_reuses_the_cached_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = small_recipe(write_table(tmp_path / "train.tsv", pairs(40)))
    counts = count_tokenizing(monkeypatch)
    first = prepared(recipe, tmp_path / "one")
    assert sum(counts) == 2 * 40
    counts.clear()
    second = prepared(recipe, tmp_path / "two")
    assert (counts, second.train.path) == ([], first.train.path)


@pytest.mark.parametrize(
    "change",
    ["data.filter.max_characters=12", "tokenizer.kind=byte", "data.dev_size=1", "data.train.0.columns=[2, 1]"],
)
def test_settings_that_change_the_ids_change_the_cache_key(change: str, tmp_path: Path) -> None:
    path = write_table(tmp_path / "train.tsv", pairs(60))
    first, second = (
        prepared(small_recipe(path, *changes), tmp_path / f"{len(changes)}") for changes in ((), (change,))
    )
    assert first.train.path != second.train.path


def test_changed_data_changes_the_cache_key(tmp_path: Path) -> None:
    first = prepare_rows(pairs(40), tmp_path)
    second = prepare_rows([*pairs(39), ("red", "rot")], tmp_path)
    assert ("red", "rot") in held(second) + texts(second.train, second)
    assert first.train.path != second.train.path


def test_every_item_ends_with_eos(tmp_path: Path) -> None:
    result = prepare_rows(pairs(20), tmp_path)
    assert {int(side[-1]) for item in result.train for side in item} == {result.source.eos}


# Corpora


def epoch_texts(recipe: Recipe, folder: Path, epochs: int = 1) -> list[list[Row]]:
    """The pairs of each epoch of training, sorted."""
    data = prepared(recipe, folder)
    train = texts(data.train, data)
    batches = TranslationTask(recipe, data, random_model(data.target.vocab_size)).batches
    return [
        sorted(train[item] for batch in batches.epoch() for item in batch.items.tolist() if item >= 0)
        for _ in range(epochs)
    ]


def two_sources(tmp_path: Path, weight: float, **data: Any) -> Recipe:
    """Ten pairs with weight 1 and twenty others, of which two are duplicates, with another weight."""
    rows = pairs(28)
    sources = {"once": rows[:10], "more": [*rows[10:], *rows[10:12]]}
    paths = [str(write_table(tmp_path / f"{name}.tsv", part)) for name, part in sources.items()]
    train = [{"path": paths[0]}, {"path": paths[1], "weight": weight}]
    return TranslationRecipe.read(small_values({"train": train, "dev_size": 0, **data}))


def test_weight_of_2_repeats_every_pair_that_is_not_a_duplicate(tmp_path: Path) -> None:
    rows = pairs(28)
    recipe = two_sources(tmp_path, 2.0, filter={"drop_duplicates": True})
    assert epoch_texts(recipe, tmp_path / "run", epochs=2) == [sorted(rows[:10] + 2 * rows[10:])] * 2


def test_fractional_weight_is_another_part_of_the_pairs_in_each_epoch(tmp_path: Path) -> None:
    rows = set(pairs(28)[10:])
    epochs = epoch_texts(two_sources(tmp_path, 0.25, filter={"drop_duplicates": True}), tmp_path / "run", epochs=40)
    drawn = [rows.intersection(epoch) for epoch in epochs]
    assert {len(part) for part in drawn} == {round(0.25 * 18)}
    assert set().union(*drawn) == rows


def test_weights_do_not_change_what_is_tokenized(tmp_path: Path) -> None:
    stores = [prepared(two_sources(tmp_path, weight), tmp_path / f"run{weight}").train for weight in (1.0, 0.5, 3.0)]
    assert len({store.path for store in stores}) == 1


def test_group_sizes_are_restored_if_their_cache_is_lost(tmp_path: Path, cache: Path) -> None:
    recipe = two_sources(tmp_path, 0.5)
    first = prepared(recipe, tmp_path / "run")
    for folder in (cache / "tokens").iterdir():
        if folder != first.train.path:
            shutil.rmtree(folder)
    assert prepared(recipe, tmp_path / "run").groups == first.groups == [(10, 1.0), (20, 0.5)]


def test_augmented_pairs_are_fractions_of_each_epoch_in_addition_to_all_pairs(tmp_path: Path) -> None:
    rows = pairs(30)
    path = write_table(tmp_path / "train.tsv", [*((f"{source}.", f"{target} !") for source, target in rows)])
    changes = ["data.dev_size=0", "data.augment.uppercase=0.2", "data.augment.drop_final_punctuation=0.5"]
    plain = {(f"{source}.", f"{target} !") for source, target in rows}
    upper = {(source.upper(), target.upper()) for source, target in plain}
    epochs = epoch_texts(small_recipe(path, *changes), tmp_path / "run", epochs=30)
    for epoch in map(set, epochs):
        assert len(epoch & upper) == 6
        assert len(epoch & set(rows)) == 15
        assert epoch <= plain | upper | set(rows)
        assert plain <= epoch
    assert set().union(*epochs) == plain | upper | set(rows)


def test_pairs_without_a_changed_form_are_not_repeated(tmp_path: Path) -> None:
    rows = [*((source, source) for source in sentences(20)), ("3 + 4", "7")]
    recipe = small_recipe(
        write_table(tmp_path / "train.tsv", rows), "data.dev_size=0", "data.augment.lowercase=1.0"
    )  # fmt: skip
    assert epoch_texts(recipe, tmp_path / "run") == [sorted(rows)]


def test_tokenizer_knows_the_letters_of_augmented_pairs(tmp_path: Path) -> None:
    result = prepare_rows(pairs(20), tmp_path, "data.augment.uppercase=0.1")
    assert "CAT" in result.source.decode(result.source.encode("CAT"))


def test_swapped_columns_swap_the_direction(tmp_path: Path) -> None:
    result = prepare_rows(pairs(10), tmp_path, "data.train.0.columns=[2, 1]")
    assert sorted(texts(result.train, result)) == sorted((translated(source), source) for source, _ in pairs(10))


def test_every_part_has_a_fingerprint(tmp_path: Path) -> None:
    path = str(write_table(tmp_path / "a.tsv", pairs(10)))
    data = {"train": [{"path": path}], "valid": {"path": path}, "test": {"mine": {"path": path}}}
    digests = prepared(TranslationRecipe.read(small_values(data)), tmp_path / "run").fingerprints
    assert digests.keys() == {"train", "valid", "mine"}
    assert all(len(one) == 64 for one in digests.values())
