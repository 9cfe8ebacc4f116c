"""Epochs of batches: resuming, skipping and sharding, for every class of batches."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import UserError
from regard.data.batching.epochs import EpochBatches, MappedBatches
from regard.data.batching.item_weights import ItemGroup
from regard.data.batching.masking import Masking, MaskingConfig
from regard.data.batching.packing import PackedDocuments
from regard.data.batching.token_batches import TokenBatches
from regard.data.batching.windows import ContiguousWindows, RandomWindows, TokenStream
from regard.data.images.batches import ImageBatches
from regard.data.images.dataset import ImageDataset
from regard.train.task import Batches
from tests.data.batching.support import items_of_lengths

OFFSETS = np.array([0, 9, 11, 40, 41, 70, 101])


def stream() -> TokenStream:
    return TokenStream(np.arange(101), OFFSETS)


def images() -> ImageDataset:
    labels = torch.arange(26) % 3
    return ImageDataset(torch.randint(256, (26, 1, 2, 3), dtype=torch.uint8), labels, ("a", "b", "c"))


def masked(seed: int, probability: float = 0.15) -> MappedBatches[Any, Any]:
    masking = Masking(MaskingConfig(probability=probability), mask_id=4, vocab_size=200)
    return MappedBatches(ContiguousWindows(stream(), 5, 3, seed=seed), masking, masking.key)


IMAGES = images()
LENGTHS = [(length % 9 + 1, length % 7 + 1) for length in range(60)]
KINDS: dict[str, Callable[[int], EpochBatches[Any]]] = {
    "contiguous": lambda seed: ContiguousWindows(stream(), 5, 3, seed=seed),
    "random": lambda seed: RandomWindows(stream(), 5, 3, seed=seed),
    "packed": lambda seed: PackedDocuments(stream(), 5, 3, seed=seed, bos_id=500),
    "tokens": lambda seed: TokenBatches(items_of_lengths(LENGTHS), 40, seed=seed, length_buckets=3),
    "weighted tokens": lambda seed: TokenBatches(
        items_of_lengths(LENGTHS), 40, seed=seed, length_buckets=3, groups=[ItemGroup(40, 0.3), ItemGroup(20, 2.5)]
    ),
    "images": lambda seed: ImageBatches(IMAGES, 4, seed=seed),
    "prefetched images": lambda seed: ImageBatches(IMAGES, 4, seed=seed, prefetch=2),
    "masked": masked,
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def make(kind: str, seed: int = 3) -> EpochBatches[Any]:
    return KINDS[kind](seed)


def tensors(batch: Any) -> list[torch.Tensor]:
    values = [value for value in vars(batch).values() if isinstance(value, torch.Tensor | tuple)]
    flat = [one for value in values for one in (value if isinstance(value, tuple) else (value,))]
    return [one for one in flat if isinstance(one, torch.Tensor)]


def same(one: Any, other: Any) -> bool:
    return (one.epoch, one.index, one.count) == (other.epoch, other.index, other.count) and all(
        map(torch.equal, tensors(one), tensors(other))
    )


@every_kind
def test_batches_satisfy_the_trainers_protocol(kind: str) -> None:
    batches: Batches[Any] = make(kind)
    assert batches.min_rows >= 1
    assert next(batches.epochs()).count > 0


@every_kind
@pytest.mark.parametrize("taken", [0, 1, 6, 7, 8, 20])
def test_resumed_equals_uninterrupted(kind: str, taken: int) -> None:
    uninterrupted = list(itertools.islice(make(kind).epochs(), 30))
    stopped = make(kind)
    list(itertools.islice(stopped.epochs(), taken))
    resumed = make(kind)
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert all(map(same, itertools.islice(resumed.epochs(), 30 - taken), uninterrupted[taken:]))


@every_kind
def test_skipping_only_drops_the_skipped_batches(kind: str) -> None:
    unskipped = list(itertools.islice(make(kind).epochs(), 30))
    batches = make(kind)
    stream = batches.epochs()
    for index in range(30):
        if index % 3:
            batches.skip()
        else:
            assert same(next(stream), unskipped[index])


@every_kind
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_interleaved_shards_equal_unsharded(kind: str, world_size: int) -> None:
    unsharded = list(make(kind).epoch())
    shards = [make(kind).shard(rank, world_size) for rank in range(world_size)]
    steps = list(zip(*(shard.epoch() for shard in shards), strict=True))
    interleaved = [batch for step in steps for batch in step]
    assert len(steps) == -(-len(unsharded) // world_size)
    assert all(map(same, interleaved[: len(unsharded)], unsharded))
    assert all(batch.count == 0 for batch in interleaved[len(unsharded) :])
    assert {shard.state_dict()["epoch"] for shard in shards} == {1}
    assert len(make(kind).shard(0, world_size)) == len(steps)


@every_kind
@given(before=st.integers(1, 4), after=st.integers(1, 4), steps=st.integers(0, 5))
def test_resuming_with_another_world_size(kind: str, before: int, after: int, steps: int) -> None:
    unsharded = list(make(kind).epoch())
    first = [make(kind).shard(rank, before) for rank in range(before)]
    steps = min(steps, len(first[0]) - 1)
    for shard in first:
        list(itertools.islice(shard.epochs(), steps))
    (state,) = {json.dumps(shard.state_dict()) for shard in first}
    batches = make(kind)
    batches.load_state_dict(json.loads(state))
    rest = [batch for rank in range(after) for batch in batches.shard(rank, after).epoch()]
    rest = sorted((batch for batch in rest if batch.count), key=lambda batch: batch.index)
    assert len(rest) == len(unsharded) - steps * before
    assert all(map(same, rest, unsharded[steps * before :]))


@every_kind
def test_state_dict_after_a_batch_equals_the_current_one(kind: str) -> None:
    batches = make(kind).shard(1, 2)
    for batch in itertools.islice(batches.epochs(), 20):
        assert batches.state_dict_after(batch) == batches.state_dict()


@every_kind
def test_global_random_state_is_not_used(kind: str) -> None:
    np.random.seed(0)
    first = list(make(kind).epoch())
    np.random.seed(1)
    assert all(map(same, first, make(kind).epoch()))


@every_kind
def test_epochs_and_seeds_differ(kind: str) -> None:
    batches = make(kind)
    first, second = (list(batches.epoch()) for _ in range(2))
    other = list(make(kind, seed=4).epoch())
    for changed in (second, other):
        assert not all(torch.equal(tensors(a)[0], tensors(b)[0]) for a, b in zip(first, changed, strict=False))


@every_kind
def test_stats_match_the_epoch(kind: str) -> None:
    batches = make(kind)
    assert batches.stats.batches == batches.num_batches(0) == len(list(batches.epoch()))
    assert f"{batches.stats.batches:,} batches" in str(batches.stats)


@every_kind
def test_split_batch_has_the_same_rows(kind: str) -> None:
    for batch in make(kind).epoch():
        parts = batch.split(2)
        for number, tensor in enumerate(tensors(batch)):
            assert torch.equal(torch.cat([tensors(part)[number] for part in parts]), tensor)
        assert sum(part.count for part in parts) == batch.count
        assert {(part.epoch, part.index) for part in parts} == {(batch.epoch, batch.index)}


@every_kind
def test_copy_from_copies_in_place(kind: str) -> None:
    shapes: dict[Any, Any] = {}
    for other in make(kind).epochs():
        one = shapes.setdefault(other.shape, other)
        if one is not other:
            break
    target, before = tensors(one)[0], tensors(other)[0].clone()
    one.copy_from(other)
    assert torch.equal(target, before)
    target.zero_()
    assert torch.equal(tensors(other)[0], before)


@every_kind
def test_state_of_other_batches_is_refused(kind: str) -> None:
    with pytest.raises(UserError, match="has changed since this position was saved"):
        make(kind).load_state_dict(make(kind, seed=4).state_dict())


def test_state_of_other_masking_is_refused() -> None:
    with pytest.raises(UserError, match="masking has changed since this position was saved"):
        masked(3, probability=0.2).load_state_dict(masked(3).state_dict())


@every_kind
@pytest.mark.parametrize("wrong", [{"epoch": -1}, {"position": 1000}, {"position": "1"}, {"epoch": None}])
def test_damaged_state_is_refused(kind: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="saved state is damaged: there is no batch"):
        make(kind).load_state_dict(make(kind).state_dict() | wrong)


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, 0)])
def test_rank_out_of_range_is_refused(rank: int, world_size: int) -> None:
    with pytest.raises(UserError, match=f"no rank {rank} in a world of {world_size}"):
        make("random").shard(rank, world_size)


@pytest.mark.parametrize("seed", [-1, 1 << 64])
def test_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(UserError, match=f"found {seed}"):
        make("random", seed)
