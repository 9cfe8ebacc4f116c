"""From data to tokenizers and stores: what is held out stays out, what was made is found again."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from regard import UserError
from regard.data.store import TokenStore
from regard.data.tokenizer import TextTokenizer
from regard.task import Recipe
from regard.task.prepare import Prepared, prepare
from regard.task.translation_recipe import TranslationRecipe
from tests.task.small import Heard, pairs, sentences, small_recipe, small_values, translated, write_table

Row = tuple[str, str]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def prepared(recipe: Recipe, folder: Path, heard: Heard | None = None) -> Prepared:
    folder.mkdir(exist_ok=True)
    return prepare(recipe, folder, (heard or Heard()).say, None)


def of_rows(rows: Sequence[Row], tmp_path: Path, *changes: str, heard: Heard | None = None) -> Prepared:
    """What becomes of some pairs."""
    return prepared(small_recipe(write_table(tmp_path / "train.tsv", rows), *changes), tmp_path / "run", heard)


def texts(store: TokenStore, made: Prepared) -> list[Row]:
    """The pairs in a store, as text."""
    return [(made.source.decode(source.tolist()), made.target.decode(target.tolist())) for source, target in store]


def held(made: Prepared) -> list[Row]:
    return [tuple(pair) for pair in made.valid_pairs]


# Holding out.


def test_what_is_held_out_is_not_trained_on(tmp_path: Path) -> None:
    made = of_rows(pairs(60), tmp_path)
    assert held(made)
    assert not set(held(made)) & set(texts(made.train, made))


def test_all_that_is_not_held_out_is_trained_on(tmp_path: Path) -> None:
    rows = pairs(60)
    made = of_rows(rows, tmp_path)
    assert sorted(held(made) + texts(made.train, made)) == sorted(rows)


def test_the_store_of_what_is_held_out_has_just_that(tmp_path: Path) -> None:
    made = of_rows(pairs(60), tmp_path)
    assert made.valid is not None
    assert texts(made.valid, made) == held(made)


def test_pairs_that_share_a_sentence_with_one_held_out_are_not_trained_on(tmp_path: Path) -> None:
    """Each source has a second translation, each target a second source: whichever is held out has relatives."""
    rows = pairs(40)
    rows += [(source, f"{target} ja") for source, target in rows[:40]] + [
        (f"{source} yes", target) for source, target in rows[:40]
    ]
    made = of_rows(rows, tmp_path)
    known = {side for pair in held(made) for side in pair}
    assert len(known) > 2
    assert not any(known & set(pair) for pair in texts(made.train, made))


def test_a_sentence_is_known_again_in_other_case_and_punctuation(tmp_path: Path) -> None:
    rows = pairs(40)
    disguised = [(f"«{source.upper()}!»", f"{number} {target}") for number, (source, target) in enumerate(rows)]
    made = of_rows(rows + disguised, tmp_path)
    plain = {source.strip("«!»").lower() for source, _ in held(made)}
    assert plain
    assert not plain & {source.strip("«!»").lower() for source, _ in texts(made.train, made)}


@pytest.mark.parametrize("count", [20, 39, 40, 60])
def test_at_most_a_twentieth_is_held_out(count: int, tmp_path: Path) -> None:
    assert len(held(of_rows(pairs(count), tmp_path))) == count // 20


def test_no_more_is_held_out_than_is_asked_for(tmp_path: Path) -> None:
    assert len(held(of_rows(pairs(60), tmp_path, "data.hold_out=2"))) == 2


def test_nothing_is_held_out_where_none_is_wanted(tmp_path: Path) -> None:
    made = of_rows(pairs(60), tmp_path, "data.hold_out=0")
    assert (held(made), made.valid, len(made.train)) == ([], None, 60)


def test_the_same_pairs_are_held_out_whatever_the_seed_of_the_run(tmp_path: Path) -> None:
    """So that runs of different seeds can be compared."""
    assert held(of_rows(pairs(60), tmp_path)) == held(of_rows(pairs(60), tmp_path, "train.seed=5"))


def test_the_same_pairs_are_held_out_of_a_copy_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    assert held(of_rows(pairs(60), tmp_path)) == held(of_rows(pairs(60), tmp_path / "elsewhere"))


def test_how_many_are_held_out_is_said(tmp_path: Path) -> None:
    heard = Heard()
    of_rows(pairs(60), tmp_path, heard=heard)
    assert heard.said == ["3 of 60 pairs are held out to watch the run (data.hold_out)."]


def test_of_one_sentence_nothing_is_held_out_and_that_is_said(tmp_path: Path) -> None:
    heard = Heard()
    made = of_rows(pairs(1), tmp_path, heard=heard)
    assert (held(made), len(made.train)) == ([], 1)
    assert heard.said == ["With only 1 pair none is held out: nothing tells how well the model does on others."]


def test_a_given_validation_set_is_used_and_nothing_held_out(tmp_path: Path) -> None:
    rows, others = pairs(40), pairs(5, seed=2)
    data = {
        "train": [{"path": str(write_table(tmp_path / "train.tsv", rows))}],
        "valid": {"path": str(write_table(tmp_path / "valid.tsv", others))},
    }
    made = prepared(TranslationRecipe.read(small_values(data)), tmp_path / "run")
    assert (held(made), len(made.train)) == (others, 40)


def test_a_pair_too_long_to_train_on_is_not_held_out(tmp_path: Path) -> None:
    """It would be translated at every validation: a line of a whole book stops the run for hours."""
    rows = [
        (source * 9, target * 9) if number % 2 else (source, target)
        for number, (source, target) in enumerate(pairs(60))
    ]
    made = of_rows(rows, tmp_path, "data.longest=40")
    sides = [made.source.encode_batch([pair.source for pair in made.valid_pairs])]
    sides += [made.target.encode_batch([pair.target for pair in made.valid_pairs])]
    assert 0 < max(len(ids) for side in sides for ids in side) < 40  # and an end for each


def test_something_is_left_to_train_on_where_all_pairs_share_a_sentence(tmp_path: Path) -> None:
    made = of_rows([("hello", target) for target in sentences(20)], tmp_path)
    assert len(made.train) > 0


# Filters.


def test_what_a_filter_dropped_is_said_once(tmp_path: Path) -> None:
    heard = Heard()
    of_rows([*pairs(10), ("", "leer"), ("a" * 80, "b")], tmp_path, "data.filter.longest_characters=50", heard=heard)
    (report,) = [sentence for sentence in heard.said if "kept" in sentence]
    assert report.splitlines()[0] == "10 of 12 pairs kept"
    assert "1 dropped: a side is empty, first pair 11" in report
    assert "1 dropped: too many characters, first pair 12" in report


def test_nothing_is_said_of_a_filter_that_dropped_nothing(tmp_path: Path) -> None:
    heard = Heard()
    of_rows(pairs(10), tmp_path, heard=heard)
    assert not any("kept" in sentence for sentence in heard.said)


def test_dropped_pairs_are_not_trained_on(tmp_path: Path) -> None:
    made = of_rows([*pairs(10), ("x" * 80, "y")], tmp_path, "data.filter.longest_characters=50")
    assert sorted(texts(made.train, made)) == sorted(pairs(10))


def test_where_a_filter_leaves_nothing_the_reasons_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"(?s)No sentence pair is left to train on.*5 dropped: too many characters"):
        of_rows(pairs(5), tmp_path, "data.filter.longest_characters=1")


# Tokenizers.


def test_a_shared_tokenizer_is_one_file_learnt_from_both_sides(tmp_path: Path) -> None:
    made = of_rows(pairs(20), tmp_path)
    assert made.source is made.target
    assert [path.name for path in (tmp_path / "run").glob("*.json")] == ["tokenizer.json"]
    assert {"r", "ß"} <= TextTokenizer.load(tmp_path / "run" / "tokenizer.json").tokenizer.get_vocab().keys()


def test_separate_tokenizers_know_their_own_side_alone(tmp_path: Path) -> None:
    made = of_rows(pairs(20), tmp_path, "tokenizer.shared=false")
    saved = [TextTokenizer.load(tmp_path / "run" / name) for name in ("tokenizer.json", "target_tokenizer.json")]
    assert [one.fingerprint for one in saved] == [made.source.fingerprint, made.target.fingerprint]
    assert ["ß" in one.tokenizer.get_vocab() for one in saved] == [False, True]


def test_tokenizers_are_learnt_from_the_first_pairs_where_a_sample_is_asked_for(tmp_path: Path) -> None:
    rows = [("aaa", "bbb"), ("ccc", "ddd")]
    known = of_rows(rows, tmp_path, "tokenizer.sample=1").source.tokenizer.get_vocab().keys()
    assert ({"a", "b"} <= known, {"c", "d"} & known) == (True, set())


def test_what_is_held_out_teaches_the_tokenizer_nothing(tmp_path: Path) -> None:
    """One pair in twenty is held out; each has a character of its own."""
    signs = [chr(0x4E00 + number) for number in range(20)]
    made = of_rows([(sign, f"{number}") for number, sign in enumerate(signs)], tmp_path)
    known = made.source.tokenizer.get_vocab().keys()
    assert {sign for sign in signs if sign not in known} == {source for source, _ in held(made)}


def test_a_folders_own_tokenizer_is_used_again(tmp_path: Path) -> None:
    made = of_rows(pairs(20), tmp_path)
    again = of_rows([("zzz", "qqq")], tmp_path)
    assert again.source.fingerprint == made.source.fingerprint


# Stores.


def count_tokenising(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on, how many texts each call tokenises."""
    counts: list[int] = []
    plain = TextTokenizer.encode_batch

    def counting(self: TextTokenizer, lines: Sequence[str]) -> list[list[int]]:
        counts.append(len(lines))
        return plain(self, lines)

    monkeypatch.setattr(TextTokenizer, "encode_batch", counting)
    return counts


