"""Weights: how often items occur in an epoch.

An item of weight 2.3 occurs twice in every epoch, and a third time in three epochs of ten. Which items get the
additional occurrence is drawn anew for each epoch from (seed, epoch) alone, like everything in it: a resumed run, and
each of several processes, draws the same items. Of n items of one weight an epoch has exactly round(weight × n), at
least one.

The draw is stratified by length bucket, so that all epochs have nearly the same batches of each shape.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.config import ConfigError
from regard.data.batching.epochs import CounterRng, Integers, Purpose

MAX_WEIGHT = 1000.0
"""The largest weight: more is a mistake, and an epoch would not fit into memory."""


class ItemGroup(NamedTuple):
    """Consecutive items with the same weight."""

    items: int
    weight: float


def refuse_weights(sources: Mapping[str, Any]) -> None:
    """An error if a source of validation or test data, by its key, has a weight, which would have no effect."""
    for key, source in sources.items():
        if source is not None and source.weight != 1:
            raise ConfigError(
                f"{key}.weight", f"found {source.weight:g}; only training data has weights: leave this key out."
            )


def mean_occurrences(groups: Sequence[ItemGroup]) -> NDArray[np.float32]:
    """The weight of each item.  # (items,)"""
    weights = np.array([group.weight for group in groups], dtype=np.float32)
    return np.repeat(weights, [group.items for group in groups])


class WeightedBuckets:
    """The items of each length bucket in an epoch, by the weights of their groups.

    `buckets` has the items to use, each once and in ascending order; group by group, `groups` covers all items.
    """

    def __init__(self, groups: Sequence[ItemGroup], buckets: Sequence[Integers], seed: int) -> None:
        self._buckets, self._seed = buckets, seed
        ends = np.cumsum([0, *(group.items for group in groups)])
        # A bucket's items of group g are those from bounds[g] to bounds[g + 1].
        self._bounds = np.stack([np.searchsorted(bucket, ends) for bucket in buckets])  # (buckets, groups + 1)
        self._sizes = np.diff(self._bounds, axis=1)  # (buckets, groups)
        used = self._sizes.sum(axis=0)
        counts = [max(1, round(group.weight * size)) for group, size in zip(groups, used.tolist(), strict=True)]
        self._used = np.maximum(used, 1)
        # Every item of a group occurs `whole` times per epoch, and `rest` of them once more.
        self._whole, self._rest = np.divmod(np.where(used > 0, counts, 0), self._used)

    @property
    def max_counts(self) -> list[int]:
        """The most items that each bucket has in any epoch."""
        extra = -(-self._sizes * self._rest // self._used)
        return [int(count) for count in (self._sizes * self._whole + extra).sum(axis=1)]

    def counts(self, epoch: int) -> list[int]:
        """The number of items of each bucket in an epoch."""
        return [int(count) for count in (self._sizes * self._whole + self._extra(epoch)).sum(axis=1)]

    def items(self, epoch: int) -> list[Integers]:
        """The items of each bucket in an epoch, each as often as it occurs."""
        rng = CounterRng(self._seed, epoch, 1, Purpose.WEIGHTS)
        extra = self._extra(epoch)
        buckets = []
        for number, bucket in enumerate(self._buckets):
            parts = []
            for group, count in enumerate(extra[number].tolist()):
                items = bucket[self._bounds[number, group] : self._bounds[number, group + 1]]
                parts.append(np.repeat(items, self._whole[group]))
                if count:
                    parts.append(items[rng.permutation(len(items))[:count]])
            buckets.append(np.concatenate(parts))
        return buckets

    def _extra(self, epoch: int) -> Integers:
        """How many of a bucket's items of each group occur once more in an epoch.  # (buckets, groups)

        A group's fraction of a bucket is rounded up or down at random, such that the group's total is exact and each
        item has the same probability (systematic sampling).
        """
        offset = (CounterRng(self._seed, epoch, 0, Purpose.WEIGHTS).raw(len(self._used)) % self._used).astype(np.int64)
        ends = np.cumsum(self._sizes, axis=0)
        return np.asarray(
            (ends * self._rest + offset) // self._used - ((ends - self._sizes) * self._rest + offset) // self._used
        )
