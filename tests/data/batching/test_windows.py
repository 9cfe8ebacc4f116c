"""Windows of a token stream: every token is predicted once, at seeded offsets. (Resuming: test_epochs.)"""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import UserError
from regard.data.batching.row_batch import RowBatch
from regard.data.batching.windows import ContiguousWindows, RandomWindows, TokenStream, sequential_windows
from regard.data.store.token_store import write_store


def arange_stream(tokens: int) -> TokenStream:
    """A stream in which each id is its own offset, so that a window's tokens show where it was cut."""
    return TokenStream(np.arange(tokens))


def positions(batches: list[RowBatch]) -> list[tuple[int, int]]:
    """(token, target) of all positions that are not padding."""
    found = []
    for batch in batches:
        for tokens, targets, length in zip(
            batch.tokens.tolist(), batch.targets.tolist(), batch.lengths.tolist(), strict=True
        ):
            found += list(zip(tokens[:length], targets[:length], strict=True))
    return found


def same(one: RowBatch, other: RowBatch) -> bool:
    return (one.epoch, one.index, one.count) == (other.epoch, other.index, other.count) and all(
        torch.equal(getattr(one, name), getattr(other, name)) for name in ("tokens", "targets", "lengths")
    )


STREAMS, LENGTHS, ROWS = st.integers(2, 90), st.integers(1, 12), st.integers(1, 6)


@given(STREAMS, LENGTHS, ROWS, st.integers(0, 2**64 - 1))
def test_contiguous_windows_predict_every_token_but_the_first_once(
    tokens: int, length: int, rows: int, seed: int
) -> None:
    batches = ContiguousWindows(arange_stream(tokens), length, rows, seed=seed)
    for _ in range(3):
        found = positions(list(batches.epoch()))
        assert sorted(found) == [(offset, offset + 1) for offset in range(tokens - 1)]


@given(STREAMS, LENGTHS, ROWS, st.integers(0, 99))
def test_random_windows_are_contiguous_in_the_stream(tokens: int, length: int, rows: int, seed: int) -> None:
    if tokens <= length:
        return
    for batch in RandomWindows(arange_stream(tokens), length, rows, seed=seed).epoch():
        assert torch.equal(batch.targets, batch.tokens + 1)
        assert (batch.tokens.diff(dim=1) == 1).all()
        assert batch.targets.max() < tokens
        assert (batch.lengths == length).all()


def test_random_offsets_are_uniform() -> None:
    batches = RandomWindows(arange_stream(14), 4, 50, seed=1)
    taken = itertools.islice(batches.epochs(), 200)
    offsets = Counter(offset for batch in taken for offset in batch.tokens[:, 0].tolist())
    assert sorted(offsets) == list(range(10))  # the last window ends with the last token
    assert all(abs(count - 1000) < 130 for count in offsets.values())  # over four standard deviations


@given(STREAMS, LENGTHS, ROWS)
def test_sequential_windows_predict_every_token_but_the_first_once_in_order(
    tokens: int, length: int, rows: int
) -> None:
    batches = list(sequential_windows(arange_stream(tokens), length, rows))
    assert positions(batches) == [(offset, offset + 1) for offset in range(tokens - 1)]
    assert sum(batch.count for batch in batches) == tokens - 1
    assert len({batch.shape for batch in batches}) == 1
    starts = [row[0] for batch in batches for row, size in zip(batch.tokens, batch.lengths, strict=True) if size]
    assert starts == list(range(0, tokens - 1, length))


def test_offsets_and_order_of_windows_change_with_the_epoch() -> None:
    batches = ContiguousWindows(arange_stream(1000), 10, 8, seed=1)
    starts = []
    for _ in range(4):
        batch = next(batches.epoch())
        starts.append(batch.tokens[batch.lengths == 10][:, 0].tolist())
        list(batches.epoch())
    assert len({offsets[0] % 10 for offsets in starts}) > 1
    assert all(offsets != sorted(offsets) for offsets in starts)


