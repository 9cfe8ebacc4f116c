"""`regard shortlist`, and `regard translate` with a shortlist."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.decode.shortlist import Shortlist
from regard.run import load_model, save_model
from regard.task.translation.pipeline import Translator
from regard.task.translation.shortlist import SHORTLIST, load_shortlist, save_shortlist
from tests.cli.refusal import assert_refused
from tests.task.small import (
    Result,
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
def full_shortlist(model: Path, table: Path, tmp_path: Path) -> Path:
    """A shortlist with every token of the model."""
    path = tmp_path / "full.safetensors"
    translator = Translator.load(model)
    assert command("shortlist", model, "--pairs", table, "--out", path).code == 0
    learned = load_shortlist(path, translator.source_tokenizer, translator.target_tokenizer)
    size = translator.target_tokenizer.vocab_size
    everything = Shortlist(torch.arange(size, dtype=torch.int32), learned.likeliest, learned.vocabularies)
    save_shortlist(everything, path)
    return path


def opened(path: Path, model: Path) -> Shortlist:
    translator = Translator.load(model)
    return load_shortlist(path, translator.source_tokenizer, translator.target_tokenizer)


def test_default_file_is_in_the_model_folder(model: Path, table: Path) -> None:
    done = command("shortlist", model, "--pairs", table)
    assert done == Result(0, f"{model / SHORTLIST}\n", "")
    assert opened(model / SHORTLIST, model).likeliest.shape[1] == 50


def test_aligned_files_equal_a_table(model: Path, table: Path, tmp_path: Path) -> None:
    rows = [line.split("\t") for line in table.read_text(encoding="utf-8").splitlines()]
    source = write_lines(tmp_path / "in.txt", [row[0] for row in rows])
    target = write_lines(tmp_path / "out.txt", [row[1] for row in rows])
    first, second = tmp_path / "first", tmp_path / "second"
    command("shortlist", model, "--pairs", table, "--out", first)
    command("shortlist", model, "--source", source, "--target", target, "--out", second)
    assert first.read_bytes() == second.read_bytes()


def test_dataset_option(model: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sets" / "tatoeba-en-tr"
    folder.mkdir(parents=True)
    (folder / "valid.tsv.gz").write_bytes(gzip.compress(table.read_bytes()))
    monkeypatch.setenv("REGARD_DATA", str(folder.parent))
    first, second = tmp_path / "first", tmp_path / "second"
    command("shortlist", model, "--pairs", table, "--out", first)
    assert (
        command("shortlist", model, "--dataset", "tatoeba-en-tr", "--pairs", "valid.tsv.gz", "--out", second).code == 0
    )
    assert first.read_bytes() == second.read_bytes()


def test_default_data_is_the_training_data(model: Path, table: Path, tmp_path: Path) -> None:
    write_recipe_file(model / "recipe.toml", {"train": [{"path": str(table)}]})
    first, second = tmp_path / "first", tmp_path / "second"
    assert command("shortlist", model, "--out", first).code == 0
    command("shortlist", model, "--pairs", table, "--out", second)
    assert first.read_bytes() == second.read_bytes()


def test_candidates_and_frequent_options(model: Path, table: Path) -> None:
    command("shortlist", model, "--pairs", table, "--candidates", 2, "--frequent", 0)
    learned = opened(model / SHORTLIST, model)
    assert learned.likeliest.shape[1] == 2
    assert len(learned.always) <= 4 + 2  # special tokens, and the candidates of the source's EOS


def test_existing_shortlist_is_replaced(model: Path, table: Path) -> None:
    command("shortlist", model, "--pairs", table)
    command("shortlist", model, "--pairs", table, "--candidates", 3)
    assert opened(model / SHORTLIST, model).likeliest.shape[1] == 3


def test_shortlist_is_used_only_on_request(model: Path, table: Path) -> None:
    before = command("translate", model, "old cat sea").out
    command("shortlist", model, "--pairs", table)
    assert command("translate", model, "old cat sea").out == before


WRONG: dict[str, tuple[list[Any], list[str]]] = {
    "no data and no recipe": ([], ["--pairs"]),
    "pairs and a source": (["--pairs", "a.tsv", "--source", "b.txt"], ["give one of the two"]),
    "a source alone": (["--source", "a.txt"], ["belong together"]),
    "a set and none of its files": (["--dataset", "tatoeba-en-tr"], ["--dataset tatoeba-en-tr", "--pairs"]),
    "no such set": (["--dataset", "nothing-like-it", "--pairs", "a.tsv"], ["nothing-like-it"]),
    "no such file": (["--pairs", "none.tsv"], ["none.tsv"]),
    "an empty file": (["--pairs", "empty.tsv"], ["empty.tsv"]),
    "nothing but empty sides": (["--pairs", "bare.tsv"], ["sentence pair"]),
    "no such folder to write to": (["--pairs", "empty.tsv", "--out", "nowhere/list"], ["nowhere/list"]),
}


@pytest.mark.parametrize(("args", "parts"), WRONG.values(), ids=WRONG.keys())
def test_wrong_options_are_refused(
    args: list[Any], parts: list[str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "empty.tsv", [])
    write_lines(tmp_path / "bare.tsv", ["\t", "red\t"])
    before = sorted(tmp_path.rglob("*"))
    assert_refused(command("shortlist", model, *args), *parts)
    assert sorted(tmp_path.rglob("*")) == before


def test_pretrained_model_is_not_changed(table: Path) -> None:
    assert_refused(command("shortlist", "en-tr", "--pairs", table), "en-tr", "--out")


def test_unknown_model_is_refused(tmp_path: Path) -> None:
    assert_refused(command("shortlist", tmp_path / "none"), "none")


@pytest.mark.parametrize(("option", "value"), [("--candidates", 0), ("--frequent", -1)])
def test_values_outside_their_range_are_refused_by_option(option: str, value: int, model: Path) -> None:
    done = command("shortlist", model, option, value)
    assert (done.code, done.out, option in done.err, "Traceback" in done.err) == (2, "", True, False)


def test_shortlist_option_uses_the_models_file(model: Path, table: Path) -> None:
    command("shortlist", model, "--pairs", table, "--candidates", 1, "--frequent", 0)
    translator = Translator.load(model)
    plain = translator.translate("old cat sea")
    translator.shortlist = opened(model / SHORTLIST, model)
    expected = translator.translate("old cat sea")
    assert command("translate", model, "old cat sea", "--shortlist").out == f"{expected}\n" != f"{plain}\n"


def test_outputs_contain_only_shortlisted_tokens(model: Path, table: Path, tmp_path: Path) -> None:
    path = tmp_path / "list"
    command("shortlist", model, "--pairs", table, "--candidates", 2, "--frequent", 0, "--out", path)
    facts = json.loads(command("translate", model, "old cat", "--json", "--nbest", 3, "--shortlist-file", path).out)
    text = Translator.load(model).source_tokenizer
    known = {text.decode([token]) for token in opened(path, model).tokens([text.encode("old cat")]).tolist()}
    for one in facts["sentences"][0]["translations"]:
        assert {token["text"] for token in one["tokens"]} <= known | {""}


@pytest.mark.parametrize(
    "args",
    [
        ["--beam-size", 1],
        ["--nbest", 3],
        ["--nbest", 4, "--beam-groups", 2],
        ["--prefix", "sun"],
        ["--require", "sun"],
        ["--forbid", "e"],
        ["--temperature", 1.5, "--seed", 3],
        ["--json", "--alternatives", 3],
    ],
    ids=lambda args: str(args[0]),
)
def test_shortlist_of_the_full_vocabulary_changes_nothing(args: list[Any], model: Path, full_shortlist: Path) -> None:
    lines = b"old cat sea\n\nred. Big dog.\n" if not {"--prefix", "--require"} & set(args) else b"old cat sea\n\n"
    plain = command("translate", model, *args, stdin=lines)
    assert plain.code == 0
    assert command("translate", model, *args, "--shortlist-file", full_shortlist, stdin=lines) == plain


def test_ensemble_with_a_shortlist(model: Path, full_shortlist: Path, tmp_path: Path) -> None:
    loaded = load_model(model)
    torch.manual_seed(2)
    other = save_model(random_model(loaded.config.vocab_size), tmp_path / "sibling", tokenizer=loaded.tokenizer)
    plain = command("translate", model, "old cat sea", "--ensemble", other)
    assert command("translate", model, "old cat sea", "--ensemble", other, "--shortlist-file", full_shortlist) == plain


def test_model_without_a_shortlist_is_refused(model: Path) -> None:
    assert_refused(command("translate", model, "red", "--shortlist"), "regard shortlist")


def test_missing_shortlist_file_is_refused(model: Path, tmp_path: Path) -> None:
    assert_refused(command("translate", model, "red", "--shortlist-file", tmp_path / "none"), "none")


def test_shortlist_of_another_model_is_refused(full_shortlist: Path) -> None:
    assert_refused(command("translate", "en-tr", "red", "--shortlist-file", full_shortlist), "tokenizers")


def test_other_files_are_refused(model: Path) -> None:
    assert_refused(
        command("translate", model, "red", "--shortlist-file", model / "model.safetensors"), "is not a shortlist"
    )


@pytest.mark.parametrize("args", [["--shortlist"], ["--shortlist-file", "some.safetensors"]], ids=["own", "given"])
def test_ctranslate2_with_a_shortlist_is_refused(args: list[str], model: Path) -> None:
    assert_refused(command("translate", model, "red", "--engine", "ctranslate2", *args), "CTranslate2 cannot")
