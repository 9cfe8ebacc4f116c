"""Batches by tokens: every item once, within the budget, in few shapes, in an order that can be taken up anywhere."""

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
from numpy.typing import NDArray

from regard import UserError
from regard.data.batch import Batch, Report, Shape, TokenBatches
from regard.data.store import TokenStore, write


class Made:
    """Items of given lengths; the ids of item n are n + 1, n + 2 …"""

    def __init__(self, *lengths: list[int]) -> None:
        self.sides = tuple(f"side_{number}" for number in range(len(lengths)))
        self._lengths = {side: np.array(given, dtype=np.int64) for side, given in zip(self.sides, lengths, strict=True)}

    def lengths(self, side: str) -> NDArray[np.int64]:
        return self._lengths[side]

    def padded(
        self, side: str, items: NDArray[np.int64], rows: int, length: int, padding: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ids, real = np.full((rows, length), padding), np.zeros(rows, dtype=np.int64)
        for row, item in enumerate(items.tolist()):
            real[row] = self._lengths[side][item]
            ids[row, : real[row]] = item + 1 + np.arange(real[row])
        return ids, real


def made(pairs: list[tuple[int, ...]]) -> Made:
    return Made(*(list(side) for side in zip(*pairs, strict=True)))


def realistic(items: int = 20_000) -> Made:
    """Lengths like those of captions and their translations: log-normal, the sides close to each other."""
    numbers = np.random.Generator(np.random.PCG64(1))
    source = np.clip(np.exp(numbers.normal(2.6, 0.33, items)), 3, 60).astype(int)
    target = np.clip(source * np.exp(numbers.normal(0, 0.17, items)), 3, 60).round().astype(int)
    return Made(source.tolist(), target.tolist())


def items(batches: list[Batch]) -> list[int]:
    """All real items, in the order they came."""
    return [item for batch in batches for item in batch.items.tolist() if item >= 0]


def same(ones: list[Batch], others: list[Batch]) -> bool:
    return [(one.epoch, one.number, one.items.tolist()) for one in ones] == [
        (other.epoch, other.number, other.items.tolist()) for other in others
    ]


PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=120)
SINGLES = st.lists(st.tuples(st.integers(1, 60)), min_size=1, max_size=120)
BUDGETS = st.integers(64, 400)  # the longest item fits, rounded up to a multiple of 8
SHAPES = st.integers(1, 9)
MULTIPLES = st.sampled_from([1, 2, 8])


@given(PAIRS | SINGLES, BUDGETS, SHAPES, MULTIPLES)
def test_every_item_comes_exactly_once_an_epoch(
    pairs: list[tuple[int, ...]], tokens: int, shapes: int, multiple: int
) -> None:
    batches = TokenBatches(made(pairs), tokens, shapes=shapes, multiple=multiple)
    for _ in range(2):
        assert sorted(items(list(batches.epoch()))) == list(range(len(pairs)))


@given(PAIRS | SINGLES, BUDGETS, SHAPES, MULTIPLES)
def test_no_side_of_a_batch_is_above_the_budget(
    pairs: list[tuple[int, ...]], tokens: int, shapes: int, multiple: int
) -> None:
    for batch in TokenBatches(made(pairs), tokens, shapes=shapes, multiple=multiple).epoch():
        assert max(side.numel() for side in batch.sides) <= tokens


@given(PAIRS | SINGLES, BUDGETS, SHAPES, MULTIPLES)
def test_there_are_no_more_shapes_than_allowed(
    pairs: list[tuple[int, ...]], tokens: int, shapes: int, multiple: int
) -> None:
    batches = TokenBatches(made(pairs), tokens, shapes=shapes, multiple=multiple)
    found = {batch.shape for _ in range(2) for batch in batches.epoch()}
    assert found == set(batches.shapes)
    assert len(found) <= len(batches.shapes) <= shapes


@given(PAIRS, BUDGETS, MULTIPLES)
def test_padded_lengths_are_multiples(pairs: list[tuple[int, ...]], tokens: int, multiple: int) -> None:
    for shape in TokenBatches(made(pairs), tokens, multiple=multiple).shapes:
        assert all(length % multiple == 0 for length in shape.lengths)


@given(PAIRS, BUDGETS, SHAPES)
def test_no_batch_is_empty_on_one_rank(pairs: list[tuple[int, ...]], tokens: int, shapes: int) -> None:
    for batch in TokenBatches(made(pairs), tokens, shapes=shapes).epoch():
        assert batch.items[0] >= 0


