"""Length buckets: a small fixed set of batch shapes, chosen from the lengths in the data.

Compiled code needs few shapes, and a fast epoch needs little padding. Items are partitioned into a limited number of
buckets: greedily, the bucket with the most to gain is split in two, along the side and at the length that save the
most; then each shape is adjusted by a few tokens as long as that helps. All batches of a bucket have the same number of
rows, chosen to fill them evenly (41 items in batches of at most 20 rows become 14 + 14 + 13), so that a bucket ends
with a few empty rows instead of a nearly empty batch. Only whole numbers are used, so the result is the same on every
machine.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.batching.epochs import Integers

_CHUNK = 1 << 20
"""Items processed at once."""


@dataclass(frozen=True)
class BatchShape:
    """The number of rows, and the padded length of each side."""

    rows: int
    lengths: tuple[int, ...]


def plan_buckets(
    items: Integers,
    lengths: NDArray[Any],
    batch_tokens: int,
    max_buckets: int,
    occurrences: NDArray[np.float32] | None = None,
) -> tuple[list[tuple[int, ...]], list[Integers]]:
    """Partition items into buckets; returns the padded length of each side in each bucket, and its items.

    items: # (items,); lengths: # (items, sides); occurrences: # (items,), how often each occurs in an epoch, if not
    once
    """
    # Everything below works on the distinct tuples of lengths ("points") and how often each occurs.
    extents = tuple(int(length) + 1 for length in lengths.max(axis=0))
    codes, counts = _count(lengths, extents, occurrences)
    points = np.stack(np.unravel_index(codes, extents), axis=1)  # (points, sides)
    corners = _refine(_split(points, counts, batch_tokens, max_buckets), points, counts, batch_tokens)
    corners = corners[np.lexsort((*corners.T, corners.sum(axis=1)))]
    # An item goes to the cheapest shape it fits into: assign the most expensive first, then overwrite.
    point_bucket = np.zeros(len(points), dtype=np.int64)
    for number in range(len(corners))[::-1]:
        point_bucket[(points <= corners[number]).all(axis=1)] = number
    item_bucket = np.empty(len(lengths), dtype=np.int32)
    for chunk in _chunks(lengths):
        item_bucket[chunk] = point_bucket[np.searchsorted(codes, _codes(lengths[chunk], extents))]
    padded, buckets = [], []
    for number in np.unique(item_bucket):
        corner = points[point_bucket == number].max(axis=0)
        padded.append(tuple(int(length) for length in corner))
        buckets.append(items[item_bucket == number])
    return padded, buckets


def even_rows(count: int, max_rows: int) -> int:
    """The rows of a batch that let the fewest batches possible hold `count` items with few rows left empty."""
    return -(-count // -(-count // max_rows))


def _chunks(lengths: NDArray[Any]) -> Iterator[slice]:
    """All items in chunks: the intermediate arrays would otherwise need ten times the memory of the lengths."""
    return (slice(first, first + _CHUNK) for first in range(0, len(lengths), _CHUNK))


def _codes(lengths: NDArray[Any], extents: tuple[int, ...]) -> Integers:
    """Each tuple of lengths as one number."""
    return np.asarray(np.ravel_multi_index(tuple(lengths.T.astype(np.int64)), extents), dtype=np.int64)


def _count(
    lengths: NDArray[Any], extents: tuple[int, ...], occurrences: NDArray[np.float32] | None
) -> tuple[Integers, Integers]:
    """The distinct codes in ascending order, and how often each occurs, rounded up."""
    codes, counts = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64)
    for chunk in _chunks(lengths):
        new_codes, inverse = np.unique(_codes(lengths[chunk], extents), return_inverse=True)
        new_counts = np.bincount(inverse, weights=None if occurrences is None else occurrences[chunk])
        codes, inverse = np.unique(np.concatenate((codes, new_codes)), return_inverse=True)
        counts = np.bincount(inverse, weights=np.concatenate((counts, new_counts))).astype(np.float64)
    return codes, np.ceil(counts).astype(np.int64)


def _split(points: Integers, counts: Integers, batch_tokens: int, max_buckets: int) -> Integers:
    """The corners (maximum lengths) of at most `max_buckets` groups of points, split greedily to save padding."""

    def best_cut(group: Integers) -> tuple[int, Integers, Integers]:
        """The cost saved by the best cut of a group, and the two parts."""
        best = (0, group, group[:0])
        uncut = int(_cost(counts[group].sum(), points[group].max(axis=0), batch_tokens))
        for side in range(points.shape[1]):
            order = group[np.argsort(points[group, side], kind="stable")]
            cuts = np.flatnonzero(np.diff(points[order, side]))
            if not len(cuts):
                continue
            below = np.cumsum(counts[order])
            low = np.maximum.accumulate(points[order])[cuts]
            high = np.maximum.accumulate(points[order][::-1])[::-1][cuts + 1]
            saved = uncut - _cost(below[cuts], low, batch_tokens) - _cost(below[-1] - below[cuts], high, batch_tokens)
            cut = int(np.argmax(saved))
            if saved[cut] > best[0]:
                best = (int(saved[cut]), order[: cuts[cut] + 1], order[cuts[cut] + 1 :])
        return best

    groups = [best_cut(np.arange(len(points)))]
    while len(groups) < max_buckets:
        chosen = max(range(len(groups)), key=lambda number: groups[number][0])
        saved, low, high = groups[chosen]
        if saved <= 0:
            break
        groups[chosen] = best_cut(low)
        groups.append(best_cut(high))
    return np.stack([points[np.concatenate([low, high])].max(axis=0) for _, low, high in groups])


def _refine(corners: Integers, points: Integers, counts: Integers, batch_tokens: int, sweeps: int = 8) -> Integers:
    """Coordinate descent: move one corner at a time by a few tokens along one side, as long as the total cost drops."""
    corners, top, infinite = corners.copy(), points.max(axis=0), np.iinfo(np.int64).max
    step = int(np.gcd.reduce(points, axis=None))
    units = step * np.eye(points.shape[1], dtype=np.int64)
    moves = [move * unit for unit in units for move in (0, -3, -2, -1, 1, 2, 3)]

    def row_sizes(corner: Integers) -> Integers:
        """The positions that a row of each point takes in batches of a corner's lengths."""
        return np.where((points <= corner).all(axis=1), corner.sum(), infinite)

    def total_cost(number: int, corner: Integers, others: Integers, best_other: Integers) -> float:
        """The cost of all batches if corner `number` were moved here."""
        sizes = row_sizes(corner)
        if (corner < step).any() or (corner > top).any() or (np.minimum(sizes, others) == infinite).any():
            return np.inf
        assigned = np.where(sizes <= others, number, best_other)
        members = np.bincount(assigned, weights=counts, minlength=len(corners)).astype(np.int64)
        moved = corners.copy()
        moved[number] = corner
        return float(_cost(members, moved, batch_tokens).sum())

    sizes = np.stack([row_sizes(corner) for corner in corners])  # (corners, points)
    for _ in range(sweeps):
        before = corners.copy()
        for number in range(len(corners)):
            sizes[number] = infinite
            best_other = sizes.argmin(axis=0)
            others = sizes.min(axis=0)
            costs = [total_cost(number, corners[number] + move, others, best_other) for move in moves]
            corners[number] += moves[int(np.argmin(costs))]
            sizes[number] = row_sizes(corners[number])
        if (corners == before).all():
            break
    return corners


def _cost(count: Integers, corner: Integers, batch_tokens: int) -> Integers:
    """The positions that `count` items take in batches of these lengths, plus a tenth of a full batch per batch.

    The tenth stands for the fixed cost of a training step, so that tiny batches are avoided.
    """
    batches = np.maximum(-(-count // (batch_tokens // corner.max(axis=-1))), 1)
    rows = -(-count // batches)
    return np.where(count > 0, batches * (rows * corner.sum(axis=-1) + batch_tokens * corner.shape[-1] // 10), 0)
