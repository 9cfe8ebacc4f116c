"""Weights of items: exact counts in every epoch, and another part of the items each time. (Resuming: test_epochs.)"""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batching.item_weights import ItemGroup
from regard.data.batching.token_batches import TokenBatches
from tests.data.batching.support import Items


def batches_of(groups: list[ItemGroup], *, batch_tokens: int = 400, seed: int = 1) -> TokenBatches:
    """Items of lengths from 1 to 20 tokens."""
    count = sum(group.items for group in groups)
    lengths = (np.arange(count) * 7 % 20 + 1).tolist()
    return TokenBatches(Items(lengths, lengths[::-1]), batch_tokens, seed=seed, length_buckets=6, groups=groups)


def epoch_items(batches: TokenBatches) -> list[int]:
    return [item for batch in batches.epoch() for item in batch.items.tolist() if item >= 0]


MIXTURE = [ItemGroup(1000, 0.3), ItemGroup(200, 2.5), ItemGroup(50, 4.0), ItemGroup(0, 2.0), ItemGroup(10, 1.0)]


def test_every_epoch_has_each_item_as_often_as_its_weight_says() -> None:
    batches = batches_of(MIXTURE)
    for _ in range(3):
        counts = Counter(epoch_items(batches))
        assert Counter(counts[item] for item in range(1000)) == {0: 700, 1: 300}
        assert Counter(counts[item] for item in range(1000, 1200)) == {2: 100, 3: 100}
        assert {counts[item] for item in range(1200, 1250)} == {4}
        assert {counts[item] for item in range(1250, 1260)} == {1}


def test_every_item_of_a_fraction_is_equally_likely_in_the_long_run() -> None:
    batches = batches_of([ItemGroup(100, 0.25), ItemGroup(1, 1.0)])
    counts = Counter(item for _ in range(400) for item in epoch_items(batches))
    drawn = np.array([counts[item] for item in range(100)])
    assert drawn.sum() == 400 * 25
    # 400 draws with probability 1/4: mean 100, standard deviation 8.7
    assert drawn.min() > 60
    assert drawn.max() < 140


@given(size=st.integers(1, 30), weight=st.floats(0.01, 5), batch_tokens=st.integers(20, 200))
def test_any_weight_gives_the_rounded_count_and_at_least_one(size: int, weight: float, batch_tokens: int) -> None:
    batches = batches_of([ItemGroup(size, weight), ItemGroup(7, 2.0)], batch_tokens=batch_tokens)
    for _ in range(3):
        taken = list(batches.epoch())
        assert all(batch.count for batch in taken)
        assert max(side.numel() for batch in taken for side in batch.sides) <= batch_tokens
        found = [item for batch in taken for item in batch.items.tolist() if item >= 0]
        assert len(found) == max(1, round(weight * size)) + 14 == batches.stats.items


def test_all_weights_one_give_the_batches_of_no_weights() -> None:
    plain, weighted = batches_of([ItemGroup(60, 1.0)]), batches_of([ItemGroup(40, 1.0), ItemGroup(20, 1.0)])
    assert plain.fingerprint == weighted.fingerprint
    assert epoch_items(plain) == epoch_items(weighted)


def test_stats_count_the_first_epoch() -> None:
    batches = batches_of(MIXTURE)
    taken = list(batches.epoch())
    assert batches.stats.items == 300 + 500 + 200 + 10
    assert batches.stats.batches == len(taken)
    assert batches.stats.tokens == sum(sum(batch.tokens) for batch in taken)
    assert batches.stats.padded_tokens == sum(side.numel() for batch in taken for side in batch.sides)


def test_other_weights_are_other_batches() -> None:
    one, other = (batches_of([ItemGroup(40, 1.0), ItemGroup(20, weight)]) for weight in (2.0, 3.0))
    assert one.fingerprint != other.fingerprint


def test_items_that_are_too_long_do_not_count() -> None:
    items = Items([5] * 10 + [50] * 10)
    batches = TokenBatches(items, 100, max_length=20, groups=[ItemGroup(20, 0.5)])
    assert len(epoch_items(batches)) == 5
    assert max(epoch_items(batches)) < 10


def test_draws_of_a_seed_never_change() -> None:
    batches = TokenBatches(Items([3] * 12), 100, seed=7, groups=[ItemGroup(8, 0.5), ItemGroup(4, 1.5)])
    assert [sorted(epoch_items(batches)) for _ in range(2)] == [
        [4, 5, 6, 7, 8, 8, 9, 9, 10, 11],
        [1, 3, 4, 5, 8, 8, 9, 10, 10, 11],
    ]
