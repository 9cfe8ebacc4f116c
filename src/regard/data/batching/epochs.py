"""Epochs of batches that can be resumed and sharded exactly.

Every batch is a function of (seed, epoch, index) and nothing else, so the state of the data is the position of the next
batch. Random numbers come from a counter-based generator (Philox, Salmon et al. 2011): any batch of any epoch can be
computed without those before it. Only raw 64-bit words are drawn from it, because their values are fixed across NumPy
versions while `Generator.permutation` and others may change.
"""

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError

Integers = NDArray[np.int64]


class IndexedBatch(Protocol):
    """A batch that knows its position."""

    @property
    def epoch(self) -> int: ...

    @property
    def index(self) -> int: ...


AnyBatch = TypeVar("AnyBatch", bound=IndexedBatch)


class EpochBatches(ABC, Generic[AnyBatch]):
    """An endless stream of batches, epoch after epoch, that can be resumed, and sharded over ranks.

    `identity` is everything besides the seed that determines the batches: a state saved with another one is refused.
    """

    stats: Any
    """Sizes of an epoch and how much of it is padding; `str(stats)` is a sentence."""

    def __init__(self, seed: int, *identity: object) -> None:
        if not 0 <= seed < 1 << 64:
            raise UserError(f"A seed must be a whole number from 0 to 2⁶⁴ - 1; found {seed}.")
        self.seed = seed
        self.rank, self.world_size = 0, 1
        self.fingerprint = hashlib.sha256(repr((type(self).__name__, seed, *identity)).encode()).hexdigest()[:16]
        self._epoch = 0
        self._position = 0

    @property
    @abstractmethod
    def min_rows(self) -> int:
        """Rows of the smallest batch, empty rows included."""

    @abstractmethod
    def num_batches(self, epoch: int) -> int:
        """Batches of an epoch, over all ranks."""

    @abstractmethod
    def make(self, epoch: int, index: int) -> AnyBatch:
        """One batch of an epoch. An index past the last batch gives a batch of empty rows."""

    def __len__(self) -> int:
        """Batches that each rank gets in the current epoch, counted from its start."""
        return -(-self.num_batches(self._epoch) // self.world_size)

    def shard(self, rank: int, world_size: int) -> Self:
        """The batches of one rank, from the current position on.

        Rank r of n gets batches r, r + n, r + 2n … of the common order, so a step of n ranks sees the same batches as
        one process that accumulates n of them. If the last round is incomplete, the remaining ranks get a batch of
        empty rows, so that all ranks take the same number of steps.
        """
        if not 0 <= rank < world_size:
            raise UserError(f"There is no rank {rank} in a world of {world_size}; ranks count from 0.")
        shard = copy.copy(self)
        shard.rank, shard.world_size = rank, world_size
        return shard

    def skip(self) -> None:
        """Advance past the next batch without computing it."""
        self._epoch, self._position = self._next_position(self._epoch, self._position)

    def epoch(self) -> Iterator[AnyBatch]:
        """The remaining batches of the current epoch."""
        epoch = self._epoch
        while self._epoch == epoch:
            yield self._take()

    def epochs(self) -> Iterator[AnyBatch]:
        """An endless stream of batches, epoch after epoch."""
        while True:
            yield self._take()

    def state_dict(self) -> dict[str, int | str]:
        """The position of the next batch. It is the same on all ranks, and valid for any number of them."""
        return self._state(self._epoch, self._position)

    def state_dict_after(self, batch: AnyBatch) -> dict[str, int | str]:
        """The state in which `batch` was the last one taken, for a loader that prefetches."""
        return self._state(*self._next_position(batch.epoch, batch.index - self.rank))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume with the batch that was next when `state` was saved."""
        epoch, position, fingerprint = (state.get(name) for name in ("epoch", "position", "fingerprint"))
        if fingerprint != self.fingerprint:
            raise UserError(
                "The data, the seed, the batch size or the masking has changed since this position was saved, so "
                "training cannot resume from it; restore the old settings, or start a new run from the old weights."
            )
        if type(epoch) is not int or type(position) is not int or not self._exists(epoch, position):
            raise UserError(f"The saved state is damaged: there is no batch {position} in epoch {epoch}.")
        self._epoch, self._position = epoch, position

    def _state(self, epoch: int, position: int) -> dict[str, int | str]:
        return {"epoch": epoch, "position": position, "fingerprint": self.fingerprint}

    def _exists(self, epoch: int, position: int) -> bool:
        return epoch >= 0 and 0 <= position < self.num_batches(epoch)

    def _take(self) -> AnyBatch:
        batch = self.make(self._epoch, self._position + self.rank)
        self.skip()
        return batch

    def _next_position(self, epoch: int, position: int) -> tuple[int, int]:
        position += self.world_size
        return (epoch, position) if position < self.num_batches(epoch) else (epoch + 1, 0)


AnySource = TypeVar("AnySource", bound=EpochBatches[Any])


class MappedBatches(EpochBatches[AnyBatch], Generic[AnySource, AnyBatch]):
    """The batches of `source` with `transform` applied to each.

    `transform` may depend on the batch (and its epoch and index) only. `key` identifies it: a state that was saved with
    another key is refused.
    """

    def __init__(self, source: AnySource, transform: Callable[[Any], AnyBatch], key: str = "") -> None:
        super().__init__(source.seed, source.fingerprint, key)
        self.source = source
        self.stats = source.stats
        self._transform = transform

    @property
    def min_rows(self) -> int:
        return self.source.min_rows

    def num_batches(self, epoch: int) -> int:
        return self.source.num_batches(epoch)

    def make(self, epoch: int, index: int) -> AnyBatch:
        return self._transform(self.source.make(epoch, index))


class Purpose(IntEnum):
    """The purpose of random numbers. Each purpose has its own stream, so that none affects another."""

    SHUFFLE = 0
    OFFSETS = 1
    MASKING = 2
    WEIGHTS = 3


class CounterRng:
    """Random numbers for one batch of an epoch, or for the epoch as a whole (index 0)."""

    def __init__(self, seed: int, epoch: int, index: int, purpose: Purpose) -> None:
        key = np.array([seed, epoch], dtype=np.uint64)
        self._philox = np.random.Philox(key=key, counter=np.array([0, index, 0, purpose], dtype=np.uint64))

    def raw(self, count: int) -> NDArray[np.uint64]:
        """Random 64-bit words."""
        return np.asarray(self._philox.random_raw(count), dtype=np.uint64)

    def integers(self, high: int, count: int) -> Integers:
        """Whole numbers in [0, high)."""
        return (self.raw(count) % np.uint64(high)).astype(np.int64)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Numbers in [0, 1)."""
        return np.asarray((self.raw(count) >> np.uint64(11)) * 2.0**-53, dtype=np.float64)

    def permutation(self, count: int) -> Integers:
        """The numbers from 0 to count - 1 in random order."""
        return np.argsort(self.raw(count), kind="stable")


def count_of(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun, for messages: "1 batch", "2,000 batches"."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def even_chunk(order: Integers, chunks: int, index: int) -> Integers:
    """Chunk `index` of an order that is cut into `chunks` parts whose sizes differ by at most one."""
    if index >= chunks:
        return order[:0]
    return order[len(order) * index // chunks : len(order) * (index + 1) // chunks]
