"""Gaps: as many as asked for, of the kinds asked for, never where they must not be, and the same every time."""

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
from regard.data.batch import TokenBatches
from regard.data.gaps import GapBatches, Gaps, GapsConfig, word_starts
from regard.data.packed import PackedRows
from regard.data.rows import RowBatch
from regard.data.store import TokenStore, write
from regard.data.tokenizer import TextTokenizer
from regard.data.tokenizer_training import TokenizerConfig, train_tokenizer
from regard.data.windows import ContiguousWindows, TokenStream, whole_windows
from regard.train.task import Batches

VOCABULARY, MASK, SPECIAL = 1000, 4, (0, 1, 2, 3)
Ids = NDArray[np.int64]


def gaps(seed: int = 0, starts: Any = None, **settings: Any) -> Gaps:
    return Gaps(GapsConfig(**settings), mask=MASK, vocabulary=VOCABULARY, special=SPECIAL, seed=seed, starts=starts)


def rows(many: int, length: int, seed: int = 0) -> tuple[Ids, Ids]:
    """Rows of ordinary words between special ones, of every length."""
    dice = np.random.default_rng(seed)
    words = dice.integers(5, VOCABULARY, (many, length))
    lengths = dice.integers(0, length + 1, many)
    words[:, 0] = 1
    words[np.arange(many), np.maximum(lengths - 1, 0)] = 2
    words[np.arange(length) >= lengths[:, None]] = 0
    return words, lengths


SHAPES = {"many": st.integers(1, 6), "length": st.integers(1, 30), "seed": st.integers(0, 99)}


@given(**SHAPES, share=st.floats(0.01, 1.0), whole=st.booleans())
def test_only_words_are_asked_for_and_all_else_stays(
    many: int, length: int, seed: int, share: float, whole: bool
) -> None:
    words, lengths = rows(many, length, seed)
    made = gaps(seed, share=share, whole_words=whole, starts=np.arange(VOCABULARY) % 3 == 0)
    tokens, wanted = made.make(words, lengths, epoch=1, number=2)
    asked = wanted >= 0
    assert (wanted[asked] == words[asked]).all()
    assert (wanted[~asked] == -1).all()
    assert (tokens[~asked] == words[~asked]).all()
    assert not (asked & (words <= MASK)).any()
    assert not (asked & (np.arange(length) >= lengths[:, None])).any()
    assert not np.isin(tokens[asked], SPECIAL).any()


@given(**SHAPES)
def test_every_row_with_a_word_is_asked_for_one(many: int, length: int, seed: int) -> None:
    words, lengths = rows(many, length, seed)
    _, wanted = gaps(seed, share=0.01).make(words, lengths, epoch=0, number=0)
    has = ((words > MASK) & (np.arange(length) < lengths[:, None])).any(axis=1)
    assert ((wanted >= 0).any(axis=1) == has).all()


def test_the_shares_are_those_asked_for() -> None:
    words, lengths = np.full((400, 500), 7), np.full(400, 500)
    for share, masked, random in ((0.15, 0.8, 0.1), (0.4, 0.5, 0.5), (1.0, 0.0, 0.3)):
        made = gaps(share=share, masked=masked, random=random)
        tokens, wanted = made.make(words, lengths, epoch=0, number=0)
        asked = wanted >= 0
        assert asked.mean() == pytest.approx(share, abs=1e-6)  # 500 words a row: a whole number of them
        assert (tokens[asked] == MASK).mean() == pytest.approx(masked, abs=0.01)
        stays = 1 - masked - random
        assert (tokens[asked] == 7).mean() == pytest.approx(stays + random / 995, abs=0.01)
        others = tokens[asked & (tokens != MASK) & (tokens != 7)]
        assert len(others) / asked.sum() == pytest.approx(random, abs=0.01)


def test_a_share_that_is_no_whole_number_is_right_on_average() -> None:
    words, lengths = np.full((20_000, 10), 7), np.full(20_000, 10)  # 1.5 words a row
    _, wanted = gaps().make(words, lengths, epoch=0, number=0)
    many = (wanted >= 0).sum(axis=1)
    assert set(many.tolist()) == {1, 2}
    assert many.mean() == pytest.approx(1.5, abs=0.02)


def test_every_place_is_chosen_as_often() -> None:
    words, lengths = np.full((20_000, 12), 7), np.full(20_000, 12)
    _, wanted = gaps(share=0.25).make(words, lengths, epoch=0, number=0)
    np.testing.assert_allclose((wanted >= 0).mean(axis=0), 0.25, atol=0.015)


def test_random_words_are_all_ordinary_ones_as_often() -> None:
    words, lengths = np.full((100, 100), 7), np.full(100, 100)
    made = Gaps(GapsConfig(share=1.0, masked=0.0, random=1.0), mask=4, vocabulary=15, special=SPECIAL)
    tokens, _ = made.make(words, lengths, epoch=0, number=0)
    counts = np.bincount(tokens.ravel(), minlength=15)
    assert (counts[:5] == 0).all()
    np.testing.assert_allclose(counts[5:], 1000, atol=130)  # over four standard deviations


