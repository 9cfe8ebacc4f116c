"""Masking: the right fraction of tokens in the right proportions, never special tokens, reproducibly."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer, models

from regard import UserError
from regard.config import ConfigError
from regard.data.batching.epochs import MappedBatches
from regard.data.batching.masking import Masking, MaskingConfig, word_starts
from regard.data.batching.packing import PackedDocuments
from regard.data.batching.row_batch import RowBatch
from regard.data.batching.token_batches import TokenBatches
from regard.data.batching.windows import ContiguousWindows, TokenStream, sequential_windows
from regard.data.store.token_store import TokenStore, write_store
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.data.tokenizers.training import TokenizerConfig, train_tokenizer
from regard.train.task import Batches

VOCAB_SIZE, MASK, SPECIAL = 1000, 4, (0, 1, 2, 3)
Ids = NDArray[np.int64]


def masking(seed: int = 0, starts: Any = None, **settings: Any) -> Masking:
    return Masking(
        MaskingConfig(**settings), mask_id=MASK, vocab_size=VOCAB_SIZE, special_ids=SPECIAL, seed=seed, starts=starts
    )


def rows(count: int, length: int, seed: int = 0) -> tuple[Ids, Ids]:
    """Rows of random lengths: ordinary tokens between special ones."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, VOCAB_SIZE, (count, length))
    lengths = rng.integers(0, length + 1, count)
    ids[:, 0] = 1
    ids[np.arange(count), np.maximum(lengths - 1, 0)] = 2
    ids[np.arange(length) >= lengths[:, None]] = 0
    return ids, lengths


SHAPES = {"count": st.integers(1, 6), "length": st.integers(1, 30), "seed": st.integers(0, 99)}


@given(**SHAPES, probability=st.floats(0.01, 1.0), whole_word=st.booleans())
def test_only_ordinary_tokens_are_selected_and_the_rest_is_unchanged(
    count: int, length: int, seed: int, probability: float, whole_word: bool
) -> None:
    ids, lengths = rows(count, length, seed)
    mask = masking(seed, probability=probability, whole_word=whole_word, starts=np.arange(VOCAB_SIZE) % 3 == 0)
    tokens, targets = mask.mask(ids, lengths, epoch=1, index=2)
    selected = targets >= 0
    assert (targets[selected] == ids[selected]).all()
    assert (targets[~selected] == -1).all()
    assert (tokens[~selected] == ids[~selected]).all()
    assert not (selected & (ids <= MASK)).any()
    assert not (selected & (np.arange(length) >= lengths[:, None])).any()
    assert not np.isin(tokens[selected], SPECIAL).any()


@given(**SHAPES)
def test_every_row_has_at_least_one_target(count: int, length: int, seed: int) -> None:
    ids, lengths = rows(count, length, seed)
    _, targets = masking(seed, probability=0.01).mask(ids, lengths, epoch=0, index=0)
    has_ordinary = ((ids > MASK) & (np.arange(length) < lengths[:, None])).any(axis=1)
    assert ((targets >= 0).any(axis=1) == has_ordinary).all()


def test_fractions_are_exact() -> None:
    ids, lengths = np.full((400, 500), 7), np.full(400, 500)
    for probability, masked, random in ((0.15, 0.8, 0.1), (0.4, 0.5, 0.5), (1.0, 0.0, 0.3)):
        mask = masking(probability=probability, mask_fraction=masked, random_fraction=random)
        tokens, targets = mask.mask(ids, lengths, epoch=0, index=0)
        selected = targets >= 0
        assert selected.mean() == pytest.approx(probability, abs=1e-6)  # a whole number of targets per row
        assert (tokens[selected] == MASK).mean() == pytest.approx(masked, abs=0.01)
        unchanged = 1 - masked - random
        assert (tokens[selected] == 7).mean() == pytest.approx(unchanged + random / 995, abs=0.01)
        others = tokens[selected & (tokens != MASK) & (tokens != 7)]
        assert len(others) / selected.sum() == pytest.approx(random, abs=0.01)


def test_fractional_number_of_targets_is_exact_on_average() -> None:
    ids, lengths = np.full((20_000, 10), 7), np.full(20_000, 10)  # 1.5 targets per row
    _, targets = masking().mask(ids, lengths, epoch=0, index=0)
    counts = (targets >= 0).sum(axis=1)
    assert set(counts.tolist()) == {1, 2}
    assert counts.mean() == pytest.approx(1.5, abs=0.02)


