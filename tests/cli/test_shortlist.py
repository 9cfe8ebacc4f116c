"""`regard shortlist`, and `regard translate` by what it made, as a person meets them."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.decode.shortlist import Shortlist
from regard.run import load, save
from regard.task import load_translator
from regard.task.shortlist import SHORTLIST, load_shortlist, save_shortlist
from tests.task.small import (
    Done,
    command,
    pairs,
    random_model,
    save_random_model,
    write_lines,
    write_recipe_file,
    write_table,
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_random_model(tmp_path / "small")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "pairs.tsv", pairs(30))


@pytest.fixture
def whole(model: Path, table: Path, tmp_path: Path) -> Path:
    """A shortlist with every token of the model on it."""
    path = tmp_path / "whole.safetensors"
    translator = load_translator(model)
    assert command("shortlist", model, "--pairs", table, "--out", path).code == 0
    learnt = load_shortlist(path, translator.source_text, translator.target_text)
    size = translator.target_text.vocabulary
    everything = Shortlist(torch.arange(size, dtype=torch.int32), learnt.likeliest, learnt.vocabularies)
    save_shortlist(everything, path)
    return path


def is_refused(done: Done, *words: str) -> None:
    """Code two, nothing written, and one line that has these words."""
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("regard: ")
    for word in words:
        assert word in done.err


def opened(path: Path, model: Path) -> Shortlist:
    translator = load_translator(model)
    return load_shortlist(path, translator.source_text, translator.target_text)


# Making one.


def test_a_shortlist_lies_in_the_folder_of_its_model(model: Path, table: Path) -> None:
    done = command("shortlist", model, "--pairs", table)
    assert done == Done(0, f"{model / SHORTLIST}\n", "")
    assert opened(model / SHORTLIST, model).likeliest.shape[1] == 50


def test_two_aligned_files_give_what_one_table_gives(model: Path, table: Path, tmp_path: Path) -> None:
    rows = [line.split("\t") for line in table.read_text(encoding="utf-8").splitlines()]
    source = write_lines(tmp_path / "in.txt", [row[0] for row in rows])
    target = write_lines(tmp_path / "out.txt", [row[1] for row in rows])
    first, second = tmp_path / "first", tmp_path / "second"
    command("shortlist", model, "--pairs", table, "--out", first)
    command("shortlist", model, "--source", source, "--target", target, "--out", second)
    assert first.read_bytes() == second.read_bytes()


def test_files_of_a_named_set_are_found_there(
    model: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sets" / "tatoeba-en-tr"
    folder.mkdir(parents=True)
    (folder / "valid.tsv.gz").write_bytes(gzip.compress(table.read_bytes()))
    monkeypatch.setenv("REGARD_DATA", str(folder.parent))
    first, second = tmp_path / "first", tmp_path / "second"
    command("shortlist", model, "--pairs", table, "--out", first)
    assert command("shortlist", model, "--data", "tatoeba-en-tr", "--pairs", "valid.tsv.gz", "--out", second).code == 0
    assert first.read_bytes() == second.read_bytes()


def test_without_data_it_learns_from_what_the_model_was_trained_on(model: Path, table: Path, tmp_path: Path) -> None:
    write_recipe_file(model / "recipe.toml", {"train": [{"path": str(table)}]})
    first, second = tmp_path / "first", tmp_path / "second"
    assert command("shortlist", model, "--out", first).code == 0
    command("shortlist", model, "--pairs", table, "--out", second)
    assert first.read_bytes() == second.read_bytes()


def test_the_numbers_asked_for_are_kept(model: Path, table: Path) -> None:
    command("shortlist", model, "--pairs", table, "--candidates", 2, "--frequent", 0)
    learnt = opened(model / SHORTLIST, model)
    assert learnt.likeliest.shape[1] == 2
    assert len(learnt.always) <= 4 + 2  # special tokens, and what the end of a source calls for


def test_an_old_shortlist_is_replaced(model: Path, table: Path) -> None:
    command("shortlist", model, "--pairs", table)
    command("shortlist", model, "--pairs", table, "--candidates", 3)
    assert opened(model / SHORTLIST, model).likeliest.shape[1] == 3


def test_a_model_with_a_shortlist_is_opened_and_used_as_before(model: Path, table: Path) -> None:
    before = command("translate", model, "old cat sea").out
    command("shortlist", model, "--pairs", table)
    assert command("translate", model, "old cat sea").out == before


WRONG: dict[str, tuple[list[Any], list[str]]] = {
    "no data and no recipe": ([], ["does not say what it was trained on", "--pairs"]),
    "pairs and a source": (["--pairs", "a.tsv", "--source", "b.txt"], ["give one of the two"]),
    "a source alone": (["--source", "a.txt"], ["belong together"]),
    "a set and none of its files": (["--data", "tatoeba-en-tr"], ["say which of its files"]),
    "no such set": (["--data", "nothing-like-it", "--pairs", "a.tsv"], ["nothing-like-it"]),
    "no such file": (["--pairs", "none.tsv"], ["none.tsv: there is no such file"]),
    "an empty file": (["--pairs", "empty.tsv"], ["no sentence pairs"]),
    "nothing but empty sides": (["--pairs", "bare.tsv"], ["no sentence pair to learn from"]),
    "no such folder to write to": (["--pairs", "empty.tsv", "--out", "nowhere/list"], ["nowhere/list"]),
}


@pytest.mark.parametrize(("words", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_is_a_line_and_code_two(
    words: list[Any], sentence: list[str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "empty.tsv", [])
    write_lines(tmp_path / "bare.tsv", ["\t", "red\t"])
    before = sorted(tmp_path.rglob("*"))
    is_refused(command("shortlist", model, *words), *sentence)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_model_that_ships_stays_as_it_is(table: Path) -> None:
    is_refused(command("shortlist", "en-tr", "--pairs", table), "en-tr ships with regard", "--out FILE")


def test_an_unknown_model_is_named(tmp_path: Path) -> None:
    is_refused(command("shortlist", tmp_path / "none"), "none: there is no such folder")


@pytest.mark.parametrize(("option", "value"), [("--candidates", 0), ("--frequent", -1)])
def test_values_outside_their_range_are_refused_by_option(option: str, value: int, model: Path) -> None:
    done = command("shortlist", model, option, value)
    assert (done.code, done.out, option in done.err, "Traceback" in done.err) == (2, "", True, False)


# Translating by one.


def test_the_models_own_shortlist_is_used_where_asked_for(model: Path, table: Path) -> None:
    command("shortlist", model, "--pairs", table, "--candidates", 1, "--frequent", 0)
    translator = load_translator(model)
    plain = translator.translate("old cat sea")
    translator.shortlist = opened(model / SHORTLIST, model)
    wanted = translator.translate("old cat sea")
    assert command("translate", model, "old cat sea", "--shortlist").out == f"{wanted}\n" != f"{plain}\n"


def test_only_tokens_of_the_list_are_written(model: Path, table: Path, tmp_path: Path) -> None:
    path = tmp_path / "list"
    command("shortlist", model, "--pairs", table, "--candidates", 2, "--frequent", 0, "--out", path)
    facts = json.loads(command("translate", model, "old cat", "--json", "--nbest", 3, "--shortlist-file", path).out)
    text = load_translator(model).source_text
    known = {text.decode([token]) for token in opened(path, model).tokens([text.encode("old cat")]).tolist()}
    for one in facts["sentences"][0]["translations"]:
        assert {token["text"] for token in one["tokens"]} <= known | {""}


@pytest.mark.parametrize(
    "words",
    [
        ["--beams", 1],
        ["--nbest", 3],
        ["--nbest", 4, "--diverse", 2],
        ["--prefix", "sun"],
        ["--require", "sun"],
        ["--forbid", "e"],
        ["--temperature", 1.5, "--seed", 3],
        ["--json", "--alternatives", 3],
    ],
    ids=lambda words: str(words[0]),
)
def test_a_list_of_everything_changes_nothing(words: list[Any], model: Path, whole: Path) -> None:
    lines = b"old cat sea\n\nred. Big dog.\n" if not {"--prefix", "--require"} & set(words) else b"old cat sea\n\n"
    plain = command("translate", model, *words, stdin=lines)
    assert plain.code == 0
    assert command("translate", model, *words, "--shortlist-file", whole, stdin=lines) == plain


def test_models_translate_together_by_the_list_of_the_first(model: Path, whole: Path, tmp_path: Path) -> None:
    loaded = load(model)
    torch.manual_seed(2)
    other = save(random_model(loaded.config.vocabulary), tmp_path / "sibling", tokenizer=loaded.tokenizer)
    plain = command("translate", model, "old cat sea", "--with", other)
    assert command("translate", model, "old cat sea", "--with", other, "--shortlist-file", whole) == plain


def test_a_model_without_a_list_of_its_own_is_answered_with_what_to_do(model: Path) -> None:
    is_refused(command("translate", model, "red", "--shortlist"), "no shortlist of its own", "`regard shortlist`")


def test_a_list_that_is_not_there_is_named(model: Path, tmp_path: Path) -> None:
    is_refused(command("translate", model, "red", "--shortlist-file", tmp_path / "none"), "none: there is no such file")


def test_a_list_of_another_model_is_refused(whole: Path) -> None:
    is_refused(
        command("translate", "en-tr", "red", "--shortlist-file", whole), "made for a model with other tokenizers"
    )


def test_something_else_than_a_list_is_refused(model: Path) -> None:
    is_refused(
        command("translate", model, "red", "--shortlist-file", model / "model.safetensors"), "is not a shortlist"
    )


@pytest.mark.parametrize("words", [["--shortlist"], ["--shortlist-file", "some.safetensors"]], ids=["own", "given"])
def test_ctranslate2_has_no_use_for_a_list(words: list[str], model: Path) -> None:
    is_refused(command("translate", model, "red", "--engine", "ctranslate2", *words), "CTranslate2 cannot")