def test_gaps_follow_seed_epoch_and_number_and_nothing_else() -> None:
    words, lengths = rows(8, 40)
    places = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    found = []
    for seed, epoch, number in places:
        first = gaps(seed).make(words, lengths, epoch=epoch, number=number)
        np.random.seed(seed)
        again = gaps(seed).make(words, lengths, epoch=epoch, number=number)
        assert all(map(np.array_equal, first, again))
        found.append(first[0].tolist())
    assert len({json.dumps(tokens) for tokens in found}) == 4


def test_the_gaps_of_a_seed_are_the_same_in_every_version() -> None:
    tokens, wanted = gaps(9, share=0.5).make(np.arange(10, 18)[None], np.array([8]), epoch=0, number=0)
    assert tokens.tolist() == [[4, 4, 12, 4, 4, 15, 16, 17]]
    assert wanted.tolist() == [[10, 11, -1, 13, 14, -1, -1, -1]]


def test_rows_given_are_left_as_they_are() -> None:
    words, lengths = rows(4, 20)
    before = words.copy()
    gaps(share=1.0).make(words, lengths, epoch=0, number=0)
    assert (words == before).all()


# Whole words.


@given(**SHAPES, share=st.floats(0.05, 1.0))
def test_a_word_is_asked_for_as_a_whole_or_not_at_all(many: int, length: int, seed: int, share: float) -> None:
    words, lengths = rows(many, length, seed)
    begins = words % 3 == 0
    made = gaps(seed, share=share, whole_words=True, starts=np.arange(VOCABULARY) % 3 == 0)
    _, wanted = made.make(words, lengths, epoch=0, number=0)
    for row in range(many):
        for column in range(1, lengths[row]):
            ordinary = words[row, column] > MASK and words[row, column - 1] > MASK
            if ordinary and not begins[row, column]:
                assert (wanted[row, column] >= 0) == (wanted[row, column - 1] >= 0)


def test_the_share_of_words_is_counted_in_words() -> None:
    words, lengths = np.tile([5, 6, 7, 8], (50, 25)), np.full(50, 100)  # words of four tokens
    starts = np.arange(VOCABULARY) == 5
    _, wanted = gaps(share=0.2, whole_words=True, starts=starts).make(words, lengths, epoch=0, number=0)
    assert ((wanted >= 0).sum(axis=1) == 20).all()


def test_word_starts_may_be_told_for_each_cell() -> None:
    words, lengths = np.full((30, 12), 9), np.full(30, 12)
    starts = np.tile([True, False, False], (30, 4))
    _, wanted = gaps(share=0.25, whole_words=True).make(words, lengths, epoch=0, number=0, starts=starts)
    asked = (wanted >= 0).reshape(30, 4, 3)
    assert (asked.all(axis=2) == asked.any(axis=2)).all()
    assert (asked.any(axis=2).sum(axis=1) == 1).all()


def test_no_word_reaches_into_another_document() -> None:
    words, lengths = np.full((200, 6), 9), np.full(200, 6)
    documents = np.tile([0, 0, 0, 1, 1, 1], (200, 1))
    starts = np.zeros(VOCABULARY, dtype=np.bool_)
    made = gaps(share=0.5, whole_words=True, starts=starts)
    _, wanted = made.make(words, lengths, epoch=0, number=0, documents=documents)
    asked = (wanted >= 0).reshape(200, 2, 3)
    assert (asked.all(axis=2).sum(axis=1) == 1).all()
    assert 60 < asked[:, 0, 0].sum() < 140


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character", "byte"])
def test_our_tokenizers_know_where_words_begin(kind: Any) -> None:
    text = "the cat ate\nthe mouse. and the cat"
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind), [20 * text])
    starts, ids = word_starts(tokenizer), tokenizer.encode(text)
    words: list[list[int]] = []
    for number in ids:
        if starts[number] or not words:
            words.append([])
        words[-1].append(number)
    assert [tokenizer.decode(word).strip() for word in words] == text.split()


def test_tokens_of_a_word_tokenizer_each_begin_a_word() -> None:
    assert word_starts(train_tokenizer(TokenizerConfig(kind="word"), ["a b c"])).all()


def test_marks_of_other_tokenizers_are_known() -> None:
    pieces = Tokenizer(models.WordPiece({"[UNK]": 0, "cat": 1, "##s": 2}, unk_token="[UNK]"))
    assert word_starts(TextTokenizer(pieces)).tolist() == [True, True, False]
    sentence = Tokenizer(models.Unigram([("▁cat", -1.0), ("s", -1.0)], unk_id=None))
    assert word_starts(TextTokenizer(sentence)).tolist() == [True, False]


# Batches.


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    dice = np.random.default_rng(0)
    items = [([1, *dice.integers(5, VOCABULARY, dice.integers(1, 30)).tolist(), 2],) for _ in range(60)]
    return write(tmp_path / "store", items, ["text"], "key", VOCABULARY)


