"""Rows to read, and what is asked of them: the one kind of batch for language models, gaps, labels and tags."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from regard.errors import UserError


@dataclass(frozen=True)
class RowBatch:
    """Rows of ids padded on the right, and an answer for each cell, or for each row."""

    tokens: Tensor  # (rows, length)
    wanted: Tensor  # (rows, length) or (rows,): the right answers; below 0, and behind a row's length, none is asked
    lengths: Tensor  # (rows,): 0 for an empty row
    documents: Tensor | None  # (rows, length): which document of its row a token belongs to, -1 for padding
    count: int
    """How many answers are asked, known without asking the device."""
    epoch: int = 0
    number: int = 0  # place in the epoch's order, counted over all ranks

    @property
    def shape(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(tensor.shape) for tensor in self._tensors)

    @property
    def positions(self) -> Tensor:
        """Where in its document each token stands, as the model itself counts.  # (rows, length)"""
        place = torch.arange(self.tokens.shape[1], device=self.tokens.device).expand_as(self.tokens)
        if self.documents is None:
            return place
        begins = torch.ones_like(self.tokens, dtype=torch.bool)
        begins[:, 1:] = self.documents[:, 1:] != self.documents[:, :-1]
        return place - torch.where(begins, place, 0).cummax(dim=1).values

    def split(self, parts: int) -> list["RowBatch"]:
        """The same rows in up to `parts` batches of about as many rows, for a machine too small for all at once."""
        rows = -(-len(self.lengths) // parts)
        return [self._rows(first, first + rows) for first in range(0, len(self.lengths), rows)]

    def repeated(self, times: int) -> "RowBatch":
        """The same rows so many times, one whole batch behind the other."""
        return (
            self
            if times == 1
            else replace(self._each(lambda tensor: torch.cat([tensor] * times)), count=self.count * times)
        )

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "RowBatch":
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "RowBatch":
        return self._each(Tensor.pin_memory)

    def copy_from(self, other: "RowBatch") -> None:
        """Take over the contents of a batch of the same shape, in place."""
        for mine, theirs in zip(self._tensors, other._tensors, strict=True):
            mine.copy_(theirs, non_blocking=True)

    @property
    def _tensors(self) -> tuple[Tensor, ...]:
        given = (self.tokens, self.wanted, self.lengths)
        return given if self.documents is None else (*given, self.documents)

    def _rows(self, first: int, last: int) -> "RowBatch":
        part = self._each(lambda tensor: tensor[first:last])
        return replace(part, count=asked(part.wanted, part.lengths))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "RowBatch":
        return replace(
            self,
            tokens=change(self.tokens),
            wanted=change(self.wanted),
            lengths=change(self.lengths),
            documents=None if self.documents is None else change(self.documents),
        )


def asked(wanted: Tensor, lengths: Tensor) -> int:
    """How many answers are wanted."""
    asked = wanted >= 0
    if wanted.dim() == 2:
        asked = asked & (torch.arange(wanted.shape[1], device=wanted.device) < lengths[:, None])
    return int(asked.sum())


AnySource = TypeVar("AnySource", bound="Source")


class Source(Protocol):
    """Batches in epochs: a `TokenBatches` or an `EpochBatches`."""

    @property
    def fewest_rows(self) -> int: ...

    @property
    def report(self) -> Any: ...

    def __len__(self) -> int: ...

    def share(self, rank: int, ranks: int) -> Self: ...

    def epoch(self) -> Iterator[Any]: ...

    def epochs(self) -> Iterator[Any]: ...

    def skip(self) -> None: ...

    def state(self) -> dict[str, int | str]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class ChangedBatches(Generic[AnySource]):
    """The batches of a `source`, each made into rows with something asked of them.

    What `change` makes of a batch may depend on the batch (its epoch and number too) and on nothing else. `key` tells
    apart changes that would make different ones: a saved position is refused where it differs.
    """

    def __init__(self, source: AnySource, change: Callable[[Any], RowBatch], key: str = "") -> None:
        self.source = source
        self._change = change
        self._key = key

    @property
    def fewest_rows(self) -> int:
        return self.source.fewest_rows

    @property
    def report(self) -> Any:
        """What the source has to say."""
        return self.source.report

    def __len__(self) -> int:
        return len(self.source)

    def share(self, rank: int, ranks: int) -> "ChangedBatches[AnySource]":
        """The share of one rank, from the present position on."""
        return ChangedBatches(self.source.share(rank, ranks), self._change, self._key)

    def epoch(self) -> Iterator[RowBatch]:
        """What is left of the present epoch."""
        return map(self._change, self.source.epoch())

    def epochs(self) -> Iterator[RowBatch]:
        """Batches without end."""
        return map(self._change, self.source.epochs())

    def skip(self) -> None:
        """Pass over the next batch without making it."""
        self.source.skip()

    def state(self) -> dict[str, int | str]:
        """Where the next batch is, as plain data."""
        return self.source.state() | {"asked": self._key}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with the batch that was next when `state` was taken."""
        if state.get("asked") != self._key:
            raise UserError(
                "What is asked of the data has changed since this position was saved, so training cannot go on from "
                "it; use the same settings, or start a new run from the old weights."
            )
        self.source.restore(state)
