"""Shortlists are learnt from pairs, kept, and opened again; a file that does not fit is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from regard import UserError
from regard.data.pairs import Pair
from regard.data.tokenizer_training import TokenizerConfig, train_tokenizer
from regard.run.tensors import write_tensors
from regard.task.shortlist import learn_shortlist, load_shortlist, save_shortlist
from tests.task.small import pairs, sentences, small_tokenizer


def some_pairs() -> list[Pair]:
    return [Pair(*pair) for pair in pairs(30)]


def test_special_tokens_and_frequent_ones_may_always_come() -> None:
    tokenizer = small_tokenizer()
    learnt = learn_shortlist(some_pairs(), tokenizer, tokenizer, candidates=2, frequent=3)
    always = set(learnt.always.tolist())
    assert {tokenizer.padding, tokenizer.start, tokenizer.end} <= always
    assert set(tokenizer.encode("e")) <= always
    assert set(learnt.likeliest[tokenizer.end].tolist()) <= always


def test_every_token_of_a_target_is_on_the_list_of_its_source_where_enough_candidates_are_kept() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="character"), [side for pair in some_pairs() for side in pair])
    learnt = learn_shortlist(some_pairs(), tokenizer, tokenizer, candidates=tokenizer.vocabulary, frequent=0)
    for pair in some_pairs():
        assert set(tokenizer.encode(pair.target)) <= set(learnt.tokens([tokenizer.encode(pair.source)]).tolist())


def test_a_shortlist_is_the_same_after_it_was_kept(tmp_path: Path) -> None:
    tokenizer = small_tokenizer()
    learnt = learn_shortlist(some_pairs(), tokenizer, tokenizer, candidates=4)
    save_shortlist(learnt, tmp_path / "list.safetensors")
    again = load_shortlist(tmp_path / "list.safetensors", tokenizer, tokenizer)
    assert all(torch.equal(getattr(learnt, name), getattr(again, name)) for name in vars(learnt))
    assert [path.name for path in tmp_path.iterdir()] == ["list.safetensors"]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.safetensors: there is no such file"):
        load_shortlist(tmp_path / "none.safetensors", small_tokenizer(), small_tokenizer())


def test_a_file_of_other_tensors_is_refused(tmp_path: Path) -> None:
    write_tensors(tmp_path / "model.safetensors", {"weight": torch.zeros(2)})
    with pytest.raises(UserError, match="is not a shortlist"):
        load_shortlist(tmp_path / "model.safetensors", small_tokenizer(), small_tokenizer())


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(UserError, match="damaged or cut short"):
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
def test_a_list_of_tokens_that_cannot_be_is_refused(changes: dict[str, Tensor], tmp_path: Path) -> None:
    tokenizer = small_tokenizer()
    changed = replace(learn_shortlist(some_pairs(), tokenizer, tokenizer), **changes)
    save_shortlist(changed, tmp_path / "list.safetensors")
    with pytest.raises(UserError, match="is damaged"):
        load_shortlist(tmp_path / "list.safetensors", tokenizer, tokenizer)


def test_a_list_made_for_other_words_is_refused(tmp_path: Path) -> None:
    tokenizer, other = small_tokenizer(), train_tokenizer(TokenizerConfig(kind="word"), sentences(20))
    save_shortlist(learn_shortlist(some_pairs(), tokenizer, tokenizer), tmp_path / "list.safetensors")
    with pytest.raises(UserError, match="made for a model with other tokenizers"):
        load_shortlist(tmp_path / "list.safetensors", tokenizer, other)
