"""In-memory items of chosen lengths, in place of a token store."""

import numpy as np
from numpy.typing import NDArray


class Items:
    """Items with these lengths on each side; the ids of item n are n + 1, n + 2 …"""

    def __init__(self, *lengths: list[int]) -> None:
        self.sides = tuple(f"side_{number}" for number in range(len(lengths)))
        self._lengths = {
            side: np.array(values, dtype=np.int64) for side, values in zip(self.sides, lengths, strict=True)
        }

    def lengths(self, side: str) -> NDArray[np.int64]:
        return self._lengths[side]

    def padded(
        self, side: str, items: NDArray[np.int64], rows: int, length: int, pad_id: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ids, lengths = np.full((rows, length), pad_id), np.zeros(rows, dtype=np.int64)
        for row, item in enumerate(items.tolist()):
            lengths[row] = self._lengths[side][item]
            ids[row, : lengths[row]] = item + 1 + np.arange(lengths[row])
        return ids, lengths


def items_of_lengths(lengths: list[tuple[int, ...]]) -> Items:
    return Items(*(list(side) for side in zip(*lengths, strict=True)))