def test_every_size_of_the_first_window_is_sampled() -> None:
    batches = ContiguousWindows(arange_stream(100), 4, 100, seed=1)
    firsts = Counter(
        int(batch.lengths[(batch.tokens[:, 0] == 0) & (batch.lengths > 0)][0])
        for batch in itertools.islice(batches.epochs(), 400)
    )
    assert sorted(firsts) == [1, 2, 3, 4]
    assert all(abs(count - 100) < 40 for count in firsts.values())


@given(STREAMS, LENGTHS, ROWS)
def test_batches_are_filled_evenly(tokens: int, length: int, rows: int) -> None:
    filled = [
        int((batch.lengths > 0).sum()) for batch in ContiguousWindows(arange_stream(tokens), length, rows).epoch()
    ]
    assert max(filled) - min(filled) <= 1
    assert min(filled) >= 1


@given(STREAMS, LENGTHS, ROWS)
def test_padding_uses_pad_id(tokens: int, length: int, rows: int) -> None:
    for batch in ContiguousWindows(arange_stream(tokens), length, rows, pad_id=77777).epoch():
        padding = torch.arange(length) >= batch.lengths[:, None]
        assert (batch.tokens[padding] == 77777).all()
        assert (batch.targets[padding] == 77777).all()
        assert 77777 not in batch.tokens[~padding]


def test_order_of_a_seed_never_changes() -> None:
    batch = next(ContiguousWindows(arange_stream(30), 4, 3, seed=7).epochs())
    assert batch.tokens.tolist() == [[16, 17, 18, 19], [4, 5, 6, 7], [0, 0, 0, 0]]
    assert batch.lengths.tolist() == [4, 4, 0]
    batch = next(RandomWindows(arange_stream(30), 4, 3, seed=7).epochs())
    assert batch.tokens[:, 0].tolist() == [7, 5, 19]


# Token streams


def test_stream_of_a_store_has_its_items_as_documents(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", [([5, 6],), ([],), ([7],)], ["text"], "key", 10)
    stream = TokenStream.from_store(store)
    assert stream.tokens.tolist() == [5, 6, 7]
    assert stream.offsets.tolist() == [0, 2, 2, 3]
    assert (stream.key, len(stream)) == ("key text", 3)


def test_memory_mapped_file_is_not_copied(tmp_path: Path) -> None:
    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "train.bin")
    mapped = TokenStream(np.memmap(tmp_path / "train.bin", dtype=np.uint16, mode="r"))
    assert np.shares_memory(mapped.tokens, mapped.tokens.base)
    for kind in (ContiguousWindows, RandomWindows):
        one, other = (next(kind(stream, 8, 4).epochs()) for stream in (mapped, arange_stream(1000)))
        assert same(one, other)
        assert one.tokens.dtype == torch.int64


@pytest.mark.parametrize("tokens", [np.zeros((2, 3), dtype=np.int64), np.zeros(3)])
def test_stream_must_be_one_dimensional_integers(tokens: np.ndarray) -> None:
    with pytest.raises(UserError, match="must be one row of whole numbers"):
        TokenStream(tokens)


def test_offsets_must_cover_the_stream() -> None:
    with pytest.raises(UserError, match="do not cover the 3 tokens"):
        TokenStream(np.arange(3), np.array([0, 2]))


def test_too_short_text_is_refused() -> None:
    with pytest.raises(UserError, match=r"The text has 8 tokens, but windows need at least 9; .*shorter"):
        RandomWindows(arange_stream(8), 8, 2)
    for make in (
        lambda: ContiguousWindows(arange_stream(1), 8, 2),
        lambda: next(sequential_windows(arange_stream(1), 8, 2)),
    ):
        with pytest.raises(UserError, match=r"The text has 1 tokens, but windows need at least 2; give more text\."):
            make()


@pytest.mark.parametrize(("length", "rows"), [(0, 1), (1, 0)])
def test_empty_shape_is_refused(length: int, rows: int) -> None:
    with pytest.raises(UserError, match="at least one row"):
        ContiguousWindows(arange_stream(9), length, rows)
