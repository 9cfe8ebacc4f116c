"""Batches of about equally many tokens, in a fixed small set of shapes.

**The budget is for each side**: rows × padded length of the longest side is at most `tokens`. So the encoder's work,
the decoder's work and the logits (rows × target length × vocabulary) are each bounded, as in "approximately 25000
source tokens and 25000 target tokens" (Vaswani et al. 2017, §5.1).

**Shapes come from the data**, few of them (see shapes.py). Within a bucket all batches have the same number of rows. An
empty row has length 0 and the item number -1.

**An epoch is an order of batches**, drawn from (seed, epoch) and nothing else. Ranks deal this one order out among
themselves like cards; how far it has been dealt is the whole state, and holds for any number of ranks.
"""

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.shapes import Integers, Shape, plan_shapes
from regard.errors import UserError


class Items(Protocol):
    """What batches are made of; a `TokenStore` is one. Items that have a `key` are known by it when resumed."""

    @property
    def sides(self) -> tuple[str, ...]: ...

    def lengths(self, side: str) -> Integers: ...

    def padded(self, side: str, items: Integers, rows: int, length: int, padding: int) -> tuple[Integers, Integers]: ...


@dataclass(frozen=True)
class Report:
    """What became of the items: how many were too long, how much of the batches is padding."""

    items: int
    left_out: int
    limit: int
    batches: int
    shapes: int
    tokens: int
    cells: int  # tokens and padding, empty rows included
    alone: int  # batches that are alone in their bucket, and so hold the same items every epoch

    @property
    def padding(self) -> float:
        """The share of all cells that holds no token."""
        return 1 - self.tokens / self.cells

    def __str__(self) -> str:
        left_out = f"; {self.left_out:,} longer than {self.limit:,} tokens were left out" if self.left_out else ""
        return (
            f"{self.items:,} items in {self.batches:,} batches of {self.shapes} shapes, "
            f"{100 * self.padding:.1f} % padding{left_out}."
        )


