"""Rows of tokens with targets: the batch of language models, masked language models, classifiers and taggers."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

_MULTIPLE = 8
"""Scored positions per row are rounded up to a multiple of this, so that batches come in few shapes."""


@dataclass(frozen=True)
class RowBatch:
    """Rows of ids padded on the right, with a target for each position, or for each row."""

    tokens: Tensor  # (rows, length)
    targets: Tensor  # (rows, length) or (rows,): ignored if negative, or past a row's length
    lengths: Tensor  # (rows,): 0 for an empty row
    documents: Tensor | None  # (rows, length): which document of its row a token belongs to, -1 for padding
    count: int
    """The number of targets, known without synchronizing with the device."""
    epoch: int = 0
    index: int = 0  # position in the epoch's order, counted over all ranks

    @property
    def shape(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(tensor.shape) for tensor in self._tensors)

    @property
    def positions(self) -> Tensor:
        """The position of each token in its document, as the model counts it.  # (rows, length)"""
        column = torch.arange(self.tokens.shape[1], device=self.tokens.device).expand_as(self.tokens)
        if self.documents is None:
            return column
        begins = torch.ones_like(self.tokens, dtype=torch.bool)
        begins[:, 1:] = self.documents[:, 1:] != self.documents[:, :-1]
        return column - torch.where(begins, column, 0).cummax(dim=1).values

    def split(self, parts: int) -> list["RowBatch"]:
        """The same rows as up to `parts` microbatches of nearly equal size, for devices with too little memory."""
        rows = -(-len(self.lengths) // parts)
        return [self._rows(first, first + rows) for first in range(0, len(self.lengths), rows)]

    def repeated(self, times: int) -> "RowBatch":
        """The batch stacked on itself `times` times."""
        if times == 1:
            return self
        return replace(self._map(lambda tensor: torch.cat([tensor] * times)), count=self.count * times)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "RowBatch":
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "RowBatch":
        return self._map(Tensor.pin_memory)

    def copy_from(self, other: "RowBatch") -> None:
        """Copy the contents of a batch of the same shape into this one's tensors."""
        for mine, theirs in zip(self._tensors, other._tensors, strict=True):
            mine.copy_(theirs, non_blocking=True)

    @property
    def _tensors(self) -> tuple[Tensor, ...]:
        tensors = (self.tokens, self.targets, self.lengths)
        return tensors if self.documents is None else (*tensors, self.documents)

    def _rows(self, first: int, last: int) -> "RowBatch":
        part = self._map(lambda tensor: tensor[first:last])
        return replace(part, count=count_targets(part.targets, part.lengths))

    def _map(self, function: Callable[[Tensor], Tensor]) -> "RowBatch":
        return replace(
            self,
            tokens=function(self.tokens),
            targets=function(self.targets),
            lengths=function(self.lengths),
            documents=None if self.documents is None else function(self.documents),
        )


@dataclass(frozen=True)
class ScoredPositionsBatch(RowBatch):
    """Rows that are scored at some positions only, so that the model need not compute logits for the others.

    A small model spends most of its time on logits, and a masked language model scores about a seventh of a text.
    `targets` has the shape (rows, scored), with -1 after a row's last target.
    """

    scored_positions: Tensor = field(kw_only=True)  # (rows, scored): the position in its row of each target

    @classmethod
    def from_rows(cls, batch: RowBatch, min_scored: int = 1) -> Self:
        """Keep only the targets of a batch, with room for at least `min_scored` of them per row."""
        length = batch.targets.shape[1]
        real = torch.arange(length) < batch.lengths[:, None]
        scored = (batch.targets >= 0) & real  # (rows, length)
        size = scored_size(max(min_scored, int(scored.sum(dim=1).max())), length)
        positions = (~scored).to(torch.int8).argsort(dim=1, stable=True)[:, :size]  # the scored ones come first
        return cls(
            batch.tokens,
            torch.where(scored, batch.targets, -1).gather(1, positions),
            batch.lengths,
            batch.documents,
            batch.count,
            batch.epoch,
            batch.index,
            scored_positions=positions,
        )

    @property
    def _tensors(self) -> tuple[Tensor, ...]:
        return (*super()._tensors, self.scored_positions)

    def _rows(self, first: int, last: int) -> "ScoredPositionsBatch":
        part = self._map(lambda tensor: tensor[first:last])
        return replace(part, count=int((part.targets >= 0).sum()))

    def _map(self, function: Callable[[Tensor], Tensor]) -> "ScoredPositionsBatch":
        mapped = super()._map(function)
        assert isinstance(mapped, ScoredPositionsBatch)
        return replace(mapped, scored_positions=function(self.scored_positions))


def scored_size(targets: int, length: int) -> int:
    """The number of scored positions per row of `length`, if no row has more than `targets` targets."""
    return min(length, -(-targets // _MULTIPLE) * _MULTIPLE)


def count_targets(targets: Tensor, lengths: Tensor) -> int:
    """The number of targets that are not ignored."""
    scored = targets >= 0
    if targets.dim() == 2:
        scored = scored & (torch.arange(targets.shape[1], device=targets.device) < lengths[:, None])
    return int(scored.sum())
