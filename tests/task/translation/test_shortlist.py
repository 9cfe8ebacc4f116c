"""Shortlists are learned from pairs, saved and loaded; invalid files are refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from regard import UserError
from regard.data.text.pairs import Pair
from regard.data.tokenizers.training import TokenizerConfig, train_tokenizer
from regard.run.tensors import write_tensors
from regard.task.translation.shortlist import learn_shortlist, load_shortlist, save_shortlist
from tests.task.small import pairs, sentences, small_tokenizer


def some_pairs() -> list[Pair]:
    return [Pair(*pair) for pair in pairs(30)]


def test_special_and_frequent_tokens_are_always_allowed() -> None:
    tokenizer = small_tokenizer()
    learned = learn_shortlist(some_pairs(), tokenizer, tokenizer, candidates=2, frequent=3)
    always = set(learned.always.tolist())
    assert {tokenizer.pad, tokenizer.bos, tokenizer.eos} <= always
    assert set(tokenizer.encode("e")) <= always
    assert set(learned.likeliest[tokenizer.eos].tolist()) <= always


def test_enough_candidates_cover_every_target() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="character"), [side for pair in some_pairs() for side in pair])
    learned = learn_shortlist(some_pairs(), tokenizer, tokenizer, candidates=tokenizer.vocab_size, frequent=0)
    for pair in some_pairs():
        assert set(tokenizer.encode(pair.target)) <= set(learned.tokens([tokenizer.encode(pair.source)]).tolist())


def test_saved_shortlist_loads_unchanged(tmp_path: Path) -> None:
    tokenizer = small_tokenizer()
    learned = learn_shortlist(some_pairs(), tokenizer, tokenizer, candidates=4)
    save_shortlist(learned, tmp_path / "list.safetensors")
    again = load_shortlist(tmp_path / "list.safetensors", tokenizer, tokenizer)
    assert all(torch.equal(getattr(learned, name), getattr(again, name)) for name in vars(learned))
    assert [path.name for path in tmp_path.iterdir()] == ["list.safetensors"]


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.safetensors: there is no such file"):
        load_shortlist(tmp_path / "none.safetensors", small_tokenizer(), small_tokenizer())


def test_file_of_other_tensors_is_refused(tmp_path: Path) -> None:
    write_tensors(tmp_path / "model.safetensors", {"weight": torch.zeros(2)})
    with pytest.raises(UserError, match="is not a shortlist"):
        load_shortlist(tmp_path / "model.safetensors", small_tokenizer(), small_tokenizer())


def test_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(UserError, match="damaged or truncated"):
        load_shortlist(tmp_path / "list.safetensors", small_tokenizer(), small_tokenizer())


@pytest.mark.parametrize(
    "changes",
    [
        {"likeliest": torch.zeros(3, 4, dtype=torch.int32)},
        {"likeliest": torch.zeros(4, dtype=torch.int32)},
        {"always": torch.tensor([100_000])},
        {"always": torch.tensor([-7])},
        {"always": torch.tensor([0.5])},
    ],
    ids=["rows are missing", "no table", "a token that is none", "a negative token", "half a token"],
)
def test_invalid_token_ids_are_refused(changes: dict[str, Tensor], tmp_path: Path) -> None:
    tokenizer = small_tokenizer()
    changed = replace(learn_shortlist(some_pairs(), tokenizer, tokenizer), **changes)
    save_shortlist(changed, tmp_path / "list.safetensors")
    with pytest.raises(UserError, match="is damaged"):
        load_shortlist(tmp_path / "list.safetensors", tokenizer, tokenizer)


def test_shortlist_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    tokenizer, other = small_tokenizer(), train_tokenizer(TokenizerConfig(kind="word"), sentences(20))
    save_shortlist(learn_shortlist(some_pairs(), tokenizer, tokenizer), tmp_path / "list.safetensors")
    with pytest.raises(UserError, match="made for a model with other tokenizers"):
        load_shortlist(tmp_path / "list.safetensors", tokenizer, other)
