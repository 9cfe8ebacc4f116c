"""Batches of pictures: every picture once an epoch, one shape, an order that can be taken up anywhere."""

import itertools
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import UserError
from regard.data.picture_batches import PictureBatch, PictureBatches
from regard.data.pictures import Pictures
from regard.train.deal import deal
from regard.train.task import Batches
from regard.train.world import World


def pictures(count: int, *, mapped: bool = False) -> Pictures:
    """Picture n has the pixels n, n + 1 … and the label n modulo 3."""
    numbers = torch.arange(count)
    pixels = (numbers[:, None] + torch.arange(6)).to(torch.uint8).view(count, 1, 2, 3)
    return Pictures(pixels, numbers % 3, ("a", "b", "c"), mapped)


def items(batches: list[PictureBatch]) -> list[int]:
    return [item for batch in batches for item in batch.items.tolist() if item >= 0]


def places(batches: list[PictureBatch]) -> list[tuple[int, int, list[int]]]:
    return [(batch.epoch, batch.number, batch.items.tolist()) for batch in batches]


COUNTS, ROWS, AHEAD, RANKS = st.integers(1, 60), st.integers(1, 20), st.integers(0, 3), st.integers(1, 4)


@given(COUNTS, ROWS, AHEAD)
def test_every_picture_comes_exactly_once_an_epoch_in_one_shape(count: int, rows: int, ahead: int) -> None:
    batches = PictureBatches(pictures(count), rows, ahead=ahead)
    for _ in range(2):
        taken = list(batches.epoch())
        assert sorted(items(taken)) == list(range(count))
        assert {batch.shape for batch in taken} == {(rows, 1, 2, 3)}
        assert len(taken) == len(batches) == -(-count // rows)


@given(COUNTS, ROWS)
def test_rows_hold_the_pictures_they_name_and_empty_ones_stand_last(count: int, rows: int) -> None:
    whole = pictures(count)
    for batch in PictureBatches(whole, rows).epoch():
        chosen = batch.items[: batch.count]
        assert (chosen >= 0).all()
        assert torch.equal(batch.pixels[: batch.count], whole.pixels[chosen])
        assert torch.equal(batch.labels[: batch.count], whole.labels[chosen])
        assert (batch.items[batch.count :] == -1).all()
        assert (batch.labels[batch.count :] == -1).all()
        assert not batch.pixels[batch.count :].any()


@given(COUNTS, ROWS)
def test_batches_are_filled_evenly(count: int, rows: int) -> None:
    counts = [batch.count for batch in PictureBatches(pictures(count), rows).epoch()]
    assert max(counts) - min(counts) <= 1
    assert min(counts) >= 1


@given(COUNTS, ROWS, AHEAD, st.data())
def test_a_run_stopped_after_any_batch_goes_on_with_the_next(
    count: int, rows: int, ahead: int, data: st.DataObject
) -> None:
    whole = PictureBatches(pictures(count), rows, ahead=ahead)
    total = 2 * len(whole) + 1
    taken = data.draw(st.integers(0, total - 1))
    stopped = PictureBatches(pictures(count), rows, ahead=ahead)
    list(itertools.islice(stopped.epochs(), taken))
    resumed = PictureBatches(pictures(count), rows)
    resumed.restore(json.loads(json.dumps(stopped.state())))
    rest = list(itertools.islice(whole.epochs(), total))[taken:]
    assert places(list(itertools.islice(resumed.epochs(), total - taken))) == places(rest)


@given(COUNTS, ROWS, st.lists(st.booleans(), max_size=30))
def test_reading_ahead_changes_nothing_whatever_is_skipped(count: int, rows: int, skips: list[bool]) -> None:
    plain, eager = (PictureBatches(pictures(count), rows, ahead=ahead) for ahead in (0, 2))
    streams = [batches.epochs() for batches in (plain, eager)]
    for skip in skips:
        if skip:
            plain.skip()
            eager.skip()
        else:
            one, other = (next(stream) for stream in streams)
            assert places([one]) == places([other])
            assert torch.equal(one.pixels, other.pixels)
        assert plain.state() == eager.state()


@given(COUNTS, ROWS, RANKS, AHEAD)
def test_ranks_take_the_batches_one_rank_would_take_in_turn(count: int, rows: int, ranks: int, ahead: int) -> None:
    batches = PictureBatches(pictures(count), rows, ahead=ahead)
    shares = [batches.share(rank, ranks) for rank in range(ranks)]
    steps = list(zip(*(share.epoch() for share in shares), strict=True))
    dealt = [batch for step in steps for batch in step]
    assert items(dealt) == items(list(batches.epoch()))
    assert {batch.shape for batch in dealt} == {(rows, 1, 2, 3)}
    assert len(steps) == len(shares[0])


@given(COUNTS, ROWS, RANKS)
def test_the_state_after_a_batch_is_that_of_a_run_that_took_no_more(count: int, rows: int, ranks: int) -> None:
    batches = PictureBatches(pictures(count), rows, ahead=1).share(ranks - 1, ranks)
    for batch in itertools.islice(batches.epochs(), 2 * len(batches)):
        assert batches.state_after(batch) == batches.state()


def test_the_loop_deals_them_out_as_it_does_others() -> None:
    world = type("Two", (World,), {"rank": 1, "size": 2})()
    batches: Batches[PictureBatch] = PictureBatches(pictures(12), 2, ahead=2)
    stream = batches.epochs()
    mine = [one.batch.number for _ in range(3) for one in deal(batches, stream, 2, world)]
    assert mine == [1, 3, 5]


@given(COUNTS, ROWS, AHEAD)
def test_all_pictures_in_order_move_no_place(count: int, rows: int, ahead: int) -> None:
    batches = PictureBatches(pictures(count), rows, ahead=ahead)
    before = batches.state()
    assert items(list(batches.once())) == list(range(count))
    assert batches.state() == before


def test_an_epoch_has_an_order_of_its_own_and_so_has_a_seed() -> None:
    batches = PictureBatches(pictures(50), 8)
    first, second = (items(list(batches.epoch())) for _ in range(2))
    other = items(list(PictureBatches(pictures(50), 8, seed=1).epoch()))
    assert len({tuple(order) for order in (first, second, other)}) == 3


def test_the_order_is_the_one_it_has_always_been() -> None:
    # A run saved by an earlier version must go on with the same batches: this list never changes.
    batches = PictureBatches(pictures(7), 3, seed=7)
    assert [batch.items.tolist() for batch in itertools.islice(batches.epochs(), 6)] == [
        [4, 1, -1],
        [6, 3, -1],
        [2, 5, 0],
        [3, 1, -1],
        [6, 2, -1],
        [5, 4, 0],
    ]


def test_the_next_batches_are_made_while_one_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    third = threading.Event()
    plain = Pictures.copy

    def copy(self: Pictures, rows: Any, target: torch.Tensor) -> None:
        plain(self, rows, target)
        made.append(threading.get_ident())
        if len(made) == 3:
            third.set()

    monkeypatch.setattr(Pictures, "copy", copy)
    batches = PictureBatches(pictures(40, mapped=True), 4)
    next(batches.epochs())
    assert third.wait(10)  # two more than were asked for
    assert threading.get_ident() not in made


def test_pictures_in_memory_are_not_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(Pictures, "copy", lambda self, rows, target: made.append(threading.get_ident()))
    next(PictureBatches(pictures(40), 4).epochs())
    assert made == [threading.get_ident()]


def test_what_goes_wrong_in_reading_ahead_is_raised_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(self: Pictures, rows: Any, target: torch.Tensor) -> None:
        raise UserError("The disk is gone.")

    monkeypatch.setattr(Pictures, "copy", copy)
    with pytest.raises(UserError, match="disk is gone"):
        next(PictureBatches(pictures(40, mapped=True), 4).epochs())


CHANGES: list[Callable[[], PictureBatches]] = [
    lambda: PictureBatches(pictures(9), 4, seed=1),
    lambda: PictureBatches(pictures(9), 3),
    lambda: PictureBatches(pictures(8), 4),
]


@pytest.mark.parametrize("changed", CHANGES)
def test_a_state_of_other_data_or_settings_is_refused(changed: Callable[[], PictureBatches]) -> None:
    state = PictureBatches(pictures(9), 4).state()
    with pytest.raises(UserError, match="have changed since this position was saved"):
        changed().restore(state)


@pytest.mark.parametrize("wrong", [{"epoch": -1}, {"position": 3}, {"position": "1"}])
def test_a_damaged_state_is_refused(wrong: dict[str, Any]) -> None:
    batches = PictureBatches(pictures(9), 3)
    with pytest.raises(UserError, match="the saved state is damaged"):
        batches.restore(batches.state() | wrong)


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"ahead": -1}])
def test_settings_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="Batches need at least one row"):
        PictureBatches(pictures(9), **({"rows": 4} | wrong))