def sources(store: TokenStore) -> dict[str, Any]:
    stream = TokenStream.of(store)
    return {
        "tokens": TokenBatches(store, 128, seed=1, shapes=4),
        "windows": ContiguousWindows(stream, 16, 4, seed=1),
        "packed": PackedRows(stream, 40, 4, seed=1, start=1),
    }


@pytest.mark.parametrize("kind", ["tokens", "windows", "packed"])
def test_batches_with_gaps_hold_the_words_of_their_source(store: TokenStore, kind: str) -> None:
    batches: Batches[RowBatch] = GapBatches(sources(store)[kind], gaps())
    plain = sources(store)[kind]
    for batch, source in zip(itertools.islice(batches.epochs(), 30), plain.epochs(), strict=False):
        words = source.target if kind == "tokens" else source.wanted
        back = torch.where(batch.wanted >= 0, batch.wanted, batch.tokens)
        assert torch.equal(back, words)
        assert batch.count == int((batch.wanted >= 0).sum())
        assert 0 < batch.count < 0.6 * words.numel()
        assert (batch.documents is None) == (kind != "packed")
        assert sum(part.count for part in batch.split(3)) == batch.count


@pytest.mark.parametrize("kind", ["tokens", "windows", "packed"])
@pytest.mark.parametrize("taken", [0, 3, 25])
def test_a_run_taken_up_goes_on_with_the_same_gaps(store: TokenStore, kind: str, taken: int) -> None:
    whole = list(itertools.islice(GapBatches(sources(store)[kind], gaps()).epochs(), 30))
    stopped = GapBatches(sources(store)[kind], gaps())
    list(itertools.islice(stopped.epochs(), taken))
    resumed = GapBatches(sources(store)[kind], gaps())
    resumed.restore(json.loads(json.dumps(stopped.state())))
    for batch, wanted in zip(resumed.epochs(), whole[taken:], strict=False):
        assert torch.equal(batch.tokens, wanted.tokens)
        assert torch.equal(batch.wanted, wanted.wanted)


def test_ranks_and_skipping_change_no_gaps(store: TokenStore) -> None:
    whole = list(GapBatches(sources(store)["tokens"], gaps()).epoch())
    share = GapBatches(sources(store)["tokens"], gaps()).share(1, 2)
    for batch, wanted in zip(share.epoch(), whole[1::2], strict=False):
        assert torch.equal(batch.tokens, wanted.tokens)
    batches = GapBatches(sources(store)["tokens"], gaps())
    batches.skip()
    assert torch.equal(next(batches.epochs()).tokens, whole[1].tokens)
    assert len(batches) == len(whole)
    assert batches.fewest_rows == sources(store)["tokens"].fewest_rows
    assert batches.report.items == 60


def test_validation_has_the_same_gaps_each_time(store: TokenStore) -> None:
    stream = TokenStream.of(store)
    first, second = ([gaps()(batch) for batch in whole_windows(stream, 16, 4)] for _ in range(2))
    assert all(torch.equal(one.tokens, other.tokens) for one, other in zip(first, second, strict=True))
    assert len({tuple(batch.tokens.flatten().tolist()) for batch in first}) == len(first)


def test_a_position_of_other_gaps_is_refused(store: TokenStore) -> None:
    state = GapBatches(sources(store)["tokens"], gaps()).state()
    with pytest.raises(UserError, match="What is asked of the data has changed"):
        GapBatches(sources(store)["tokens"], gaps(share=0.2)).restore(state)


# What is refused.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 0.0}, r"^share: found 0\.0; expected greater than 0"),
        ({"share": 15.0}, r"^share: found 15\.0; expected less than or equal to 1"),
        ({"masked": 0.8, "random": 0.3}, r"^random: found 0\.3, and 0\.8 are masked; together at most 1"),
        ({"shares": 0.1}, r"^shares: unknown key; did you mean 'share'"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GapsConfig(**settings)


def test_shares_may_make_up_all() -> None:
    assert GapsConfig(masked=0.9, random=0.1).random == 0.1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mask": 10}, "The mask token 10 is outside the vocabulary of 10"),
        ({"special": [-1]}, "The special token -1 is outside"),
        ({"special": range(10)}, "All 10 tokens of the vocabulary are special"),
        ({"starts": np.ones(9, dtype=np.bool_)}, r"shape \(9,\) do not fit a vocabulary of 10"),
    ],
)
def test_ids_that_do_not_fit_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Gaps(GapsConfig(), **{"mask": 4, "vocabulary": 10} | given)


def test_whole_words_without_word_starts_are_refused() -> None:
    with pytest.raises(UserError, match="need to know where words begin"):
        gaps(whole_words=True).make(*rows(2, 5), epoch=0, number=0)


@pytest.mark.parametrize("wrong", [-1, VOCABULARY])
def test_an_id_outside_the_vocabulary_is_refused(wrong: int) -> None:
    with pytest.raises(UserError, match=f"The id {wrong} is not in a vocabulary of {VOCABULARY}"):
        gaps().make(np.array([[5, wrong]]), np.array([2]), epoch=0, number=0)