def test_every_position_is_equally_likely() -> None:
    ids, lengths = np.full((20_000, 12), 7), np.full(20_000, 12)
    _, targets = masking(probability=0.25).mask(ids, lengths, epoch=0, index=0)
    np.testing.assert_allclose((targets >= 0).mean(axis=0), 0.25, atol=0.015)


def test_random_replacements_are_uniform_over_ordinary_tokens() -> None:
    ids, lengths = np.full((100, 100), 7), np.full(100, 100)
    mask = Masking(
        MaskingConfig(probability=1.0, mask_fraction=0.0, random_fraction=1.0),
        mask_id=4,
        vocab_size=15,
        special_ids=SPECIAL,
    )
    tokens, _ = mask.mask(ids, lengths, epoch=0, index=0)
    counts = np.bincount(tokens.ravel(), minlength=15)
    assert (counts[:5] == 0).all()
    np.testing.assert_allclose(counts[5:], 1000, atol=130)  # over four standard deviations


def test_masks_depend_on_seed_epoch_and_index_only() -> None:
    ids, lengths = rows(8, 40)
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    found = []
    for seed, epoch, index in keys:
        first = masking(seed).mask(ids, lengths, epoch=epoch, index=index)
        np.random.seed(seed)
        again = masking(seed).mask(ids, lengths, epoch=epoch, index=index)
        assert all(map(np.array_equal, first, again))
        found.append(first[0].tolist())
    assert len({json.dumps(tokens) for tokens in found}) == 4


def test_masks_of_a_seed_never_change() -> None:
    tokens, targets = masking(9, probability=0.5).mask(np.arange(10, 18)[None], np.array([8]), epoch=0, index=0)
    assert tokens.tolist() == [[4, 4, 12, 4, 4, 15, 16, 17]]
    assert targets.tolist() == [[10, 11, -1, 13, 14, -1, -1, -1]]


def test_input_is_not_modified() -> None:
    ids, lengths = rows(4, 20)
    before = ids.copy()
    masking(probability=1.0).mask(ids, lengths, epoch=0, index=0)
    assert (ids == before).all()


# Whole-word masking


@given(**SHAPES, probability=st.floats(0.05, 1.0))
def test_whole_word_masking_selects_all_tokens_of_a_word(
    count: int, length: int, seed: int, probability: float
) -> None:
    ids, lengths = rows(count, length, seed)
    starts = ids % 3 == 0
    mask = masking(seed, probability=probability, whole_word=True, starts=np.arange(VOCAB_SIZE) % 3 == 0)
    _, targets = mask.mask(ids, lengths, epoch=0, index=0)
    for row in range(count):
        for column in range(1, lengths[row]):
            ordinary = ids[row, column] > MASK and ids[row, column - 1] > MASK
            if ordinary and not starts[row, column]:
                assert (targets[row, column] >= 0) == (targets[row, column - 1] >= 0)


def test_whole_word_probability_counts_words() -> None:
    ids, lengths = np.tile([5, 6, 7, 8], (50, 25)), np.full(50, 100)  # words of four tokens
    starts = np.arange(VOCAB_SIZE) == 5
    _, targets = masking(probability=0.2, whole_word=True, starts=starts).mask(ids, lengths, epoch=0, index=0)
    assert ((targets >= 0).sum(axis=1) == 20).all()


def test_word_starts_per_position() -> None:
    ids, lengths = np.full((30, 12), 9), np.full(30, 12)
    starts = np.tile([True, False, False], (30, 4))
    _, targets = masking(probability=0.25, whole_word=True).mask(ids, lengths, epoch=0, index=0, starts=starts)
    selected = (targets >= 0).reshape(30, 4, 3)
    assert (selected.all(axis=2) == selected.any(axis=2)).all()
    assert (selected.any(axis=2).sum(axis=1) == 1).all()


def test_words_do_not_cross_documents() -> None:
    ids, lengths = np.full((200, 6), 9), np.full(200, 6)
    documents = np.tile([0, 0, 0, 1, 1, 1], (200, 1))
    starts = np.zeros(VOCAB_SIZE, dtype=np.bool_)
    mask = masking(probability=0.5, whole_word=True, starts=starts)
    _, targets = mask.mask(ids, lengths, epoch=0, index=0, documents=documents)
    selected = (targets >= 0).reshape(200, 2, 3)
    assert (selected.all(axis=2).sum(axis=1) == 1).all()
    assert 60 < selected[:, 0, 0].sum() < 140


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character", "byte"])
def test_word_starts_of_trained_tokenizers(kind: Any) -> None:
    text = "the cat ate\nthe mouse. and the cat"
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind), [20 * text])
    starts, ids = word_starts(tokenizer), tokenizer.encode(text)
    words: list[list[int]] = []
    for token in ids:
        if starts[token] or not words:
            words.append([])
        words[-1].append(token)
    assert [tokenizer.decode(word).strip() for word in words] == text.split()


