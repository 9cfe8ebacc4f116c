"""What is trained on: batches and their shapes."""

import math
from dataclasses import dataclass, replace

from regard.errors import UserError


@dataclass(frozen=True)
class Work:
    """What is trained on: `steps` times `accumulate` micro-batches of `rows` × `source` and `rows` × `target` cells.

    The numbers are those of a micro-batch of mean size, padding included. A language model has a target only; so has a
    model that reads and does not write, for which it is what is read. `tokens` is the most cells a side can have
    (train.tokens), where batches differ: memory must hold that one.
    """

    rows: int
    target: int
    source: int = 0
    steps: int = 1
    accumulate: int = 1
    tokens: int | None = None
    passes: int = 1
    """How often each micro-batch goes through the model at once (2 for regularised dropout)."""
    asked: int | None = None
    """Of how many tokens of a row a word is asked, where gaps are filled; of all if not given."""

    def __post_init__(self) -> None:
        if min(self.rows, self.target, self.steps, self.accumulate, self.passes) < 1 or self.source < 0:
            raise UserError(f"Work needs at least 1 for rows, target, steps, accumulate and passes; found {self}.")
        if self.tokens is not None and self.tokens < self.longest:
            raise UserError(f"A row of {self.longest} cells does not fit a batch of {self.tokens} tokens a side.")

    @property
    def longest(self) -> int:
        return max(self.source, self.target)

    @property
    def largest(self) -> "Work":
        """The largest micro-batch there can be: as many rows as `tokens` allows, both sides as long as the longer."""
        if self.tokens is None:
            return self
        side = self.longest
        return replace(self, rows=self.tokens // side, target=side, source=side if self.source else 0)

    def shared(self, processes: int) -> "Work":
        """What each of some processes does of a step that stays as large.

        Whole micro-batches where they go evenly, else a part of each. Rows that do not go evenly count in full: the
        others wait for whoever has one more.
        """
        if self.accumulate % processes == 0:
            return replace(self, accumulate=self.accumulate // processes)
        tokens = None if self.tokens is None else max(self.longest, math.ceil(self.tokens / processes))
        return replace(self, rows=math.ceil(self.rows / processes), tokens=tokens)
