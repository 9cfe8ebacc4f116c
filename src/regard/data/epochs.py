"""Batches in epochs: each is a function of (seed, epoch, number), so how far they have been taken is the whole state.

Random numbers come from Philox, a counter that is scrambled by a key: any batch of any epoch can be made by itself.
What is drawn are raw words, which no version of NumPy will change.
"""

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.data.shapes import Integers
from regard.errors import UserError


class Numbered(Protocol):
    """A batch that knows its place."""

    @property
    def epoch(self) -> int: ...

    @property
    def number(self) -> int: ...


AnyNumbered = TypeVar("AnyNumbered", bound=Numbered)


class EpochBatches(ABC, Generic[AnyNumbered]):
    """Batches without end, epoch after epoch, shared out among ranks like cards.

    `facts` is whatever else decides what the batches are: a saved position is refused where it differs.
    """

    def __init__(self, seed: int, *facts: object) -> None:
        if not 0 <= seed < 1 << 64:
            raise UserError(f"A seed is a whole number from 0 on, below 2⁶⁴; found {seed}.")
        self.seed = seed
        self.rank, self.ranks = 0, 1
        self._identity = hashlib.sha256(repr((type(self).__name__, seed, *facts)).encode()).hexdigest()[:16]
        self._epoch = 0
        self._position = 0

    @property
    @abstractmethod
    def fewest_rows(self) -> int:
        """The rows of the batch that has the fewest, empty ones included."""

    @abstractmethod
    def count(self, epoch: int) -> int:
        """How many batches an epoch has, over all ranks."""

    @abstractmethod
    def make(self, epoch: int, number: int) -> AnyNumbered:
        """A batch of an epoch; one past the last has nothing but empty rows."""

    def __len__(self) -> int:
        """Batches that each rank gets in the present epoch, from its start."""
        return -(-self.count(self._epoch) // self.ranks)

    def share(self, rank: int, ranks: int) -> Self:
        """The share of one rank, from the present position on.

        Rank r of n gets the batches r, r + n, r + 2n … of the one order. Where it ends unevenly, the last ranks get
        a batch of empty rows: all ranks take the same number of steps.
        """
        if not 0 <= rank < ranks:
            raise UserError(f"There is no rank {rank} of {ranks}; ranks count from 0.")
        share = copy.copy(self)
        share.rank, share.ranks = rank, ranks
        return share

    def skip(self) -> None:
        """Pass over the next batch without making it."""
        self._epoch, self._position = self._after(self._epoch, self._position)

    def epoch(self) -> Iterator[AnyNumbered]:
        """What is left of the present epoch."""
        epoch = self._epoch
        while self._epoch == epoch:
            yield self._take()

    def epochs(self) -> Iterator[AnyNumbered]:
        """Batches without end."""
        while True:
            yield self._take()

    def state(self) -> dict[str, int | str]:
        """Where the next batch is, as plain data. The same for all ranks, and valid for any number of them."""
        return {"epoch": self._epoch, "position": self._position, "plan": self._identity}

    def state_after(self, batch: AnyNumbered) -> dict[str, int | str]:
        """The state in which `batch` was the last one taken, for a loader that has read ahead of training."""
        epoch, position = self._after(batch.epoch, batch.number - self.rank)
        return {"epoch": epoch, "position": position, "plan": self._identity}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with the batch that was next when `state` was taken."""
        epoch, position, plan = (state.get(name) for name in ("epoch", "position", "plan"))
        if plan != self._identity:
            raise UserError(
                "The data, the seed or the size of batches have changed since this position was saved, so training "
                "cannot go on from it; use the same ones, or start a new run from the old weights."
            )
        if type(epoch) is not int or type(position) is not int or epoch < 0 or not 0 <= position < self.count(epoch):
            raise UserError(f"There is no batch {position} of epoch {epoch} to go on with; the saved state is damaged.")
        self._epoch, self._position = epoch, position

    def _take(self) -> AnyNumbered:
        batch = self.make(self._epoch, self._position + self.rank)
        self.skip()
        return batch

    def _after(self, epoch: int, position: int) -> tuple[int, int]:
        position += self.ranks
        return (epoch, position) if position < self.count(epoch) else (epoch + 1, 0)


ORDER, PLACES, GAPS = range(3)
"""What random numbers are drawn for: each purpose has numbers of its own."""


class Dice:
    """Random numbers for one batch of an epoch, or for the whole of it (number 0)."""

    def __init__(self, seed: int, epoch: int, number: int, purpose: int) -> None:
        key = np.array([seed, epoch], dtype=np.uint64)
        self._source = np.random.Philox(key=key, counter=np.array([0, number, 0, purpose], dtype=np.uint64))

    def words(self, count: int) -> NDArray[np.uint64]:
        """So many random words of 64 bits."""
        return np.asarray(self._source.random_raw(count), dtype=np.uint64)

    def below(self, limit: int, count: int) -> Integers:
        """So many whole numbers from 0 on, below the limit."""
        return (self.words(count) % np.uint64(limit)).astype(np.int64)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """So many numbers from 0 on, below 1."""
        return np.asarray((self.words(count) >> np.uint64(11)) * 2.0**-53, dtype=np.float64)

    def order(self, count: int) -> Integers:
        """The numbers from 0 on, below `count`, shuffled."""
        return np.argsort(self.words(count), kind="stable")


def dealt(order: Integers, batches: int, number: int) -> Integers:
    """What batch `number` gets when all of an order is dealt evenly: as many as any other, or one more."""
    if number >= batches:
        return order[:0]
    return order[len(order) * number // batches : len(order) * (number + 1) // batches]
