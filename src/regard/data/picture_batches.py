"""Batches of pictures, all of one shape.

Every picture comes once an epoch, in an order drawn from (seed, epoch). Their number seldom divides by the rows of a
batch; so all batches of an epoch are filled evenly, and what is left of each is empty: black rows behind the others,
with the label -1 and the number -1.

Pictures on the disk are read ahead by a thread: while one batch is computed with, the next are copied into memory.
What was read ahead is no part of the state.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from regard.data.epochs import ORDER, Dice, EpochBatches, dealt
from regard.data.pictures import Pictures
from regard.data.shapes import Integers
from regard.errors import UserError


@dataclass(frozen=True)
class PictureReport:
    """What became of the pictures."""

    pictures: int
    classes: int
    size: tuple[int, int]  # height and width
    batches: int
    rows: int  # of each batch, empty ones included
    fewest: int  # pictures of the rarest class
    most: int

    @property
    def empty(self) -> float:
        """The share of all rows that holds no picture."""
        return 1 - self.pictures / (self.batches * self.rows)

    def __str__(self) -> str:
        height, width = self.size
        each = f"{self.fewest:,}" if self.fewest == self.most else f"{self.fewest:,} to {self.most:,}"
        return (
            f"{self.pictures:,} pictures of {height} × {width} in {self.classes:,} classes of {each}, in "
            f"{self.batches:,} batches of {self.rows:,} rows, {100 * self.empty:.1f} % of them empty."
        )


@dataclass(frozen=True)
class PictureBatch:
    """Pictures and their labels. Empty rows stand behind the others."""

    pixels: Tensor  # (rows, channels, height, width) of bytes
    labels: Tensor  # (rows,): -1 for an empty row
    items: Tensor  # (rows,): the picture's number, -1 for an empty row
    count: int
    """How many rows hold a picture, known without asking the device."""
    epoch: int
    number: int  # place in the epoch's order, counted over all ranks

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.pixels.shape)

    def split(self, parts: int) -> list["PictureBatch"]:
        """The same rows in up to `parts` batches of about as many rows, for a machine too small for all at once."""
        rows = -(-len(self.labels) // parts)
        return [self._rows(first, first + rows) for first in range(0, len(self.labels), rows)]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "PictureBatch":
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "PictureBatch":
        return self._each(Tensor.pin_memory)

    def copy_from(self, other: "PictureBatch") -> None:
        """Take over the contents of a batch of the same shape, in place."""
        for mine, theirs in ((self.pixels, other.pixels), (self.labels, other.labels), (self.items, other.items)):
            mine.copy_(theirs, non_blocking=True)

    def _rows(self, first: int, last: int) -> "PictureBatch":
        part = self._each(lambda tensor: tensor[first:last])
        return replace(part, count=min(max(self.count - first, 0), len(part.labels)))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "PictureBatch":
        return replace(self, pixels=change(self.pixels), labels=change(self.labels), items=change(self.items))


class PictureBatches(EpochBatches[PictureBatch]):
    """Every picture once an epoch, in batches of `rows` rows (see the top of this file).

    `ahead` is how many batches are read before they are asked for: by default 2 where pictures lie on the disk, and
    none where they are in memory.
    """

    def __init__(self, pictures: Pictures, rows: int, *, seed: int = 0, ahead: int | None = None) -> None:
        if rows < 1 or (ahead is not None and ahead < 0):
            raise UserError(f"Batches need at least one row ({rows}), and 0 or more to read ahead ({ahead}).")
        super().__init__(seed, pictures.fingerprint(), rows)
        self.pictures = pictures
        self.rows = rows
        self._batches = -(-len(pictures) // rows)
        self._drawn: tuple[int, Integers] | None = None
        self._depth = (2 if pictures.mapped else 0) if ahead is None else ahead
        self._reader = _Reader(self._collate, self._depth)

    @property
    def report(self) -> PictureReport:
        counts = self.pictures.counts
        return PictureReport(
            pictures=len(self.pictures),
            classes=len(counts),
            size=self.pictures.size,
            batches=self._batches,
            rows=self.rows,
            fewest=min(counts),
            most=max(counts),
        )

    @property
    def fewest_rows(self) -> int:
        """The rows of each batch, empty ones included."""
        return self.rows

    def count(self, epoch: int) -> int:
        return self._batches

    def make(self, epoch: int, number: int) -> PictureBatch:
        return self._reader.get(epoch, number, self._batches)

    def share(self, rank: int, ranks: int) -> Self:
        """The share of one rank, from the present position on."""
        share = super().share(rank, ranks)
        share._reader = _Reader(share._collate, self._depth)
        return share

    def once(self) -> Iterator[PictureBatch]:
        """Every picture once, in the order of the set: to measure on. Where training stands is not changed."""
        reader = _Reader(self._in_order, self._depth)
        for number in range(self._batches):
            yield reader.get(0, number, self._batches)

    def _in_order(self, epoch: int, number: int) -> PictureBatch:
        first = number * self.rows
        last = 0 if epoch else min(first + self.rows, len(self.pictures))  # there is only one epoch
        return self._filled(np.arange(first, last), epoch, number)

    def _collate(self, epoch: int, number: int) -> PictureBatch:
        return self._filled(dealt(self._draw(epoch), self._batches, number), epoch, number)

    def _filled(self, chosen: Integers, epoch: int, number: int) -> PictureBatch:
        count = len(chosen)
        items = torch.full((self.rows,), -1)
        items[:count] = torch.from_numpy(chosen)
        labels = torch.full((self.rows,), -1)
        labels[:count] = self.pictures.labels[items[:count]]
        pixels = torch.empty((self.rows, *self.pictures.pixels.shape[1:]), dtype=torch.uint8)
        self.pictures.copy(chosen, pixels[:count])
        pixels[count:] = 0
        return PictureBatch(pixels, labels, items, count, epoch, number)

    def _draw(self, epoch: int) -> Integers:
        drawn = self._drawn
        if drawn is None or drawn[0] != epoch:
            drawn = self._drawn = epoch, Dice(self.seed, epoch, 0, ORDER).order(len(self.pictures))
        return drawn[1]


class _Reader:
    """Makes batches, and those that will probably be asked for next while the present one is in use.

    A batch depends on its epoch and number alone, so one that was guessed wrong is thrown away and costs no more than
    its time. The guess is that the way from one batch to the next stays what it was the last time.
    """

    def __init__(self, make: Callable[[int, int], PictureBatch], depth: int) -> None:
        self._make, self._depth = make, depth
        self._pool = ThreadPoolExecutor(1, "pictures") if depth else None
        self._coming: dict[int, Future[PictureBatch]] = {}
        self._last: int | None = None

    def get(self, epoch: int, number: int, batches: int) -> PictureBatch:
        """batches: of an epoch"""
        if self._pool is None or number >= batches:
            return self._make(epoch, number)
        now = epoch * batches + number
        step = 1 if self._last is None or self._last >= now else now - self._last
        self._last = now
        places = range(now, now + step * (self._depth + 1), step)
        for place in self._coming.keys() - set(places):
            self._coming.pop(place).cancel()
        for place in places:
            if place not in self._coming:
                self._coming[place] = self._pool.submit(self._make, *divmod(place, batches))
        return self._coming.pop(now).result()
