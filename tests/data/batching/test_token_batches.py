"""Token batches: every item once per epoch, within the token budget, in few shapes. (Resuming: test_epochs.)"""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import UserError
from regard.data.batching.buckets import BatchShape
from regard.data.batching.token_batches import Batch, BatchStats, TokenBatches
from regard.data.store.token_store import TokenStore, write_store
from tests.data.batching.support import Items, items_of_lengths


def caption_lengths(items: int = 20_000) -> Items:
    """Lengths like those of captions and their translations: log-normal and correlated."""
    rng = np.random.Generator(np.random.PCG64(1))
    source = np.clip(np.exp(rng.normal(2.6, 0.33, items)), 3, 60).astype(int)
    target = np.clip(source * np.exp(rng.normal(0, 0.17, items)), 3, 60).round().astype(int)
    return Items(source.tolist(), target.tolist())


def items(batches: list[Batch]) -> list[int]:
    """All items in order, without empty rows."""
    return [item for batch in batches for item in batch.items.tolist() if item >= 0]


PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=120)
SINGLES = st.lists(st.tuples(st.integers(1, 60)), min_size=1, max_size=120)
BUDGETS = st.integers(64, 400)  # the longest item fits, rounded up to a multiple of 8
BUCKETS = st.integers(1, 9)
MULTIPLES = st.sampled_from([1, 2, 8])


@given(PAIRS | SINGLES, BUDGETS, BUCKETS, MULTIPLES)
def test_every_item_occurs_once_per_epoch_in_few_shapes_within_the_budget(
    pairs: list[tuple[int, ...]], batch_tokens: int, buckets: int, multiple: int
) -> None:
    batches = TokenBatches(
        items_of_lengths(pairs), batch_tokens, length_buckets=buckets, pad_to_multiple=multiple
    )  # fmt: skip
    shapes = set()
    for _ in range(2):
        taken = list(batches.epoch())
        assert sorted(items(taken)) == list(range(len(pairs)))
        assert all(batch.items[0] >= 0 for batch in taken)
        assert max(side.numel() for batch in taken for side in batch.sides) <= batch_tokens
        shapes |= {batch.shape for batch in taken}
    assert shapes == set(batches.shapes)
    assert len(batches.shapes) <= buckets
    assert all(length % multiple == 0 for shape in shapes for length in shape.lengths)


@given(PAIRS, BUDGETS, BUCKETS)
def test_stats_match_the_batches(pairs: list[tuple[int, ...]], batch_tokens: int, buckets: int) -> None:
    batches = TokenBatches(items_of_lengths(pairs), batch_tokens, length_buckets=buckets)
    taken = list(batches.epoch())
    shape_counts = Counter(batch.shape for batch in taken)
    assert batches.stats == BatchStats(
        items=len(pairs),
        dropped=0,
        max_length=batch_tokens,
        batches=len(taken),
        shapes=len(shape_counts),
        tokens=sum(sum(batch.tokens) for batch in taken),
        padded_tokens=sum(side.numel() for batch in taken for side in batch.sides),
        fixed_batches=sum(count == 1 for count in shape_counts.values()),
    )


@given(PAIRS, BUDGETS, st.integers(1, 5))
def test_shards_partition_the_items(pairs: list[tuple[int, ...]], batch_tokens: int, world_size: int) -> None:
    batches = TokenBatches(items_of_lengths(pairs), batch_tokens)
    shards = [list(batches.shard(rank, world_size).epoch()) for rank in range(world_size)]
    assert len({len(shard) for shard in shards}) == 1
    assert items([batch for step in zip(*shards, strict=True) for batch in step]) == items(list(batches.epoch()))


def test_incomplete_last_step_has_empty_rows_of_a_known_shape() -> None:
    last = list(TokenBatches(items_of_lengths([(4, 4)] * 9), 12).shard(1, 2).epoch())[-1]
    assert last.shape == BatchShape(3, (4, 4))
    assert last.items.tolist() == [-1, -1, -1]
    assert last.tokens == (0, 0)


def test_each_epoch_has_different_batches() -> None:
    batches = TokenBatches(caption_lengths(5000), 512)
    first, second = ({tuple(sorted(batch.items.tolist())) for batch in batches.epoch()} for _ in range(2))
    assert len(first & second) < len(first) / 4


def test_order_of_a_seed_never_changes() -> None:
    # A run saved by an earlier version must resume with the same batches.
    lengths = [(length, length) for length in (3, 5, 5, 4, 9, 8, 3, 9)]
    batches = TokenBatches(items_of_lengths(lengths), 20, seed=7, length_buckets=3)
    assert [batch.items.tolist() for batch in itertools.islice(batches.epochs(), 8)] == [
        [6, 0],
        [4, 7],
        [3, 2],
        [1, 5],
        [4, 7],
        [2, 1],
        [6, 0],
        [5, 3],
    ]


@pytest.mark.parametrize("batch_tokens", [4096, 8192])
def test_padding_of_realistic_lengths_is_below_six_percent(batch_tokens: int) -> None:
    stats = TokenBatches(caption_lengths(), batch_tokens).stats
    assert stats.shapes <= 32
    assert stats.padding < 0.06


def test_batches_of_realistic_lengths_are_nearly_full() -> None:
    stats = TokenBatches(caption_lengths(), 4096).stats
    assert stats.padded_tokens / 2 / stats.batches > 0.8 * 4096


def test_bucket_is_filled_evenly() -> None:
    batches = TokenBatches(items_of_lengths([(4, 4)] * 41), 80)
    assert sorted(int((batch.items >= 0).sum()) for batch in batches.epoch()) == [13, 14, 14]


