"""Batches of images: every image once per epoch, in one shape; prefetching. (Resuming: test_epochs.)"""

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import UserError
from regard.data.images.batches import ImageBatch, ImageBatches
from regard.data.images.dataset import ImageDataset
from regard.train.distributed.process_group import ProcessGroup
from regard.train.step import shard_batches
from regard.train.task import Batches


def images(count: int, *, mapped: bool = False) -> ImageDataset:
    """Image n has the pixels n, n + 1 … and the label n modulo 3."""
    numbers = torch.arange(count)
    pixels = (numbers[:, None] + torch.arange(6)).to(torch.uint8).view(count, 1, 2, 3)
    return ImageDataset(pixels, numbers % 3, ("a", "b", "c"), mapped)


def items(batches: list[ImageBatch]) -> list[int]:
    return [item for batch in batches for item in batch.items.tolist() if item >= 0]


def order(batches: list[ImageBatch]) -> list[tuple[int, int, list[int]]]:
    return [(batch.epoch, batch.index, batch.items.tolist()) for batch in batches]


COUNTS, ROWS, PREFETCH, RANKS = st.integers(1, 60), st.integers(1, 20), st.integers(0, 3), st.integers(1, 4)


@given(COUNTS, ROWS, PREFETCH)
def test_every_image_occurs_once_per_epoch_in_one_shape(count: int, rows: int, prefetch: int) -> None:
    batches = ImageBatches(images(count), rows, prefetch=prefetch)
    for _ in range(2):
        taken = list(batches.epoch())
        assert sorted(items(taken)) == list(range(count))
        assert {batch.shape for batch in taken} == {(rows, 1, 2, 3)}
        assert len(taken) == len(batches) == -(-count // rows)


@given(COUNTS, ROWS)
def test_rows_hold_their_items_and_empty_rows_come_last(count: int, rows: int) -> None:
    dataset = images(count)
    for batch in ImageBatches(dataset, rows).epoch():
        chosen = batch.items[: batch.count]
        assert (chosen >= 0).all()
        assert torch.equal(batch.pixels[: batch.count], dataset.pixels[chosen])
        assert torch.equal(batch.labels[: batch.count], dataset.labels[chosen])
        assert (batch.items[batch.count :] == -1).all()
        assert (batch.labels[batch.count :] == -1).all()
        assert not batch.pixels[batch.count :].any()


@given(COUNTS, ROWS)
def test_batches_are_filled_evenly(count: int, rows: int) -> None:
    counts = [batch.count for batch in ImageBatches(images(count), rows).epoch()]
    assert max(counts) - min(counts) <= 1
    assert min(counts) >= 1


@given(COUNTS, ROWS, st.lists(st.booleans(), max_size=30))
def test_prefetched_equals_unprefetched_with_skips(count: int, rows: int, skips: list[bool]) -> None:
    plain, prefetched = (ImageBatches(images(count), rows, prefetch=prefetch) for prefetch in (0, 2))
    streams = [batches.epochs() for batches in (plain, prefetched)]
    for skip in skips:
        if skip:
            plain.skip()
            prefetched.skip()
        else:
            one, other = (next(stream) for stream in streams)
            assert order([one]) == order([other])
            assert torch.equal(one.pixels, other.pixels)
        assert plain.state_dict() == prefetched.state_dict()


@given(COUNTS, ROWS, RANKS, PREFETCH)
def test_interleaved_shards_equal_unsharded(count: int, rows: int, world_size: int, prefetch: int) -> None:
    batches = ImageBatches(images(count), rows, prefetch=prefetch)
    shards = [batches.shard(rank, world_size) for rank in range(world_size)]
    steps = list(zip(*(shard.epoch() for shard in shards), strict=True))
    interleaved = [batch for step in steps for batch in step]
    assert items(interleaved) == items(list(batches.epoch()))
    assert {batch.shape for batch in interleaved} == {(rows, 1, 2, 3)}
    assert len(steps) == len(shards[0])


def test_trainer_shards_the_batches() -> None:
    process_group = type("Two", (ProcessGroup,), {"rank": 1, "size": 2})()
    batches: Batches[ImageBatch] = ImageBatches(images(12), 2, prefetch=2)
    stream = batches.epochs()
    mine = [one.batch.index for _ in range(3) for one in shard_batches(batches, stream, 2, process_group)]
    assert mine == [1, 3, 5]


@given(COUNTS, ROWS, PREFETCH)
def test_in_order_does_not_change_the_position(count: int, rows: int, prefetch: int) -> None:
    batches = ImageBatches(images(count), rows, prefetch=prefetch)
    before = batches.state_dict()
    assert items(list(batches.in_order())) == list(range(count))
    assert batches.state_dict() == before


def test_order_of_a_seed_never_changes() -> None:
    # A run saved by an earlier version must resume with the same batches.
    batches = ImageBatches(images(7), 3, seed=7)
    assert [batch.items.tolist() for batch in itertools.islice(batches.epochs(), 6)] == [
        [4, 1, -1],
        [6, 3, -1],
        [2, 5, 0],
        [3, 1, -1],
        [6, 2, -1],
        [5, 4, 0],
    ]


def test_mapped_images_are_prefetched(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    third = threading.Event()
    original = ImageDataset.copy_pixels

    def copy_pixels(self: ImageDataset, rows: Any, target: torch.Tensor) -> None:
        original(self, rows, target)
        threads.append(threading.get_ident())
        if len(threads) == 3:
            third.set()

    monkeypatch.setattr(ImageDataset, "copy_pixels", copy_pixels)
    batches = ImageBatches(images(40, mapped=True), 4)
    next(batches.epochs())
    assert third.wait(10)  # two more batches than were requested
    assert threading.get_ident() not in threads


def test_images_in_memory_are_not_prefetched(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr(ImageDataset, "copy_pixels", lambda self, rows, target: threads.append(threading.get_ident()))
    next(ImageBatches(images(40), 4).epochs())
    assert threads == [threading.get_ident()]


def test_error_while_prefetching_is_raised_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def copy_pixels(self: ImageDataset, rows: Any, target: torch.Tensor) -> None:
        raise UserError("The disk is gone.")

    monkeypatch.setattr(ImageDataset, "copy_pixels", copy_pixels)
    with pytest.raises(UserError, match="disk is gone"):
        next(ImageBatches(images(40, mapped=True), 4).epochs())


CHANGES: list[Callable[[], ImageBatches]] = [
    lambda: ImageBatches(images(9), 3),
    lambda: ImageBatches(images(8), 4),
]


@pytest.mark.parametrize("changed", CHANGES)
def test_state_of_other_data_or_settings_is_refused(changed: Callable[[], ImageBatches]) -> None:
    state = ImageBatches(images(9), 4).state_dict()
    with pytest.raises(UserError, match="has changed since this position was saved"):
        changed().load_state_dict(state)


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"prefetch": -1}])
def test_settings_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="Batches need at least one row"):
        ImageBatches(images(9), **({"rows": 4} | wrong))


def test_stats_as_text() -> None:
    batches = ImageBatches(images(10), 4)
    assert batches.min_rows == 4
    assert str(batches.stats) == (
        "10 images of 2 × 3 in 3 classes of 3 to 4, in 3 batches of 4 rows, 16.7 % of them empty."
    )


def batch_with_empty_rows() -> ImageBatch:
    """Seven rows, the last two of them empty."""
    (batch,) = ImageBatches(images(5), 7).epoch()
    return batch


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7, 100])
def test_split_batch_has_the_same_rows(parts: int) -> None:
    batch, split = batch_with_empty_rows(), batch_with_empty_rows().split(parts)
    for name in ("pixels", "labels", "items"):
        assert torch.equal(torch.cat([getattr(part, name) for part in split]), getattr(batch, name))
    assert [part.count for part in split] == [int((part.labels >= 0).sum()) for part in split]
    assert sum(part.count for part in split) == batch.count == 5


def test_batch_moves_to_a_device() -> None:
    moved = batch_with_empty_rows().to("meta")
    assert {moved.pixels.device.type, moved.labels.device.type, moved.items.device.type} == {"meta"}
    assert (moved.count, moved.shape) == (5, (7, 1, 2, 3))
