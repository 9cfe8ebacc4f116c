"""What a model is trained on: batch shapes and how many of them."""

import math
from dataclasses import dataclass, replace

from regard.errors import UserError


@dataclass(frozen=True)
class BatchShape:
    """The shape of one forward pass, padding included: `batch_size` rows of source and target tokens.

    Models without a decoder read their input as the target; only an encoder–decoder has a source.
    """

    batch_size: int
    target_length: int
    source_length: int = 0
    predicted_tokens: int | None = None
    """Masked LM: how many tokens of each row are predicted; None means all of them."""


@dataclass(frozen=True)
class Workload:
    """What is trained on: `steps` times `grad_accumulation` micro-batches.

    Sizes are those of a micro-batch of mean size, padding included; see `BatchShape` for which lengths a model has.
    """

    batch_size: int
    target_length: int
    source_length: int = 0
    steps: int = 1
    grad_accumulation: int = 1
    batch_tokens: int | None = None
    """The most tokens per side of a micro-batch (train.batch_tokens) where sizes differ: memory must hold that one."""
    forward_passes: int = 1
    """How often each micro-batch goes through the model at once: 2 for R-Drop."""
    predicted_tokens: int | None = None
    """Masked LM: how many tokens of each row are predicted; None means all of them."""

    def __post_init__(self) -> None:
        sizes = (self.batch_size, self.target_length, self.steps, self.grad_accumulation, self.forward_passes)
        if min(sizes) < 1 or self.source_length < 0:
            raise UserError(
                "A workload needs at least 1 for batch_size, target_length, steps, grad_accumulation and "
                f"forward_passes; found {self}."
            )
        if self.batch_tokens is not None and self.batch_tokens < self.max_length:
            raise UserError(
                f"A row of {self.max_length} tokens does not fit a batch of {self.batch_tokens} tokens per side."
            )

    @property
    def shape(self) -> BatchShape:
        """The shape of one forward pass; R-Drop's second copy of each row counts as another row."""
        rows = self.batch_size * self.forward_passes
        return BatchShape(rows, self.target_length, self.source_length, self.predicted_tokens)

    @property
    def max_length(self) -> int:
        """The length of the longer side."""
        return max(self.source_length, self.target_length)

    @property
    def largest(self) -> "Workload":
        """The same with the largest micro-batch: as many rows as `batch_tokens` allows, both sides at `max_length`."""
        if self.batch_tokens is None:
            return self
        length = self.max_length
        return replace(
            self,
            batch_size=self.batch_tokens // length,
            target_length=length,
            source_length=length if self.source_length else 0,
        )

    def per_process(self, processes: int) -> "Workload":
        """What each of several processes does of a step whose total size stays the same.

        Whole micro-batches are dealt out where their number divides evenly; otherwise each of them is split. Rows that
        do not divide evenly are rounded up: the other processes wait for the one with more.
        """
        if self.grad_accumulation % processes == 0:
            return replace(self, grad_accumulation=self.grad_accumulation // processes)
        tokens = self.batch_tokens
        split = None if tokens is None else max(self.max_length, math.ceil(tokens / processes))
        return replace(self, batch_size=math.ceil(self.batch_size / processes), batch_tokens=split)