@given(PAIRS, BUDGETS, SHAPES)
def test_the_report_counts_what_the_batches_hold(pairs: list[tuple[int, ...]], tokens: int, shapes: int) -> None:
    batches = TokenBatches(made(pairs), tokens, shapes=shapes)
    taken = list(batches.epoch())
    cells = sum(side.numel() for batch in taken for side in batch.sides)
    real = sum(sum(batch.tokens) for batch in taken)
    of_shape = Counter(batch.shape for batch in taken)
    alone = sum(count == 1 for count in of_shape.values())
    wanted = Report(len(pairs), 0, tokens, len(taken), len(of_shape), real, cells, alone)
    assert batches.report == wanted


@given(PAIRS, BUDGETS, st.integers(0, 2**64 - 1))
def test_seed_and_epoch_alone_decide_the_order(pairs: list[tuple[int, ...]], tokens: int, seed: int) -> None:
    one, other = (TokenBatches(made(pairs), tokens, seed=seed) for _ in range(2))
    np.random.seed(0)
    first = list(one.epoch())
    np.random.seed(1)
    assert same(first, list(other.epoch()))


@given(PAIRS, BUDGETS, SHAPES, st.data())
def test_a_run_stopped_after_any_batch_goes_on_with_the_next(
    pairs: list[tuple[int, ...]], tokens: int, shapes: int, data: st.DataObject
) -> None:
    whole = TokenBatches(made(pairs), tokens, shapes=shapes)
    count = 2 * len(whole) + 1
    taken = data.draw(st.integers(0, count - 1))
    stopped = TokenBatches(made(pairs), tokens, shapes=shapes)
    list(itertools.islice(stopped.epochs(), taken))
    resumed = TokenBatches(made(pairs), tokens, shapes=shapes)
    resumed.restore(json.loads(json.dumps(stopped.state())))
    rest = list(itertools.islice(whole.epochs(), count))[taken:]
    assert same(list(itertools.islice(resumed.epochs(), count - taken)), rest)


@given(PAIRS, BUDGETS, st.integers(1, 5))
def test_the_state_after_a_batch_is_that_of_a_run_that_took_no_more(
    pairs: list[tuple[int, ...]], tokens: int, ranks: int
) -> None:
    batches = TokenBatches(made(pairs), tokens).share(ranks - 1, ranks)
    for batch in itertools.islice(batches.epochs(), 2 * len(batches)):
        assert batches.state_after(batch) == batches.state()


@given(PAIRS, BUDGETS, st.integers(1, 5))
def test_ranks_share_the_items_without_overlap(pairs: list[tuple[int, ...]], tokens: int, ranks: int) -> None:
    batches = TokenBatches(made(pairs), tokens)
    shares = [items(list(batches.share(rank, ranks).epoch())) for rank in range(ranks)]
    assert sorted(itertools.chain(*shares)) == list(range(len(pairs)))


@given(PAIRS, BUDGETS, st.integers(1, 5))
def test_all_ranks_take_the_same_number_of_steps(pairs: list[tuple[int, ...]], tokens: int, ranks: int) -> None:
    shares = [TokenBatches(made(pairs), tokens).share(rank, ranks) for rank in range(ranks)]
    assert {len(list(share.epoch())) for share in shares} == {len(shares[0])}


@given(PAIRS, BUDGETS, st.integers(1, 5))
def test_a_step_of_many_ranks_takes_the_batches_one_rank_would_take_in_turn(
    pairs: list[tuple[int, ...]], tokens: int, ranks: int
) -> None:
    batches = TokenBatches(made(pairs), tokens)
    steps = zip(*(batches.share(rank, ranks).epoch() for rank in range(ranks)), strict=True)
    dealt = [batch for step in steps for batch in step]
    assert items(dealt) == items(list(batches.epoch()))


@given(PAIRS, BUDGETS, st.integers(1, 4), st.integers(1, 4), st.integers(0, 5))
def test_another_number_of_ranks_goes_on_where_the_first_stopped(
    pairs: list[tuple[int, ...]], tokens: int, before: int, after: int, steps: int
) -> None:
    batches = TokenBatches(made(pairs), tokens)
    first = [batches.share(rank, before) for rank in range(before)]
    steps = min(steps, len(first[0]) - 1)
    taken = [batch for share in first for batch in itertools.islice(share.epochs(), steps)]
    (state,) = {json.dumps(share.state()) for share in first}
    batches.restore(json.loads(state))
    rest = [batch for rank in range(after) for batch in batches.share(rank, after).epoch()]
    assert sorted(items(taken + rest)) == list(range(len(pairs)))


def test_an_uneven_end_gives_the_last_ranks_empty_rows_of_a_known_shape() -> None:
    batches = TokenBatches(made([(4, 4)] * 9), 12)
    assert len(list(batches.epoch())) == 3
    last = list(TokenBatches(made([(4, 4)] * 9), 12).share(1, 2).epoch())[-1]
    assert last.shape == Shape(3, (4, 4))
    assert last.items.tolist() == [-1, -1, -1]
    assert last.tokens == (0, 0)


