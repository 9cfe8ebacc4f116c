"""Only what is asked for is kept of a batch, and nothing of it is lost."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from regard.data.asked import AskedBatch
from regard.data.rows import RowBatch, asked


def rows(count: int, length: int, share: float, seed: int) -> RowBatch:
    dice = torch.Generator().manual_seed(seed)
    words = torch.randint(50, (count, length), generator=dice)
    lengths = torch.randint(length + 1, (count,), generator=dice)
    wanted = torch.where(torch.rand((count, length), generator=dice) < share, words, -1)
    documents = torch.zeros_like(words)
    return RowBatch(words, wanted, lengths, documents, asked(wanted, lengths), 3, 4)


@given(some.integers(1, 5), some.integers(1, 40), some.sampled_from([0.0, 0.15, 1.0]), some.integers(0, 9))
def test_every_answer_stands_at_the_place_it_belongs_to(count: int, length: int, share: float, seed: int) -> None:
    batch = rows(count, length, share, seed)
    found = AskedBatch.of(batch)
    again = torch.full_like(batch.wanted, -1).scatter(1, found.places, found.wanted)
    real = torch.arange(length) < batch.lengths[:, None]
    assert torch.equal(again, torch.where(real, batch.wanted, -1))
    assert found.count == batch.count == int((found.wanted >= 0).sum())
    assert (found.epoch, found.number) == (3, 4)


def test_there_is_room_for_as_many_as_are_usual_so_that_shapes_are_few() -> None:
    shapes = {AskedBatch.of(rows(4, 64, 0.1, seed), fewest=24).shape for seed in range(20)}
    assert len(shapes) == 1
    assert AskedBatch.of(rows(4, 64, 1.0, 1), fewest=24).wanted.shape[1] > 24


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_parts_of_a_batch_are_its_rows(parts: int) -> None:
    whole = AskedBatch.of(rows(5, 20, 0.3, 1))
    split = whole.split(parts)
    assert all(isinstance(part, AskedBatch) for part in split)
    assert torch.equal(torch.cat([part.places for part in split]), whole.places)
    assert sum(part.count for part in split) == whole.count


def test_a_batch_takes_over_the_contents_of_another() -> None:
    one, other = AskedBatch.of(rows(3, 20, 0.3, 1), 8), AskedBatch.of(rows(3, 20, 0.3, 2), 8)
    assert one.shape == other.shape
    one.copy_from(other.to("cpu"))
    assert torch.equal(one.places, other.places)
    assert torch.equal(one.wanted, other.wanted)
