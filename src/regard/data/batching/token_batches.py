"""Batches of about the same number of tokens, in a small fixed set of shapes.

**The budget is per side**: rows × padded length of the longest side is at most `batch_tokens`. So the encoder's work,
the decoder's work and the logits (rows × target length × vocabulary) are each bounded, as in "approximately 25000
source tokens and 25000 target tokens" (Vaswani et al. 2017, §5.1).

**Shapes come from the data** and are few (buckets.py). All batches of a bucket have the same number of rows; rows that
are left over are empty: they have length 0 and item -1.

**An epoch is an order of batches** drawn from (seed, epoch) and nothing else (epochs.py). So is the choice of items
that an epoch has more or less often than once (item_weights.py).
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batching.buckets import BatchShape, even_rows, plan_buckets
from regard.data.batching.epochs import CounterRng, EpochBatches, Integers, Purpose, count_of
from regard.data.batching.item_weights import ItemGroup, WeightedBuckets, mean_occurrences
from regard.errors import UserError


class TokenizedItems(Protocol):
    """Items to batch, such as a `TokenStore`. A `key`, if the items have one, identifies them on resuming."""

    @property
    def sides(self) -> tuple[str, ...]: ...

    def lengths(self, side: str) -> Integers: ...

    def padded(self, side: str, items: Integers, rows: int, length: int, pad_id: int) -> tuple[Integers, Integers]: ...


@dataclass(frozen=True)
class BatchStats:
    """Sizes of an epoch: how many items were too long, and how much of the batches is padding."""

    items: int
    dropped: int
    max_length: int
    batches: int
    shapes: int
    tokens: int
    padded_tokens: int  # padding and empty rows included
    fixed_batches: int  # batches that are the only ones of their bucket, and so hold the same items every epoch

    @property
    def padding(self) -> float:
        """The fraction of all positions that holds no token."""
        return 1 - self.tokens / self.padded_tokens

    def __str__(self) -> str:
        dropped = f"; dropped {self.dropped:,} longer than {self.max_length:,} tokens" if self.dropped else ""
        return (
            f"{count_of(self.items, 'example')} in {count_of(self.batches, 'batch', 'batches')} per epoch, "
            f"{count_of(self.shapes, 'length bucket')}, {100 * self.padding:.1f} % padding{dropped}."
        )


@dataclass(frozen=True)
class Batch:
    """Rows of ids padded on the right, for each side. Items with one side have the same source and target."""

    sides: tuple[Tensor, ...]  # (rows, length) each
    lengths: tuple[Tensor, ...]  # (rows,) each
    items: Tensor  # (rows,): the item's number in the store, -1 for an empty row
    tokens: tuple[int, ...]  # real tokens of each side, known without synchronizing with the device
    epoch: int
    index: int  # position in the epoch's order, counted over all ranks

    @property
    def source(self) -> Tensor:
        return self.sides[0]

    @property
    def source_lengths(self) -> Tensor:
        return self.lengths[0]

    @property
    def target(self) -> Tensor:
        return self.sides[-1]

    @property
    def target_lengths(self) -> Tensor:
        return self.lengths[-1]

    @property
    def shape(self) -> BatchShape:
        return BatchShape(len(self.items), tuple(side.shape[1] for side in self.sides))

    @property
    def count(self) -> int:
        """The number of predicted tokens: those of the target."""
        return self.tokens[-1]

    def split(self, parts: int) -> list["Batch"]:
        """The same rows as up to `parts` microbatches of nearly equal size, for devices with too little memory."""
        rows = -(-len(self.items) // parts)
        return [self._rows(first, first + rows) for first in range(0, len(self.items), rows)]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        return self._map(Tensor.pin_memory)

    def copy_from(self, other: "Batch") -> None:
        """Copy the contents of a batch of the same shape into this one's tensors."""
        for mine, theirs in zip((*self.sides, *self.lengths), (*other.sides, *other.lengths), strict=True):
            mine.copy_(theirs, non_blocking=True)

    def _rows(self, first: int, last: int) -> "Batch":
        part = self._map(lambda tensor: tensor[first:last])
        return replace(part, tokens=tuple(int(lengths.sum()) for lengths in part.lengths))

    def _map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        sides, lengths = (tuple(map(function, tensors)) for tensors in (self.sides, self.lengths))
        return replace(self, sides=sides, lengths=lengths, items=function(self.items))


