"""Where a run stands, and what it has counted since it last said so: the plain facts beside a checkpoint's tensors."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from regard.train.loss import Loss
from regard.train.world import World


@dataclass(frozen=True)
class Progress:
    """Where a run stands, apart from its tensors. Written into every checkpoint."""

    step: int = 0
    words: int = 0
    """Words predicted so far."""
    seconds: float = 0.0
    """Time spent training, over all sittings."""
    best: float | None = None
    best_step: int = 0
    stale: int = 0
    """Validations in a row that brought nothing better."""
    parts: int = 1
    """Into how many parts a batch is cut to fit into memory."""


class Tally:
    """Sums since the last line, kept on the device: asking for them would make it wait.

    They go into checkpoints, so that a resumed run writes the lines of one never stopped. Each process counts its own
    work; all of it comes together when it is asked for.
    """

    def __init__(self, words: int, loss: Loss | None = None, loads: Sequence[Tensor] = ()) -> None:
        self._words, self._loss, self._loads = words, loss, list(loads)
        self.start()

    def start(self) -> None:
        """Time begins to count."""
        self._began = time.perf_counter()

    def add(self, loss: Loss) -> None:
        self._loss = loss if self._loss is None else self._loss + loss

    def add_loads(self, loads: Sequence[Tensor]) -> None:
        """Tokens that went to each expert of each layer.  # (experts,) each"""
        self._loads = [one + other for one, other in zip(self._loads, loads, strict=True)] if self._loads else [*loads]

    def leave_out(self, seconds: float) -> None:
        """Time that did not go into steps."""
        self._began += seconds

    def values(self, progress: Progress, world: World) -> dict[str, float]:
        total, plain, count = self._sums(world)
        seconds = max(time.perf_counter() - self._began, 1e-9)
        return {
            "loss": total / max(count, 1.0),
            "plain_loss": plain / max(count, 1.0),
            "words_per_second": (progress.words - self._words) / seconds,
            "words": progress.words,
            "seconds": progress.seconds,
        } | self._busy(world)

    def plain(self, world: World) -> dict[str, Any]:
        """As it can be written; `read` takes it back."""
        sums = None if self._loss is None else self._sums(world)
        return {"words": self._words, "sums": sums, "loads": self._loads_of_all(world)}

    @classmethod
    def read(cls, values: Mapping[str, Any], device: torch.device, world: World) -> "Tally":
        """What all had counted; of several processes the first goes on with it, the others from zero."""
        loads = [torch.tensor(each, device=device).long() * int(world.first) for each in values.get("loads", ())]
        if values["sums"] is None:
            return cls(values["words"], loads=loads)
        total, plain, count = values["sums"] if world.first else (0, 0, 0)
        return cls(
            values["words"],
            Loss(
                torch.tensor(float(total), device=device),
                torch.tensor(float(plain), device=device),
                torch.tensor(int(count), device=device),
            ),
            loads,
        )

    def _sums(self, world: World) -> list[float]:
        assert self._loss is not None
        return world.sum([float(self._loss.total), float(self._loss.plain), float(self._loss.count)])

    def _busy(self, world: World) -> dict[str, float]:
        """The largest and the smallest share that an expert has of its layer's tokens, over all layers."""
        loads = self._loads_of_all(world)
        shares = [load / sum(layer) for layer in loads for load in layer if sum(layer)]
        return {"experts/most": max(shares), "experts/least": min(shares)} if shares else {}

    def _loads_of_all(self, world: World) -> list[list[float]]:
        """Of each layer with experts, what each of them had to do in all processes."""
        if not self._loads:
            return []
        found = iter(world.sum(torch.cat(self._loads).tolist()))
        return [list(islice(found, len(load))) for load in self._loads]