def test_every_token_of_a_word_tokenizer_starts_a_word() -> None:
    assert word_starts(train_tokenizer(TokenizerConfig(kind="word"), ["a b c"])).all()


def test_word_starts_of_imported_tokenizers() -> None:
    pieces = Tokenizer(models.WordPiece({"[UNK]": 0, "cat": 1, "##s": 2}, unk_token="[UNK]"))
    assert word_starts(TextTokenizer(pieces)).tolist() == [True, True, False]
    sentence = Tokenizer(models.Unigram([("▁cat", -1.0), ("s", -1.0)], unk_id=None))
    assert word_starts(TextTokenizer(sentence)).tolist() == [True, False]


# Batches


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    rng = np.random.default_rng(0)
    items = [([1, *rng.integers(5, VOCAB_SIZE, rng.integers(1, 30)).tolist(), 2],) for _ in range(60)]
    return write_store(tmp_path / "store", items, ["text"], "key", VOCAB_SIZE)


def sources(store: TokenStore) -> dict[str, Any]:
    stream = TokenStream.from_store(store)
    return {
        "tokens": TokenBatches(store, 128, seed=1, length_buckets=4),
        "windows": ContiguousWindows(stream, 16, 4, seed=1),
        "packed": PackedDocuments(stream, 40, 4, seed=1, bos_id=1),
    }


@pytest.mark.parametrize("kind", ["tokens", "windows", "packed"])
def test_targets_restore_the_unmasked_batch(store: TokenStore, kind: str) -> None:
    mask = masking()
    batches: Batches[RowBatch] = MappedBatches(sources(store)[kind], mask, mask.key)
    plain = sources(store)[kind]
    for batch, source in zip(itertools.islice(batches.epochs(), 30), plain.epochs(), strict=False):
        ids = source.target if kind == "tokens" else source.targets
        assert torch.equal(torch.where(batch.targets >= 0, batch.targets, batch.tokens), ids)
        assert batch.count == int((batch.targets >= 0).sum())
        assert 0 < batch.count < 0.6 * ids.numel()
        assert (batch.documents is None) == (kind != "packed")
        assert sum(part.count for part in batch.split(3)) == batch.count


def test_validation_masks_are_the_same_each_time(store: TokenStore) -> None:
    stream = TokenStream.from_store(store)
    first, second = ([masking()(batch) for batch in sequential_windows(stream, 16, 4)] for _ in range(2))
    assert all(torch.equal(one.tokens, other.tokens) for one, other in zip(first, second, strict=True))
    assert len({tuple(batch.tokens.flatten().tolist()) for batch in first}) == len(first)


# Errors


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"probability": 0.0}, r"^probability: found 0\.0; expected greater than 0"),
        ({"probability": 15.0}, r"^probability: found 15\.0; expected less than or equal to 1"),
        (
            {"mask_fraction": 0.8, "random_fraction": 0.3},
            r"^random_fraction: found 0\.3 with a mask_fraction of 0\.8",
        ),
        ({"probabilty": 0.1}, r"^probabilty: unknown key; did you mean 'probability'"),
    ],
)
def test_config_errors_name_the_key(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MaskingConfig(**settings)


def test_fractions_may_sum_to_one() -> None:
    assert MaskingConfig(mask_fraction=0.9, random_fraction=0.1).random_fraction == 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask_id": 10}, "The mask token 10 is outside the vocabulary of 10"),
        ({"special_ids": [-1]}, "The special token -1 is outside"),
        ({"special_ids": range(10)}, "All 10 tokens of the vocabulary are special"),
        ({"starts": np.ones(9, dtype=np.bool_)}, r"shape \(9,\) do not fit a vocabulary of 10"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Masking(MaskingConfig(), **{"mask_id": 4, "vocab_size": 10} | options)


def test_whole_word_masking_without_word_starts_is_refused() -> None:
    with pytest.raises(UserError, match="needs to know where words begin"):
        masking(whole_word=True).mask(*rows(2, 5), epoch=0, index=0)


@pytest.mark.parametrize("wrong", [-1, VOCAB_SIZE])
def test_token_outside_the_vocabulary_is_refused(wrong: int) -> None:
    with pytest.raises(UserError, match=f"The id {wrong} is outside the vocabulary of {VOCAB_SIZE}"):
        masking().mask(np.array([[5, wrong]]), np.array([2]), epoch=0, index=0)