_Span = tuple[int, int, int]
"""A batch: its bucket, and its first and last item in the order of the bucket's items."""


class TokenBatches(EpochBatches[Batch]):
    """Every item once per epoch, in batches of at most `batch_tokens` tokens per side (see the module's docstring).

    `pad_id` is the padding id of all sides, or one per side. Padded lengths are multiples of `pad_to_multiple`. Items
    with a side longer than `max_length` (at most `batch_tokens`, which is the default) are dropped; `stats` counts
    them. More `length_buckets` mean less padding; fewer mean better mixing, because a batch has items of one bucket
    only. `groups`, which cover all items in order, occur as often as their weights say (item_weights.py).
    """

    def __init__(
        self,
        items: TokenizedItems,
        batch_tokens: int,
        *,
        seed: int = 0,
        pad_id: int | Sequence[int] = 0,
        length_buckets: int = 32,
        pad_to_multiple: int = 1,
        max_length: int | None = None,
        groups: Sequence[ItemGroup] = (),
    ) -> None:
        max_length = batch_tokens if max_length is None else max_length
        if batch_tokens < pad_to_multiple or length_buckets < 1 or pad_to_multiple < 1 or max_length < 1:
            raise UserError(
                f"Batches need at least 1 for length_buckets ({length_buckets}), pad_to_multiple ({pad_to_multiple}) "
                f"and max_length ({max_length}), and batch_tokens ({batch_tokens}) of at least pad_to_multiple."
            )
        max_length = min(max_length, batch_tokens // pad_to_multiple * pad_to_multiple)
        pad_ids = [pad_id] * len(items.sides) if isinstance(pad_id, int) else list(pad_id)
        if len(pad_ids) != len(items.sides):
            raise UserError(f"{len(pad_ids)} padding ids were given for {len(items.sides)} sides.")
        lengths = _all_lengths(items)  # (items, sides)
        count = len(lengths)
        if groups and sum(group.items for group in groups) != count:
            raise ValueError(f"groups of {sum(group.items for group in groups)} items for {count} items")
        kept = np.flatnonzero((lengths <= max_length).all(axis=1))
        if not len(kept):
            raise UserError(f"There is nothing to batch: none of {count:,} items has at most {max_length:,} tokens.")
        lengths = lengths if len(kept) == count else lengths[kept]
        self._items = items
        self._pad_ids = pad_ids
        weighted = any(group.weight != 1 for group in groups)
        tokens = lengths.sum(axis=1 if weighted else None, dtype=np.int64)  # (kept,), or of all items
        _round_up(lengths, pad_to_multiple)
        occurrences = mean_occurrences(groups)[kept] if weighted else None
        padded, self._buckets = plan_buckets(kept, lengths, batch_tokens, length_buckets, occurrences)
        self._weighted = WeightedBuckets(groups, self._buckets, seed) if weighted else None
        counts = [len(bucket) for bucket in self._buckets] if self._weighted is None else self._weighted.max_counts
        self.shapes = tuple(
            BatchShape(even_rows(count, batch_tokens // max(sides)), sides)
            for count, sides in zip(counts, padded, strict=True)
        )
        identity = (*groups,) if weighted else ()
        super().__init__(seed, getattr(items, "key", ""), self.shapes, _digest(self._buckets), *identity)
        self._order: tuple[int, Sequence[Integers], Sequence[_Span], Integers] | None = None
        self.stats = self._count(kept, tokens, count - len(kept), max_length)

    @property
    def mean_shape(self) -> BatchShape:
        """A batch of mean size: its items, and how many positions each side has per item, padding included."""
        batches, items = self.stats.batches, self.stats.items
        sides = zip(*(self._sizes(bucket) for bucket, _, _ in self._spans(self._counts(0))), strict=True)
        return BatchShape(max(1, round(items / batches)), tuple(max(1, round(sum(side) / items)) for side in sides))

    @property
    def min_rows(self) -> int:
        return min(shape.rows for shape in self.shapes)

    def num_batches(self, epoch: int) -> int:
        return sum(-(-count // shape.rows) for count, shape in zip(self._counts(epoch), self.shapes, strict=True))

    def make(self, epoch: int, index: int) -> Batch:
        """One batch of an epoch; an index past the last gives empty rows in the shape of the last batch."""
        buckets, batches, order = self._shuffled(epoch)
        bucket, first, last = batches[order[min(index, len(order) - 1)]]
        shape = self.shapes[bucket]
        chosen = buckets[bucket][first:last] if index < len(order) else np.empty(0, dtype=np.int64)
        items = np.full(shape.rows, -1, dtype=np.int64)
        items[: len(chosen)] = chosen
        padded = [
            self._items.padded(side, chosen, shape.rows, length, pad_id)
            for side, length, pad_id in zip(self._items.sides, shape.lengths, self._pad_ids, strict=True)
        ]
        return Batch(
            sides=tuple(torch.from_numpy(ids) for ids, _ in padded),
            lengths=tuple(torch.from_numpy(lengths) for _, lengths in padded),
            items=torch.from_numpy(items),
            tokens=tuple(int(lengths.sum()) for _, lengths in padded),
            epoch=epoch,
            index=index,
        )

    def _sizes(self, bucket: int) -> tuple[int, ...]:
        """Positions of each side in a batch of a bucket, padding included."""
        return tuple(self.shapes[bucket].rows * length for length in self.shapes[bucket].lengths)

    def _counts(self, epoch: int) -> list[int]:
        """The items of each bucket in an epoch."""
        return [len(bucket) for bucket in self._buckets] if self._weighted is None else self._weighted.counts(epoch)

    def _spans(self, counts: Sequence[int]) -> list[_Span]:
        """The batches of buckets with these numbers of items."""
        return [
            (bucket, first, min(first + shape.rows, counts[bucket]))
            for bucket, shape in enumerate(self.shapes)
            for first in range(0, counts[bucket], shape.rows)
        ]

    def _shuffled(self, epoch: int) -> tuple[Sequence[Integers], Sequence[_Span], Integers]:
        """The items of each bucket in the order of an epoch, the batches of all buckets, and their order."""
        if self._order is None or self._order[0] != epoch:
            rng = CounterRng(self.seed, epoch, 0, Purpose.SHUFFLE)
            items = self._buckets if self._weighted is None else self._weighted.items(epoch)
            buckets = [bucket[rng.permutation(len(bucket))] for bucket in items]
            batches = self._spans([len(bucket) for bucket in buckets])
            self._order = epoch, buckets, batches, rng.permutation(len(batches))
        return self._order[1:]

    def _count(self, kept: Integers, tokens: Integers, dropped: int, max_length: int) -> BatchStats:
        """The sizes of the first epoch.  kept: # (kept,); tokens: # (kept,) if the items have weights"""
        counts = self._counts(0)
        batches = self._spans(counts)
        if self._weighted is not None:
            tokens = tokens[np.searchsorted(kept, np.concatenate(self._weighted.items(0)))]
        return BatchStats(
            items=sum(counts),
            dropped=dropped,
            max_length=max_length,
            batches=len(batches),
            shapes=len(self.shapes),
            tokens=int(np.sum(tokens)),
            padded_tokens=sum(sum(self._sizes(bucket)) for bucket, _, _ in batches),
            fixed_batches=sum(0 < count <= shape.rows for count, shape in zip(counts, self.shapes, strict=True)),
        )


def _all_lengths(items: TokenizedItems) -> NDArray[np.int32]:
    """The lengths of all items as int32, which saves memory; no item has two billion tokens."""
    count = len(items.lengths(items.sides[0]))
    lengths = np.empty((count, len(items.sides)), dtype=np.int32)  # (items, sides)
    for number, side in enumerate(items.sides):
        lengths[:, number] = np.minimum(items.lengths(side), np.iinfo(np.int32).max)
    return lengths


def _round_up(lengths: NDArray[np.int32], multiple: int) -> None:
    """Round up to a multiple, and to at least one position for an item without tokens. In place, to save memory."""
    lengths += (multiple - 1) - (lengths - 1) % multiple if multiple > 1 else 0
    np.maximum(lengths, multiple, out=lengths)


def _digest(buckets: Sequence[Integers]) -> str:
    digest = hashlib.sha256()
    for bucket in buckets:
        digest.update(bucket.astype("<i8").tobytes())
    return digest.hexdigest()
