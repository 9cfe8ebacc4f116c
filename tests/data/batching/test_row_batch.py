"""Row batches: keeping only the scored positions loses no target."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batching.row_batch import RowBatch, ScoredPositionsBatch, count_targets


def rows(count: int, length: int, probability: float, seed: int) -> RowBatch:
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(50, (count, length), generator=rng)
    lengths = torch.randint(length + 1, (count,), generator=rng)
    targets = torch.where(torch.rand((count, length), generator=rng) < probability, tokens, -1)
    return RowBatch(tokens, targets, lengths, torch.zeros_like(tokens), count_targets(targets, lengths), 3, 4)


@given(st.integers(1, 5), st.integers(1, 40), st.sampled_from([0.0, 0.15, 1.0]), st.integers(0, 9))
def test_scattered_targets_equal_the_original(count: int, length: int, probability: float, seed: int) -> None:
    batch = rows(count, length, probability, seed)
    scored = ScoredPositionsBatch.from_rows(batch)
    scattered = torch.full_like(batch.targets, -1).scatter(1, scored.scored_positions, scored.targets)
    real = torch.arange(length) < batch.lengths[:, None]
    assert torch.equal(scattered, torch.where(real, batch.targets, -1))
    assert scored.count == batch.count == int((scored.targets >= 0).sum())
    assert (scored.epoch, scored.index) == (3, 4)


def test_min_scored_limits_the_number_of_shapes() -> None:
    batches = [ScoredPositionsBatch.from_rows(rows(4, 64, 0.1, seed), min_scored=24) for seed in range(20)]
    assert len({batch.shape for batch in batches}) == 1
    assert ScoredPositionsBatch.from_rows(rows(4, 64, 1.0, 1), min_scored=24).targets.shape[1] > 24


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_split_keeps_scored_positions(parts: int) -> None:
    batch = ScoredPositionsBatch.from_rows(rows(5, 20, 0.3, 1))
    split = batch.split(parts)
    assert all(isinstance(part, ScoredPositionsBatch) for part in split)
    assert torch.equal(torch.cat([part.scored_positions for part in split]), batch.scored_positions)
    assert sum(part.count for part in split) == batch.count


def test_copy_from_copies_scored_positions() -> None:
    one, other = (ScoredPositionsBatch.from_rows(rows(3, 20, 0.3, seed), 8) for seed in (1, 2))
    assert one.shape == other.shape
    one.copy_from(other.to("cpu"))
    assert torch.equal(one.scored_positions, other.scored_positions)
    assert torch.equal(one.targets, other.targets)