def test_the_same_recipe_finds_its_stores_and_tokenises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = small_recipe(write_table(tmp_path / "train.tsv", pairs(40)))
    counts = count_tokenising(monkeypatch)
    first = prepared(recipe, tmp_path / "one")
    assert sum(counts) == 2 * 40
    counts.clear()
    second = prepared(recipe, tmp_path / "two")
    assert (counts, second.train.path) == ([], first.train.path)


@pytest.mark.parametrize(
    "change",
    ["data.filter.longest_characters=12", "tokenizer.kind=byte", "data.hold_out=1", "data.train.0.columns=[2, 1]"],
)
def test_what_changes_the_ids_makes_another_store(change: str, tmp_path: Path) -> None:
    path = write_table(tmp_path / "train.tsv", pairs(60))
    first, second = (
        prepared(small_recipe(path, *changes), tmp_path / f"{len(changes)}") for changes in ((), (change,))
    )
    assert first.train.path != second.train.path


def test_changed_data_makes_another_store(tmp_path: Path) -> None:
    first = of_rows(pairs(40), tmp_path)
    second = of_rows([*pairs(39), ("red", "rot")], tmp_path)
    assert ("red", "rot") in held(second) + texts(second.train, second)
    assert first.train.path != second.train.path


def test_every_item_ends_with_the_token_for_it(tmp_path: Path) -> None:
    made = of_rows(pairs(20), tmp_path)
    assert {int(side[-1]) for item in made.train for side in item} == {made.source.end}


