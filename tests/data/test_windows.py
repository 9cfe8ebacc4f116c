"""Windows over a stream: every cell once, at the places the seed says, in an order that can be taken up anywhere."""

import itertools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import UserError
from regard.data.epochs import EpochBatches
from regard.data.packed import PackedRows
from regard.data.rows import RowBatch
from regard.data.store import write
from regard.data.windows import ContiguousWindows, RandomWindows, TokenStream, whole_windows
from regard.train.task import Batches


def counted(tokens: int) -> TokenStream:
    """A stream whose ids are their own places, so that a cell shows where it was cut."""
    return TokenStream(np.arange(tokens))


def cells(batches: list[RowBatch]) -> list[tuple[int, int]]:
    """(what is read, what is wanted) of all real cells."""
    found = []
    for batch in batches:
        for tokens, wanted, length in zip(
            batch.tokens.tolist(), batch.wanted.tolist(), batch.lengths.tolist(), strict=True
        ):
            found += list(zip(tokens[:length], wanted[:length], strict=True))
    return found


def same(one: RowBatch, other: RowBatch) -> bool:
    return (one.epoch, one.number, one.count) == (other.epoch, other.number, other.count) and all(
        torch.equal(getattr(one, name), getattr(other, name)) for name in ("tokens", "wanted", "lengths")
    )


STREAMS, LENGTHS, ROWS = st.integers(2, 90), st.integers(1, 12), st.integers(1, 6)


@given(STREAMS, LENGTHS, ROWS, st.integers(0, 2**64 - 1))
def test_contiguous_windows_predict_every_token_but_the_first_once_an_epoch(
    tokens: int, length: int, rows: int, seed: int
) -> None:
    batches = ContiguousWindows(counted(tokens), length, rows, seed=seed)
    for _ in range(3):
        found = cells(list(batches.epoch()))
        assert sorted(found) == [(place, place + 1) for place in range(tokens - 1)]


@given(STREAMS, LENGTHS, ROWS, st.integers(0, 99))
def test_random_windows_read_on_from_a_place_of_the_stream(tokens: int, length: int, rows: int, seed: int) -> None:
    if tokens <= length:
        return
    for batch in RandomWindows(counted(tokens), length, rows, seed=seed).epoch():
        assert torch.equal(batch.wanted, batch.tokens + 1)
        assert (batch.tokens.diff(dim=1) == 1).all()
        assert batch.wanted.max() < tokens
        assert (batch.lengths == length).all()


def test_random_places_are_all_as_likely() -> None:
    batches = RandomWindows(counted(14), 4, 50, seed=1)
    taken = itertools.islice(batches.epochs(), 200)
    places = Counter(place for batch in taken for place in batch.tokens[:, 0].tolist())
    assert sorted(places) == list(range(10))  # the last window ends with the last token
    assert all(abs(count - 1000) < 130 for count in places.values())  # over four standard deviations


@given(STREAMS, LENGTHS, ROWS)
def test_whole_windows_predict_every_token_but_the_first_once_in_order(tokens: int, length: int, rows: int) -> None:
    batches = list(whole_windows(counted(tokens), length, rows))
    assert cells(batches) == [(place, place + 1) for place in range(tokens - 1)]
    assert sum(batch.count for batch in batches) == tokens - 1
    assert len({batch.shape for batch in batches}) == 1
    starts = [row[0] for batch in batches for row, size in zip(batch.tokens, batch.lengths, strict=True) if size]
    assert starts == list(range(0, tokens - 1, length))


def test_windows_begin_elsewhere_in_each_epoch_and_come_in_another_order() -> None:
    batches = ContiguousWindows(counted(1000), 10, 8, seed=1)
    starts = []
    for _ in range(4):
        batch = next(batches.epoch())
        starts.append(batch.tokens[batch.lengths == 10][:, 0].tolist())
        list(batches.epoch())
    assert len({places[0] % 10 for places in starts}) > 1
    assert all(places != sorted(places) for places in starts)


def test_every_offset_is_drawn() -> None:
    batches = ContiguousWindows(counted(100), 4, 100, seed=1)
    firsts = Counter(
        int(batch.lengths[(batch.tokens[:, 0] == 0) & (batch.lengths > 0)][0])
        for batch in itertools.islice(batches.epochs(), 400)
    )
    assert sorted(firsts) == [1, 2, 3, 4]
    assert all(abs(count - 100) < 40 for count in firsts.values())