def test_another_epoch_has_another_order_and_other_batches() -> None:
    batches = TokenBatches(realistic(5000), 512)
    first, second = ({tuple(sorted(batch.items.tolist())) for batch in batches.epoch()} for _ in range(2))
    assert len(first & second) < len(first) / 4


def test_another_seed_has_another_order() -> None:
    one, other = (items(list(TokenBatches(realistic(500), 1024, seed=seed).epoch())) for seed in (1, 2))
    assert one != other


def test_the_order_is_the_one_it_has_always_been() -> None:
    # A run saved by an earlier version must go on with the same batches: this list never changes.
    batches = TokenBatches(made([(length, length) for length in (3, 5, 5, 4, 9, 8, 3, 9)]), 20, seed=7, shapes=3)
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


@pytest.mark.parametrize("tokens", [4096, 8192])
def test_padding_of_realistic_lengths_is_at_most_six_per_cent_in_thirty_two_shapes(tokens: int) -> None:
    report = TokenBatches(realistic(), tokens).report
    assert report.shapes <= 32
    assert report.padding < 0.06


def test_batches_of_realistic_lengths_are_nearly_full() -> None:
    report = TokenBatches(realistic(), 4096).report
    assert report.cells / 2 / report.batches > 0.8 * 4096


def test_a_bucket_is_filled_evenly() -> None:
    batches = TokenBatches(made([(4, 4)] * 41), 80)
    assert sorted(int((batch.items >= 0).sum()) for batch in batches.epoch()) == [13, 14, 14]


def test_a_few_long_items_do_not_make_the_rest_pay() -> None:
    report = TokenBatches(made([(5, 5)] * 1000 + [(200, 200)] * 3), 1000).report
    assert report.padding == 0


def test_items_that_are_too_long_are_left_out_and_counted() -> None:
    batches = TokenBatches(made([(5, 5), (5, 11), (11, 5), (10, 10)]), 100, limit=10)
    assert sorted(items(list(batches.epoch()))) == [0, 3]
    assert batches.report.left_out == 2
    assert "; 2 longer than 10 tokens were left out." in str(batches.report)


@pytest.mark.parametrize(("multiple", "kept"), [(1, [0, 1, 2]), (8, [0, 1])])
def test_an_item_that_no_batch_can_hold_is_left_out(multiple: int, kept: list[int]) -> None:
    batches = TokenBatches(made([(5,), (16,), (20,), (21,)]), 20, multiple=multiple)
    assert sorted(items(list(batches.epoch()))) == kept


@pytest.mark.parametrize("pairs", [[(200, 3)], []])
def test_nothing_to_batch_is_a_sentence(pairs: list[tuple[int, ...]]) -> None:
    with pytest.raises(UserError, match="nothing to batch"):
        TokenBatches(made(pairs) if pairs else Made([], []), 100)


@pytest.mark.parametrize(
    "wrong",
    [{"tokens": 0}, {"shapes": 0}, {"multiple": 0}, {"multiple": 11}, {"limit": 0}, {"seed": -1}, {"seed": 1 << 64}],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="Batches need at least 1"):
        TokenBatches(made([(3, 3)]), **({"tokens": 10} | wrong))  # type: ignore[arg-type]


def test_paddings_that_do_not_match_the_sides_are_refused() -> None:
    with pytest.raises(UserError, match="3 padding ids were given for 2 sides"):
        TokenBatches(made([(3, 3)]), 10, padding=[0, 0, 0])


