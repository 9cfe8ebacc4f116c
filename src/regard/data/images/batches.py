"""Batches of images, all of one shape.

Every image occurs once per epoch, in an order drawn from (seed, epoch). The number of images is rarely a multiple of
the batch size, so all batches of an epoch are filled evenly, and the remaining rows at the end are empty: black images
with label -1 and item -1.

Images on disk are prefetched by a thread: while one batch is being used, the next ones are copied into memory.
Prefetched batches are not part of the state.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from regard.data.batching.epochs import CounterRng, EpochBatches, Integers, Purpose, count_of, even_chunk
from regard.data.images.dataset import ImageDataset
from regard.errors import UserError


@dataclass(frozen=True)
class ImageStats:
    """Sizes of an epoch."""

    images: int
    classes: int
    size: tuple[int, int]  # height and width
    batches: int
    rows: int  # of each batch, empty rows included
    smallest_class: int
    largest_class: int

    @property
    def padding(self) -> float:
        """The fraction of all rows that holds no image."""
        return 1 - self.images / (self.batches * self.rows)

    def __str__(self) -> str:
        height, width = self.size
        smallest, largest = self.smallest_class, self.largest_class
        each = f"{smallest:,}" if smallest == largest else f"{smallest:,} to {largest:,}"
        return (
            f"{count_of(self.images, 'image')} of {height} × {width} in {self.classes:,} classes of {each}, in "
            f"{count_of(self.batches, 'batch', 'batches')} of {count_of(self.rows, 'row')}, "
            f"{100 * self.padding:.1f} % of them empty."
        )


@dataclass(frozen=True)
class ImageBatch:
    """Images and their labels. Empty rows come last."""

    pixels: Tensor  # (rows, channels, height, width), uint8
    labels: Tensor  # (rows,): -1 for an empty row
    items: Tensor  # (rows,): the image's number in the dataset, -1 for an empty row
    count: int
    """The number of rows that hold an image, known without synchronizing with the device."""
    epoch: int
    index: int  # position in the epoch's order, counted over all ranks

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.pixels.shape)

    def split(self, parts: int) -> list["ImageBatch"]:
        """The same rows as up to `parts` microbatches of nearly equal size, for devices with too little memory."""
        rows = -(-len(self.labels) // parts)
        return [self._rows(first, first + rows) for first in range(0, len(self.labels), rows)]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "ImageBatch":
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "ImageBatch":
        return self._map(Tensor.pin_memory)

    def copy_from(self, other: "ImageBatch") -> None:
        """Copy the contents of a batch of the same shape into this one's tensors."""
        for mine, theirs in ((self.pixels, other.pixels), (self.labels, other.labels), (self.items, other.items)):
            mine.copy_(theirs, non_blocking=True)

    def _rows(self, first: int, last: int) -> "ImageBatch":
        part = self._map(lambda tensor: tensor[first:last])
        return replace(part, count=min(max(self.count - first, 0), len(part.labels)))

    def _map(self, function: Callable[[Tensor], Tensor]) -> "ImageBatch":
        return replace(self, pixels=function(self.pixels), labels=function(self.labels), items=function(self.items))


