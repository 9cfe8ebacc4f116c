"""Rows of which few cells are asked for, with these cells told apart: what is not asked for need not be scored.

Scores for a vocabulary are what a small model spends most on, and gaps are about a seventh of a text.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from regard.data.rows import RowBatch

_MULTIPLE = 8
"""Answers of a row are made up to a multiple of this, so that batches come in few shapes."""


def room_for(answers: int, length: int) -> int:
    """How many cells of rows of a length are told apart where some row has so many answers."""
    return min(length, -(-answers // _MULTIPLE) * _MULTIPLE)


@dataclass(frozen=True)
class AskedBatch(RowBatch):
    """Rows, and answers for some of their cells only: `wanted` is # (rows, most), -1 behind a row's last answer."""

    places: Tensor = field(kw_only=True)  # (rows, most): the cell of its row that each answer belongs to

    @classmethod
    def of(cls, batch: RowBatch, fewest: int = 1) -> Self:
        """The same with only what is asked for. There is room for `fewest` answers a row, or more where needed."""
        length = batch.wanted.shape[1]
        real = torch.arange(length) < batch.lengths[:, None]
        asked = (batch.wanted >= 0) & real  # (rows, length)
        most = room_for(max(fewest, int(asked.sum(dim=1).max())), length)
        places = (~asked).to(torch.int8).argsort(dim=1, stable=True)[:, :most]  # those asked for come first
        return cls(
            batch.tokens,
            torch.where(asked, batch.wanted, -1).gather(1, places),
            batch.lengths,
            batch.documents,
            batch.count,
            batch.epoch,
            batch.number,
            places=places,
        )

    @property
    def _tensors(self) -> tuple[Tensor, ...]:
        return (*super()._tensors, self.places)

    def _rows(self, first: int, last: int) -> "AskedBatch":
        part = self._each(lambda tensor: tensor[first:last])
        return replace(part, count=int((part.wanted >= 0).sum()))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "AskedBatch":
        changed = super()._each(change)
        assert isinstance(changed, AskedBatch)
        return replace(changed, places=change(self.places))