def test_the_report_says_what_a_person_wants_to_know() -> None:
    batches = PictureBatches(pictures(10), 4)
    assert batches.fewest_rows == 4
    assert str(batches.report) == (
        "10 pictures of 2 × 3 in 3 classes of 3 to 4, in 3 batches of 4 rows, 16.7 % of them empty."
    )


def uneven() -> PictureBatch:
    """Seven rows, the last two of them empty."""
    (batch,) = PictureBatches(pictures(5), 7).epoch()
    return batch


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7, 100])
def test_the_parts_of_a_batch_are_together_the_whole(parts: int) -> None:
    whole, split = uneven(), uneven().split(parts)
    for name in ("pixels", "labels", "items"):
        assert torch.equal(torch.cat([getattr(part, name) for part in split]), getattr(whole, name))
    assert [part.count for part in split] == [int((part.labels >= 0).sum()) for part in split]
    assert sum(part.count for part in split) == whole.count == 5


def test_a_batch_moves_as_a_whole() -> None:
    moved = uneven().to("meta")
    assert {moved.pixels.device.type, moved.labels.device.type, moved.items.device.type} == {"meta"}
    assert (moved.count, moved.shape) == (5, (7, 1, 2, 3))


def test_a_batch_takes_over_the_contents_of_another_in_place() -> None:
    one, other = itertools.islice(PictureBatches(pictures(10), 5).epochs(), 2)
    held = one.pixels
    one.copy_from(other)
    assert torch.equal(held, other.pixels)
    assert torch.equal(one.labels, other.labels)
    held.zero_()
    assert other.pixels.any()