@given(STREAMS, LENGTHS, ROWS)
def test_batches_are_about_equally_full(tokens: int, length: int, rows: int) -> None:
    filled = [int((batch.lengths > 0).sum()) for batch in ContiguousWindows(counted(tokens), length, rows).epoch()]
    assert max(filled) - min(filled) <= 1
    assert min(filled) >= 1


@given(STREAMS, LENGTHS, ROWS)
def test_padding_is_the_id_asked_for(tokens: int, length: int, rows: int) -> None:
    for batch in ContiguousWindows(counted(tokens), length, rows, padding=77777).epoch():
        behind = torch.arange(length) >= batch.lengths[:, None]
        assert (batch.tokens[behind] == 77777).all()
        assert (batch.wanted[behind] == 77777).all()
        assert 77777 not in batch.tokens[~behind]


# What all batches in epochs promise.

Make = Callable[[], EpochBatches[RowBatch]]
OFFSETS = np.array([0, 9, 11, 40, 41, 70, 101])
KINDS: dict[str, Make] = {
    "contiguous": lambda: ContiguousWindows(counted(101), 5, 3, seed=3),
    "random": lambda: RandomWindows(counted(101), 5, 3, seed=3),
    "packed": lambda: PackedRows(TokenStream(np.arange(101), OFFSETS), 5, 3, seed=3, start=500),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_they_are_batches_as_the_loop_wants_them(kind: str) -> None:
    batches: Batches[RowBatch] = KINDS[kind]()
    assert batches.fewest_rows == 3
    assert {batch.shape for batch in itertools.islice(batches.epochs(), 20)} == {
        next(KINDS[kind]().epochs()).shape,
    }


@every_kind
@pytest.mark.parametrize("taken", [0, 1, 6, 7, 8, 20])
def test_a_run_stopped_after_any_batch_goes_on_with_the_next(kind: str, taken: int) -> None:
    whole = list(itertools.islice(KINDS[kind]().epochs(), 30))
    stopped = KINDS[kind]()
    list(itertools.islice(stopped.epochs(), taken))
    resumed = KINDS[kind]()
    resumed.restore(json.loads(json.dumps(stopped.state())))
    assert all(map(same, itertools.islice(resumed.epochs(), 30 - taken), whole[taken:]))


@every_kind
def test_a_skipped_batch_is_the_only_one_missing(kind: str) -> None:
    whole = list(itertools.islice(KINDS[kind]().epochs(), 30))
    batches = KINDS[kind]()
    stream = batches.epochs()
    for number in range(30):
        if number % 3:
            batches.skip()
        else:
            assert same(next(stream), whole[number])


@every_kind
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_take_the_batches_one_would_take_in_turn(kind: str, ranks: int) -> None:
    whole = list(KINDS[kind]().epoch())
    shares = [KINDS[kind]().share(rank, ranks) for rank in range(ranks)]
    steps = list(zip(*(share.epoch() for share in shares), strict=True))
    dealt = [batch for step in steps for batch in step]
    assert all(map(same, dealt[: len(whole)], whole))
    assert all(batch.count == 0 and not batch.lengths.any() for batch in dealt[len(whole) :])
    assert {share.state()["epoch"] for share in shares} == {1}
    assert len(shares[0].share(0, ranks)) >= len(whole) // ranks


@every_kind
def test_the_state_after_a_batch_is_that_of_a_run_that_took_no_more(kind: str) -> None:
    batches = KINDS[kind]().share(1, 2)
    for batch in itertools.islice(batches.epochs(), 20):
        assert batches.state_after(batch) == batches.state()


@every_kind
def test_the_global_random_state_changes_nothing(kind: str) -> None:
    np.random.seed(0)
    first = list(KINDS[kind]().epoch())
    np.random.seed(1)
    assert all(map(same, first, KINDS[kind]().epoch()))


@every_kind
def test_the_report_counts_what_an_epoch_holds(kind: str) -> None:
    batches = KINDS[kind]()
    taken = list(batches.epoch())
    assert batches.report.batches == len(taken) == batches.count(0)
    assert batches.report.tokens == sum(batch.count for batch in taken)
    assert batches.report.cells == sum(batch.tokens.numel() for batch in taken)
    assert "tokens to predict in" in str(batches.report)


@every_kind
def test_parts_of_a_batch_are_its_rows(kind: str) -> None:
    for batch in KINDS[kind]().epoch():
        parts = batch.split(2)
        assert [len(part.lengths) for part in parts] == [2, 1]
        assert torch.equal(torch.cat([part.wanted for part in parts]), batch.wanted)
        assert sum(part.count for part in parts) == batch.count
        assert [part.count for part in parts] == [int(part.lengths.sum()) for part in parts]


@every_kind
def test_a_batch_takes_over_the_contents_of_another(kind: str) -> None:
    one, other = itertools.islice(KINDS[kind]().epochs(), 2)
    one.copy_from(other)
    assert torch.equal(one.tokens, other.tokens)
    assert torch.equal(one.wanted, other.wanted)
    assert torch.equal(one.lengths, other.lengths)


@every_kind
def test_a_position_of_other_batches_is_refused(kind: str) -> None:
    state = ContiguousWindows(counted(101), 5, 3, seed=4).state()
    with pytest.raises(UserError, match="have changed since this position was saved"):
        KINDS[kind]().restore(state)
    damaged = KINDS[kind]().state() | {"position": 1000}
    with pytest.raises(UserError, match="no batch 1000 of epoch 0"):
        KINDS[kind]().restore(damaged)


def test_the_order_of_a_seed_is_the_same_in_every_version() -> None:
    batch = next(ContiguousWindows(counted(30), 4, 3, seed=7).epochs())
    assert batch.tokens.tolist() == [[16, 17, 18, 19], [4, 5, 6, 7], [0, 0, 0, 0]]
    assert batch.lengths.tolist() == [4, 4, 0]
    batch = next(RandomWindows(counted(30), 4, 3, seed=7).epochs())
    assert batch.tokens[:, 0].tolist() == [7, 5, 19]


# Streams.


def test_a_store_is_a_stream_of_its_items(tmp_path: Path) -> None:
    store = write(tmp_path / "store", [([5, 6],), ([],), ([7],)], ["text"], "key", 10)
    stream = TokenStream.of(store)
    assert stream.tokens.tolist() == [5, 6, 7]
    assert stream.offsets.tolist() == [0, 2, 2, 3]
    assert (stream.key, len(stream)) == ("key text", 3)


def test_a_mapped_file_is_read_where_it_lies(tmp_path: Path) -> None:
    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "train.bin")
    mapped = TokenStream(np.memmap(tmp_path / "train.bin", dtype=np.uint16, mode="r"))
    assert np.shares_memory(mapped.tokens, mapped.tokens.base)
    for kind in (ContiguousWindows, RandomWindows):
        one, other = (next(kind(stream, 8, 4).epochs()) for stream in (mapped, counted(1000)))
        assert same(one, other)
        assert one.tokens.dtype == torch.int64