# Corpora.


def test_a_weight_of_two_repeats_every_pair_of_its_part(tmp_path: Path) -> None:
    once, twice = pairs(30)[:10], pairs(30)[10:]
    data = {
        "train": [
            {"path": str(write_table(tmp_path / "once.tsv", once))},
            {"path": str(write_table(tmp_path / "twice.tsv", twice)), "weight": 2.0},
        ],
        "hold_out": 0,
    }
    made = prepared(TranslationRecipe.read(small_values(data)), tmp_path / "run")
    assert sorted(texts(made.train, made)) == sorted(once + 2 * twice)


def test_columns_turned_around_turn_the_direction(tmp_path: Path) -> None:
    made = of_rows(pairs(10), tmp_path, "data.train.0.columns=[2, 1]")
    assert sorted(texts(made.train, made)) == sorted((translated(source), source) for source, _ in pairs(10))


def test_each_part_of_the_data_has_its_fingerprint(tmp_path: Path) -> None:
    path = str(write_table(tmp_path / "a.tsv", pairs(10)))
    data = {"train": [{"path": path}], "valid": {"path": path}, "test": {"mine": {"path": path}}}
    found = prepared(TranslationRecipe.read(small_values(data)), tmp_path / "run").fingerprints
    assert found.keys() == {"train", "valid", "mine"}
    assert all(len(one) == 64 for one in found.values())
