"""A fixed small set of batch shapes, chosen from the lengths there are.

Compiled code wants few shapes, a short epoch wants little padding. Items are parted into at most so many buckets: the
one with the most to gain is split in two, along the side and at the length where that saves the most; then each shape
is moved a little as long as that helps. Within a bucket all batches have the same number of rows, the one that fills
them evenly (41 items at 20 rows at most become 14 + 14 + 13), so that a bucket ends with a few empty rows instead of a
nearly empty batch. All of it in whole numbers, so the same everywhere.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Shape:
    """Rows, and the padded length of each side."""

    rows: int
    lengths: tuple[int, ...]


def plan_shapes(
    kept: Integers, lengths: NDArray[Any], tokens: int, shapes: int
) -> tuple[tuple[Shape, ...], list[Integers]]:
    """Part items into buckets: a shape for each, and its items.  kept: # (items,); lengths: # (items, sides)"""
    # What follows looks at each different tuple of lengths once.
    extents = tuple(int(length) + 1 for length in lengths.max(axis=0))
    codes, counts = _count(lengths, extents)
    points = np.stack(np.unravel_index(codes, extents), axis=1)  # (points, sides)
    corners = _settle(_split(points, counts, tokens, shapes), points, counts, tokens)
    corners = corners[np.lexsort((*corners.T, corners.sum(axis=1)))]
    # An item goes to the cheapest shape it fits in; the dearest are dealt out first and then overruled.
    home = np.zeros(len(points), dtype=np.int64)
    for number in range(len(corners))[::-1]:
        home[(points <= corners[number]).all(axis=1)] = number
    members = np.empty(len(lengths), dtype=np.int32)
    for part in _parts(lengths):
        members[part] = home[np.searchsorted(codes, _codes(lengths[part], extents))]
    result, buckets = [], []
    for number in np.unique(members):
        bucket = kept[members == number]
        corner = points[home == number].max(axis=0)
        full = tokens // int(corner.max())
        rows = -(-len(bucket) // -(-len(bucket) // full))
        result.append(Shape(rows, tuple(int(length) for length in corner)))
        buckets.append(bucket)
    return tuple(result), buckets


def _parts(lengths: NDArray[Any]) -> Iterator[slice]:
    """All items, some at a time: what is made of each on the way would otherwise take ten times their own room."""
    return (slice(first, first + _CHUNK) for first in range(0, len(lengths), _CHUNK))


def _codes(lengths: NDArray[Any], extents: tuple[int, ...]) -> Integers:
    """One number for each tuple of lengths."""
    return np.asarray(np.ravel_multi_index(tuple(lengths.T.astype(np.int64)), extents), dtype=np.int64)


def _count(lengths: NDArray[Any], extents: tuple[int, ...]) -> tuple[Integers, Integers]:
    """The different codes there are, in order, and how many items have each."""
    codes, counts = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    for part in _parts(lengths):
        found, times = np.unique(_codes(lengths[part], extents), return_counts=True)
        codes, where = np.unique(np.concatenate((codes, found)), return_inverse=True)
        counts = np.bincount(where, weights=np.concatenate((counts, times))).astype(np.int64)
    return codes, counts


def _split(points: Integers, counts: Integers, tokens: int, shapes: int) -> Integers:
    """The corners (greatest lengths) of at most `shapes` groups of points, with as little padding as can be had."""

    def best(group: Integers) -> tuple[int, Integers, Integers]:
        """What the best cut of a group saves, and the two parts."""
        found = (0, group, group[:0])
        whole = int(_cost(counts[group].sum(), points[group].max(axis=0), tokens))
        for side in range(points.shape[1]):
            order = group[np.argsort(points[group, side], kind="stable")]
            cuts = np.flatnonzero(np.diff(points[order, side]))
            if not len(cuts):
                continue
            below = np.cumsum(counts[order])
            low = np.maximum.accumulate(points[order])[cuts]
            high = np.maximum.accumulate(points[order][::-1])[::-1][cuts + 1]
            saved = whole - _cost(below[cuts], low, tokens) - _cost(below[-1] - below[cuts], high, tokens)
            cut = int(np.argmax(saved))
            if saved[cut] > found[0]:
                found = (int(saved[cut]), order[: cuts[cut] + 1], order[cuts[cut] + 1 :])
        return found

    groups = [best(np.arange(len(points)))]
    while len(groups) < shapes:
        chosen = max(range(len(groups)), key=lambda number: groups[number][0])
        saved, low, high = groups[chosen]
        if saved <= 0:
            break
        groups[chosen] = best(low)
        groups.append(best(high))
    return np.stack([points[np.concatenate([low, high])].max(axis=0) for _, low, high in groups])


def _settle(corners: Integers, points: Integers, counts: Integers, tokens: int, sweeps: int = 8) -> Integers:
    """Move the corners one by one, by a few tokens on one side, as long as that makes the whole cheaper."""
    corners, top, nowhere = corners.copy(), points.max(axis=0), np.iinfo(np.int64).max
    step = int(np.gcd.reduce(points, axis=None))
    units = step * np.eye(points.shape[1], dtype=np.int64)
    moves = [move * unit for unit in units for move in (0, -3, -2, -1, 1, 2, 3)]

    def cells(corner: Integers) -> Integers:
        """What a row of each point costs in a corner."""
        return np.where((points <= corner).all(axis=1), corner.sum(), nowhere)

    def total(number: int, corner: Integers, elsewhere: Integers, next_best: Integers) -> float:
        """The cost of all, were this corner there."""
        here = cells(corner)
        if (corner < step).any() or (corner > top).any() or (np.minimum(here, elsewhere) == nowhere).any():
            return np.inf
        home = np.where(here <= elsewhere, number, next_best)
        members = np.bincount(home, weights=counts, minlength=len(corners)).astype(np.int64)
        changed = corners.copy()
        changed[number] = corner
        return float(_cost(members, changed, tokens).sum())

    costs = np.stack([cells(corner) for corner in corners])  # (corners, points)
    for _ in range(sweeps):
        before = corners.copy()
        for number in range(len(corners)):
            costs[number] = nowhere
            next_best = costs.argmin(axis=0)
            elsewhere = costs.min(axis=0)
            totals = [total(number, corners[number] + move, elsewhere, next_best) for move in moves]
            corners[number] += moves[int(np.argmin(totals))]
            costs[number] = cells(corners[number])
        if (corners == before).all():
            break
    return corners


def _cost(number: Integers, corner: Integers, tokens: int) -> Integers:
    """The cells of so many items in batches of these lengths, and a tenth of a full batch for each batch.

    The tenth stands for what a step costs however small it is, so that tiny batches do not pay.
    """
    batches = np.maximum(-(-number // (tokens // corner.max(axis=-1))), 1)
    rows = -(-number // batches)
    return np.where(number > 0, batches * (rows * corner.sum(axis=-1) + tokens * corner.shape[-1] // 10), 0)