@pytest.mark.parametrize("tokens", [np.zeros((2, 3), dtype=np.int64), np.zeros(3)])
def test_what_is_no_row_of_whole_numbers_is_refused(tokens: np.ndarray) -> None:
    with pytest.raises(UserError, match="A stream is one row of whole numbers"):
        TokenStream(tokens)


def test_documents_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="do not make up the 3 tokens"):
        TokenStream(np.arange(3), np.array([0, 2]))


def test_too_short_a_text_is_refused() -> None:
    with pytest.raises(UserError, match=r"The text has 8 tokens, and windows need at least 9; .*shorter"):
        RandomWindows(counted(8), 8, 2)
    for make in (lambda: ContiguousWindows(counted(1), 8, 2), lambda: next(whole_windows(counted(1), 8, 2))):
        with pytest.raises(UserError, match=r"The text has 1 tokens, and windows need at least 2; give more text\."):
            make()


@pytest.mark.parametrize(("length", "rows"), [(0, 1), (1, 0)])
def test_rows_without_cells_are_refused(length: int, rows: int) -> None:
    with pytest.raises(UserError, match="at least one row"):
        ContiguousWindows(counted(9), length, rows)


def test_a_seed_below_zero_is_refused() -> None:
    with pytest.raises(UserError, match="A seed is a whole number from 0 on"):
        RandomWindows(counted(9), 2, 2, seed=-1)


def test_a_rank_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match="no rank 2 of 2"):
        KINDS["random"]().share(2, 2)