def test_few_long_items_add_no_padding_to_the_rest() -> None:
    assert TokenBatches(items_of_lengths([(5, 5)] * 1000 + [(200, 200)] * 3), 1000).stats.padding == 0


def test_too_long_items_are_dropped_and_counted() -> None:
    batches = TokenBatches(items_of_lengths([(5, 5), (5, 11), (11, 5), (10, 10)]), 100, max_length=10)
    assert sorted(items(list(batches.epoch()))) == [0, 3]
    assert batches.stats.dropped == 2
    assert "dropped 2 longer than 10 tokens" in str(batches.stats)


@pytest.mark.parametrize(("multiple", "kept"), [(1, [0, 1, 2]), (8, [0, 1])])
def test_item_longer_than_the_budget_is_dropped(multiple: int, kept: list[int]) -> None:
    batches = TokenBatches(items_of_lengths([(5,), (16,), (20,), (21,)]), 20, pad_to_multiple=multiple)
    assert sorted(items(list(batches.epoch()))) == kept


@pytest.mark.parametrize("pairs", [[(200, 3)], []])
def test_no_items_that_fit_are_an_error(pairs: list[tuple[int, ...]]) -> None:
    with pytest.raises(UserError, match="nothing to batch"):
        TokenBatches(items_of_lengths(pairs) if pairs else Items([], []), 100)


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_tokens": 0},
        {"length_buckets": 0},
        {"pad_to_multiple": 0},
        {"pad_to_multiple": 11},
        {"max_length": 0},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="Batches need at least 1"):
        TokenBatches(items_of_lengths([(3, 3)]), **({"batch_tokens": 10} | wrong))  # type: ignore[arg-type]


def test_wrong_number_of_padding_ids_is_refused() -> None:
    with pytest.raises(UserError, match="3 padding ids were given for 2 sides"):
        TokenBatches(items_of_lengths([(3, 3)]), 10, pad_id=[0, 0, 0])


@pytest.mark.parametrize(("lengths", "batch_tokens"), [([(3, 3)] * 9, 24), ([(3, 3)] * 8, 12)])
def test_state_of_other_data_or_budget_is_refused(lengths: list[tuple[int, ...]], batch_tokens: int) -> None:
    state = TokenBatches(items_of_lengths([(3, 3)] * 9), 12).state_dict()
    with pytest.raises(UserError, match="has changed since this position was saved"):
        TokenBatches(items_of_lengths(lengths), batch_tokens).load_state_dict(state)


# Tensors


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    pairs = [([1, 2, 3], [4, 5]), ([6], [7]), ([8, 9], [10, 11, 12])]
    return write_store(tmp_path / "store", pairs, ("source", "target"), "key", 100)


def test_tensors_hold_the_items_and_their_padding(store: TokenStore) -> None:
    (batch,) = TokenBatches(store, 100, pad_id=[50, 60], length_buckets=1).epoch()
    for row, item in enumerate(batch.items.tolist()):
        for side, ids in enumerate(store[item]):
            length = int(batch.lengths[side][row])
            assert batch.sides[side][row, :length].tolist() == ids.tolist()
            assert set(batch.sides[side][row, length:].tolist()) <= {[50, 60][side]}


def test_batch_has_source_and_target(store: TokenStore) -> None:
    (batch,) = TokenBatches(store, 100, length_buckets=1).epoch()
    assert (batch.source is batch.sides[0], batch.target is batch.sides[1]) == (True, True)
    assert (batch.source_lengths.sum(), batch.target_lengths.sum()) == (6, 6) == batch.tokens


def test_tensors_are_writable_int64(store: TokenStore) -> None:
    (batch,) = TokenBatches(store, 100, length_buckets=1).epoch()
    for tensor in (*batch.sides, *batch.lengths, batch.items):
        assert tensor.dtype == torch.int64
        tensor += 1


def test_batch_moves_to_a_device(store: TokenStore) -> None:
    (batch,) = TokenBatches(store, 100, length_buckets=1).epoch()
    moved = batch.to("meta")
    assert {tensor.device.type for tensor in (*moved.sides, *moved.lengths, moved.items)} == {"meta"}
    assert (moved.tokens, moved.shape) == (batch.tokens, batch.shape)


def test_count_is_the_number_of_target_tokens() -> None:
    (batch,) = TokenBatches(items_of_lengths([(3, 5), (4, 1)]), 100, length_buckets=1).epoch()
    assert batch.count == 6


def batch_with_empty_rows() -> Batch:
    """Seven rows, the last two of them empty."""
    lengths = [(3, 5), (1, 4), (5, 2), (2, 2), (4, 1)]
    (batch,) = TokenBatches(items_of_lengths(lengths), 35, length_buckets=1, pad_id=99).epoch()
    empty = -torch.ones(2, dtype=torch.int64)
    return Batch(
        sides=tuple(torch.cat((side, side.new_full((2, side.shape[1]), 99))) for side in batch.sides),
        lengths=tuple(torch.cat((lengths, 0 * empty)) for lengths in batch.lengths),
        items=torch.cat((batch.items, empty)),
        tokens=batch.tokens,
        epoch=batch.epoch,
        index=batch.index,
    )


@pytest.mark.parametrize(("parts", "rows"), [(1, [7]), (2, [4, 3]), (3, [3, 3, 1]), (4, [2, 2, 2, 1]), (9, [1] * 7)])
def test_batch_is_split_into_microbatches_of_nearly_equal_size(parts: int, rows: list[int]) -> None:
    split = batch_with_empty_rows().split(parts)
    assert [len(part.items) for part in split] == rows
    for part in split:
        assert part.tokens == tuple(int(lengths.sum()) for lengths in part.lengths)
        assert part.count == int(part.target_lengths.sum())