@pytest.mark.parametrize(("rank", "ranks"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_that_is_not_there_is_refused(rank: int, ranks: int) -> None:
    with pytest.raises(UserError, match=f"no rank {rank} of {ranks}"):
        TokenBatches(made([(3, 3)]), 10).share(rank, ranks)


CHANGES: list[Callable[[], TokenBatches]] = [
    lambda: TokenBatches(made([(3, 3)] * 9), 12, seed=1),
    lambda: TokenBatches(made([(3, 3)] * 9), 24),
    lambda: TokenBatches(made([(3, 3)] * 8), 12),
]


@pytest.mark.parametrize("changed", CHANGES)
def test_a_state_of_other_data_or_settings_is_refused(changed: Callable[[], TokenBatches]) -> None:
    state = TokenBatches(made([(3, 3)] * 9), 12).state()
    with pytest.raises(UserError, match="have changed since this position was saved"):
        changed().restore(state)


@pytest.mark.parametrize("wrong", [{"epoch": -1}, {"position": 3}, {"position": "1"}, {"epoch": None}])
def test_a_damaged_state_is_refused(wrong: dict[str, int]) -> None:
    batches = TokenBatches(made([(3, 3)] * 9), 12)
    with pytest.raises(UserError, match="the saved state is damaged"):
        batches.restore(batches.state() | wrong)


# Tensors


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    pairs = [([1, 2, 3], [4, 5]), ([6], [7]), ([8, 9], [10, 11, 12])]
    return write(tmp_path / "store", pairs, ("source", "target"), "key", 100)


def test_tensors_hold_the_items_of_a_store_and_the_given_padding(store: TokenStore) -> None:
    (batch,) = TokenBatches(store, 100, padding=[50, 60], shapes=1).epoch()
    for row, item in enumerate(batch.items.tolist()):
        for side, ids in enumerate(store[item]):
            length = int(batch.lengths[side][row])
            assert batch.sides[side][row, :length].tolist() == ids.tolist()
            assert set(batch.sides[side][row, length:].tolist()) <= {[50, 60][side]}


def test_a_batch_names_its_source_and_target(store: TokenStore) -> None:
    (batch,) = TokenBatches(store, 100, shapes=1).epoch()
    assert (batch.source is batch.sides[0], batch.target is batch.sides[1]) == (True, True)
    assert (batch.source_lengths.sum(), batch.target_lengths.sum()) == (6, 6) == batch.tokens


def test_tensors_are_whole_numbers_that_may_be_written_to(store: TokenStore) -> None:
    (batch,) = TokenBatches(store, 100, shapes=1).epoch()
    for tensor in (*batch.sides, *batch.lengths, batch.items):
        assert tensor.dtype == torch.int64
        tensor += 1


def test_a_batch_moves_as_a_whole(store: TokenStore) -> None:
    (batch,) = TokenBatches(store, 100, shapes=1).epoch()
    moved = batch.to("meta")
    assert {tensor.device.type for tensor in (*moved.sides, *moved.lengths, moved.items)} == {"meta"}
    assert (moved.tokens, moved.shape) == (batch.tokens, batch.shape)


def test_the_count_is_that_of_the_words_to_predict() -> None:
    (batch,) = TokenBatches(made([(3, 5), (4, 1)]), 100, shapes=1).epoch()
    assert batch.count == 6


def uneven() -> Batch:
    """Seven rows, the last two of them empty."""
    batches = TokenBatches(made([(3, 5), (1, 4), (5, 2), (2, 2), (4, 1)]), 35, shapes=1, padding=99)
    (batch,) = batches.epoch()
    empty = -torch.ones(2, dtype=torch.int64)
    return Batch(
        sides=tuple(torch.cat((side, side.new_full((2, side.shape[1]), 99))) for side in batch.sides),
        lengths=tuple(torch.cat((lengths, 0 * empty)) for lengths in batch.lengths),
        items=torch.cat((batch.items, empty)),
        tokens=batch.tokens,
        epoch=batch.epoch,
        number=batch.number,
    )


def tensors(batch: Batch) -> list[torch.Tensor]:
    return [*batch.sides, *batch.lengths, batch.items]


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7, 100])
def test_the_parts_of_a_batch_are_together_the_whole(parts: int) -> None:
    whole = uneven()
    split = [tensors(part) for part in whole.split(parts)]
    for number, tensor in enumerate(tensors(whole)):
        assert torch.equal(torch.cat([part[number] for part in split]), tensor)


@pytest.mark.parametrize(("parts", "rows"), [(1, [7]), (2, [4, 3]), (3, [3, 3, 1]), (4, [2, 2, 2, 1]), (9, [1] * 7)])
def test_a_batch_is_split_into_about_as_many_rows_each(parts: int, rows: list[int]) -> None:
    assert [len(part.items) for part in uneven().split(parts)] == rows


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_tokens_are_counted_for_each_part(parts: int) -> None:
    for part in uneven().split(parts):
        assert part.tokens == tuple(int(lengths.sum()) for lengths in part.lengths)
        assert part.count == int(part.target_lengths.sum())


def test_parts_of_a_batch_are_from_its_place_in_the_order() -> None:
    batch = list(TokenBatches(made([(4, 4)] * 9), 12).epoch())[2]
    assert [(part.epoch, part.number) for part in batch.split(3)] == [(0, 2)] * 3


def test_a_batch_takes_over_the_contents_of_another_in_place() -> None:
    batches = TokenBatches(made([(length, 9 - length) for length in range(1, 9)]), 32, shapes=1)
    one, other = itertools.islice(batches.epoch(), 2)
    held = [*one.sides, *one.lengths]
    one.copy_from(other)
    for mine, theirs in zip(held, (*other.sides, *other.lengths), strict=True):
        assert torch.equal(mine, theirs)


def test_a_batch_that_takes_over_another_leaves_that_as_it_was() -> None:
    batches = TokenBatches(made([(length, 9 - length) for length in range(1, 9)]), 32, shapes=1)
    one, other = itertools.islice(batches.epoch(), 2)
    before = other.source.clone()
    one.copy_from(other)
    one.source.zero_()
    assert torch.equal(other.source, before)