@dataclass(frozen=True)
class Batch:
    """Rows of ids padded on the right, for each side; one-sided items have the same source and target."""

    sides: tuple[Tensor, ...]  # (rows, length) each
    lengths: tuple[Tensor, ...]  # (rows,) each
    items: Tensor  # (rows,): the item's number in the store, -1 for an empty row
    tokens: tuple[int, ...]  # real tokens of each side, known without asking the device
    epoch: int
    number: int  # place in the epoch's order, counted over all ranks

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
    def shape(self) -> Shape:
        return Shape(len(self.items), tuple(side.shape[1] for side in self.sides))

    @property
    def count(self) -> int:
        """How many words are to be predicted: those of the target."""
        return self.tokens[-1]

    def split(self, parts: int) -> list["Batch"]:
        """The same rows in up to `parts` batches of about as many rows, for a machine too small for all at once."""
        rows = -(-len(self.items) // parts)
        return [self._rows(first, first + rows) for first in range(0, len(self.items), rows)]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        return self._each(Tensor.pin_memory)

    def copy_from(self, other: "Batch") -> None:
        """Take over the contents of a batch of the same shape, in place."""
        for mine, theirs in zip((*self.sides, *self.lengths), (*other.sides, *other.lengths), strict=True):
            mine.copy_(theirs, non_blocking=True)

    def _rows(self, first: int, last: int) -> "Batch":
        part = self._each(lambda tensor: tensor[first:last])
        return replace(part, tokens=tuple(int(lengths.sum()) for lengths in part.lengths))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        sides, lengths = (tuple(map(change, tensors)) for tensors in (self.sides, self.lengths))
        return replace(self, sides=sides, lengths=lengths, items=change(self.items))


class TokenBatches:
    """Every item once an epoch, in batches of at most `tokens` tokens a side (see the top of this file).

    `padding` is the id in the empty cells, for all sides or for each. Padded lengths are multiples of `multiple`. Items
    with a side longer than `limit` (at most `tokens`, which is the default) are left out; `report` says how many. More
    `shapes` leave less padding, fewer mix better: an item only ever meets those of its own bucket.
    """

    def __init__(
        self,
        items: Items,
        tokens: int,
        *,
        seed: int = 0,
        padding: int | Sequence[int] = 0,
        shapes: int = 32,
        multiple: int = 1,
        limit: int | None = None,
    ) -> None:
        limit = tokens if limit is None else limit
        if tokens < multiple or shapes < 1 or multiple < 1 or limit < 1 or not 0 <= seed < 1 << 64:
            raise UserError(
                f"Batches need at least 1 for shapes ({shapes}), multiple ({multiple}) and limit ({limit}), at least "
                f"one multiple for tokens ({tokens}), and a seed ({seed}) from 0 on."
            )
        limit = min(limit, tokens // multiple * multiple)
        paddings = [padding] * len(items.sides) if isinstance(padding, int) else list(padding)
        if len(paddings) != len(items.sides):
            raise UserError(f"{len(paddings)} padding ids were given for {len(items.sides)} sides.")
        lengths = _all_lengths(items)  # (items, sides)
        count = len(lengths)
        kept = np.flatnonzero((lengths <= limit).all(axis=1))
        if not len(kept):
            raise UserError(f"There is nothing to batch: of {count:,} items none has at most {limit:,} tokens.")
        lengths = lengths if len(kept) == count else lengths[kept]
        total = int(lengths.sum(dtype=np.int64))
        self.seed = seed
        self.rank, self.ranks = 0, 1
        self._source = items
        self._paddings = paddings
        self.shapes, self._buckets = plan_shapes(kept, _round_up(lengths, multiple), tokens, shapes)
        # Each batch as (bucket, first, last) in the list of its bucket's items.
        self._batches = [
            (bucket, first, min(first + shape.rows, len(self._buckets[bucket])))
            for bucket, shape in enumerate(self.shapes)
            for first in range(0, len(self._buckets[bucket]), shape.rows)
        ]
        self.report = Report(
            items=len(kept),
            left_out=count - len(kept),
            limit=limit,
            batches=len(self._batches),
            shapes=len(self.shapes),
            tokens=total,
            alone=sum(len(bucket) <= shape.rows for bucket, shape in zip(self._buckets, self.shapes, strict=True)),
            cells=sum(self.shapes[bucket].rows * sum(self.shapes[bucket].lengths) for bucket, _, _ in self._batches),
        )
        self._identity = _fingerprint(f"{seed} {getattr(items, 'key', '')}", self.shapes, self._buckets)
        self._epoch = 0
        self._position = 0
        self._drawn: tuple[int, Sequence[Integers], Integers] | None = None

    def __len__(self) -> int:
        """Batches that each rank gets in a whole epoch."""
        return -(-len(self._batches) // self.ranks)

    def share(self, rank: int, ranks: int) -> Self:
        """The share of one rank, from the present position on.

        Rank r of n gets the batches r, r + n, r + 2n … of the one order, so a step of n ranks takes the same batches as
        one process that gathers n of them. Where the order ends unevenly, the last ranks get a batch of empty rows
        in the shape of the last batch: all ranks take the same number of steps.
        """
        if not 0 <= rank < ranks:
            raise UserError(f"There is no rank {rank} of {ranks}; ranks count from 0.")
        share = copy.copy(self)
        share.rank, share.ranks = rank, ranks
        return share

    @property
    def usual(self) -> Shape:
        """A batch of mean size: its items, and how many cells of each side there are for one, padding included."""
        batches, items = self.report.batches, self.report.items
        sides = zip(*(self._cells(bucket) for bucket, _, _ in self._batches), strict=True)
        return Shape(max(1, round(items / batches)), tuple(max(1, round(sum(side) / items)) for side in sides))

    def _cells(self, bucket: int) -> tuple[int, ...]:
        """Of each side of a bucket's batches."""
        return tuple(self.shapes[bucket].rows * length for length in self.shapes[bucket].lengths)

    @property
    def fewest_rows(self) -> int:
        """The rows of the batch that has the fewest, empty ones included."""
        return min(shape.rows for shape in self.shapes)

    def skip(self) -> None:
        """Pass over the next batch without making it."""
        self._epoch, self._position = self._after(self._epoch, self._position)

    def epoch(self) -> Iterator[Batch]:
        """What is left of the present epoch."""
        epoch = self._epoch
        while self._epoch == epoch:
            yield self._take()

    def epochs(self) -> Iterator[Batch]:
        """Batches without end: each epoch is shuffled anew."""
        while True:
            yield self._take()

    def state(self) -> dict[str, int | str]:
        """Where the next batch is, as plain data. The same for all ranks, and valid for any number of them."""
        return {"epoch": self._epoch, "position": self._position, "plan": self._identity}

    def state_after(self, batch: Batch) -> dict[str, int | str]:
        """The state in which `batch` was the last one taken, for a loader that has read ahead of training."""
        epoch, position = self._after(batch.epoch, batch.number - self.rank)
        return {"epoch": epoch, "position": position, "plan": self._identity}

    def restore(self, state: Mapping[str, int | str]) -> None:
        """Go on with the batch that was next when `state` was taken."""
        epoch, position, plan = (state.get(name) for name in ("epoch", "position", "plan"))
        if plan != self._identity:
            raise UserError(
                "The data, the seed or the size of batches have changed since this position was saved, so training "
                "cannot go on from it; use the same ones, or start a new run from the old weights."
            )
        if type(epoch) is not int or type(position) is not int or epoch < 0 or not 0 <= position < len(self._batches):
            raise UserError(f"There is no batch {position} of epoch {epoch} to go on with; the saved state is damaged.")
        self._epoch, self._position = epoch, position

    def _take(self) -> Batch:
        batch = self._collate(self._epoch, self._position + self.rank)
        self._epoch, self._position = self._after(self._epoch, self._position)
        return batch

    def _after(self, epoch: int, position: int) -> tuple[int, int]:
        position += self.ranks
        return (epoch, position) if position < len(self._batches) else (epoch + 1, 0)

    def _collate(self, epoch: int, number: int) -> Batch:
        buckets, order = self._draw(epoch)
        bucket, first, last = self._batches[order[min(number, len(order) - 1)]]
        shape = self.shapes[bucket]
        chosen = buckets[bucket][first:last] if number < len(order) else np.empty(0, dtype=np.int64)
        items = np.full(shape.rows, -1, dtype=np.int64)
        items[: len(chosen)] = chosen
        pairs = [
            self._source.padded(side, chosen, shape.rows, length, padding)
            for side, length, padding in zip(self._source.sides, shape.lengths, self._paddings, strict=True)
        ]
        return Batch(
            sides=tuple(torch.from_numpy(ids) for ids, _ in pairs),
            lengths=tuple(torch.from_numpy(real) for _, real in pairs),
            items=torch.from_numpy(items),
            tokens=tuple(int(real.sum()) for _, real in pairs),
            epoch=epoch,
            number=number,
        )

    def _draw(self, epoch: int) -> tuple[Sequence[Integers], Integers]:
        """The items of each bucket and the batches of all, shuffled for an epoch.

        Sorting by raw random words is a shuffle that no version of NumPy will change; its `permutation` may.
        """
        if self._drawn is None or self._drawn[0] != epoch:
            words = np.random.Philox(key=np.array([self.seed, epoch], dtype=np.uint64))

            def shuffled(values: Integers) -> Integers:
                return values[np.argsort(words.random_raw(len(values)), kind="stable")]

            buckets = [shuffled(bucket) for bucket in self._buckets]
            self._drawn = epoch, buckets, shuffled(np.arange(len(self._batches)))
        return self._drawn[1:]


def _all_lengths(items: Items) -> NDArray[np.int32]:
    """The lengths of all items in as little room as they need; none is as long as two thousand million tokens."""
    count = len(items.lengths(items.sides[0]))
    lengths = np.empty((count, len(items.sides)), dtype=np.int32)  # (items, sides)
    for number, side in enumerate(items.sides):
        lengths[:, number] = np.minimum(items.lengths(side), np.iinfo(np.int32).max)
    return lengths


def _round_up(lengths: NDArray[np.int32], multiple: int) -> NDArray[np.int32]:
    """At least one cell, so that an item without tokens has a place as well. In place: there may be very many."""
    lengths += (multiple - 1) - (lengths - 1) % multiple if multiple > 1 else 0
    return np.maximum(lengths, multiple, out=lengths)


def _fingerprint(key: str, shapes: Sequence[Shape], buckets: Sequence[Integers]) -> str:
    """Different wherever the batches or their order would be."""
    digest = hashlib.sha256(repr((key, shapes)).encode())
    for bucket in buckets:
        digest.update(bucket.astype("<i8").tobytes())
    return digest.hexdigest()[:16]