class ImageBatches(EpochBatches[ImageBatch]):
    """Every image once per epoch, in batches of `rows` rows (see the module's docstring).

    `items` are the numbers of the images, if not all of the dataset are wanted.

    `prefetch` is the number of batches to read in advance: by default 2 if the images are on disk, and none if they are
    in memory.
    """

    def __init__(
        self,
        dataset: ImageDataset,
        rows: int,
        *,
        seed: int = 0,
        prefetch: int | None = None,
        items: Sequence[int] | None = None,
    ) -> None:
        if rows < 1 or (prefetch is not None and prefetch < 0):
            raise UserError(f"Batches need at least one row ({rows}), and a prefetch of 0 or more ({prefetch}).")
        chosen = () if items is None else (hashlib.sha256(repr(list(items)).encode()).hexdigest(),)
        super().__init__(seed, dataset.fingerprint(), rows, *chosen)
        self.dataset = dataset
        self.rows = rows
        self._items: Integers = np.arange(len(dataset)) if items is None else np.array(items, dtype=np.int64)
        self._batches = -(-len(self._items) // rows)
        self._order: tuple[int, Integers] | None = None
        self._prefetch = (2 if dataset.mapped else 0) if prefetch is None else prefetch
        self._loader = _Prefetcher(self._shuffled_batch, self._prefetch)
        counts = np.bincount(dataset.labels.numpy()[self._items], minlength=len(dataset.classes)).tolist()
        self.stats = ImageStats(
            images=len(self._items),
            classes=len(counts),
            size=dataset.size,
            batches=self._batches,
            rows=rows,
            smallest_class=min(counts),
            largest_class=max(counts),
        )

    @property
    def min_rows(self) -> int:
        return self.rows

    def num_batches(self, epoch: int) -> int:
        return self._batches

    def make(self, epoch: int, index: int) -> ImageBatch:
        return self._loader.get(epoch, index, self._batches)

    def shard(self, rank: int, world_size: int) -> Self:
        shard = super().shard(rank, world_size)
        shard._loader = _Prefetcher(shard._shuffled_batch, self._prefetch)
        return shard

    def in_order(self) -> Iterator[ImageBatch]:
        """Every image once, in the order of the dataset, for evaluation. This does not change the training position."""
        loader = _Prefetcher(self._ordered_batch, self._prefetch)
        for index in range(self._batches):
            yield loader.get(0, index, self._batches)

    def _ordered_batch(self, epoch: int, index: int) -> ImageBatch:
        first = index * self.rows
        last = 0 if epoch else min(first + self.rows, len(self._items))  # there is only one epoch
        return self._load(self._items[first:last], epoch, index)

    def _shuffled_batch(self, epoch: int, index: int) -> ImageBatch:
        return self._load(even_chunk(self._shuffled(epoch), self._batches, index), epoch, index)

    def _load(self, chosen: Integers, epoch: int, index: int) -> ImageBatch:
        count = len(chosen)
        items = torch.full((self.rows,), -1)
        items[:count] = torch.from_numpy(chosen)
        labels = torch.full((self.rows,), -1)
        labels[:count] = self.dataset.labels[items[:count]]
        pixels = torch.empty((self.rows, *self.dataset.pixels.shape[1:]), dtype=torch.uint8)
        self.dataset.copy_pixels(chosen, pixels[:count])
        pixels[count:] = 0
        return ImageBatch(pixels, labels, items, count, epoch, index)

    def _shuffled(self, epoch: int) -> Integers:
        order = self._order
        if order is None or order[0] != epoch:
            rng = CounterRng(self.seed, epoch, 0, Purpose.SHUFFLE)
            order = self._order = epoch, self._items[rng.permutation(len(self._items))]
        return order[1]


class _Prefetcher:
    """Loads batches, and prefetches those that will probably be requested next.

    The guess is that the step from one batch to the next stays the same. A batch depends on its epoch and index alone,
    so a wrong guess only costs time.
    """

    def __init__(self, make: Callable[[int, int], ImageBatch], depth: int) -> None:
        self._make, self._depth = make, depth
        self._pool = ThreadPoolExecutor(1, "images") if depth else None
        self._pending: dict[int, Future[ImageBatch]] = {}
        self._last: int | None = None

    def get(self, epoch: int, index: int, num_batches: int) -> ImageBatch:
        if self._pool is None or index >= num_batches:
            return self._make(epoch, index)
        current = epoch * num_batches + index
        step = 1 if self._last is None or self._last >= current else current - self._last
        self._last = current
        upcoming = range(current, current + step * (self._depth + 1), step)
        for number in self._pending.keys() - set(upcoming):
            self._pending.pop(number).cancel()
        for number in upcoming:
            if number not in self._pending:
                self._pending[number] = self._pool.submit(self._make, *divmod(number, num_batches))
        return self._pending.pop(current).result()
