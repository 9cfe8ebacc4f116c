"""Experts under training: what each had to do in a step, and the biases that even it out.

Every pass adds to what a layer counts (`Experts.load`). After a step the loop takes the counts: for its log, and for
layers that are balanced by a bias, which then moves. Between steps nothing is counted, so a checkpoint misses nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from regard.model.experts import Experts
from regard.train.world import World


class Balance:
    """The layers with experts in a model; most models have none."""

    def __init__(self, model: nn.Module) -> None:
        self._layers = [part for part in model.modules() if isinstance(part, Experts)]

    def forget(self) -> None:
        """Start a step."""
        for layer in self._layers:
            if layer.load is not None:
                layer.load.zero_()

    @contextmanager
    def counting(self, counted: bool) -> Iterator[None]:
        """Around each pass; one that is there for other processes' sake is not `counted`."""
        before = [] if counted else [None if layer.load is None else layer.load.clone() for layer in self._layers]
        yield
        for layer, load in zip(self._layers, before, strict=False):
            if layer.load is not None:
                layer.load.copy_(torch.zeros_like(layer.load) if load is None else load)

    def settle(self, world: World) -> list[Tensor]:
        """End a step: move biases by what all processes had to do. Gives what this one had.  # (experts,) each"""
        counted = [layer for layer in self._layers if layer.load is not None]
        loads = [layer.load.clone() for layer in counted if layer.load is not None]
        moved = [(layer, load) for layer, load in zip(counted, loads, strict=True) if layer.correction is not None]
        if moved:
            together = torch.cat([load for _, load in moved])
            if world.size > 1:
                together = torch.tensor(world.sum(together.tolist()), device=together.device)
            for (layer, _), load in zip(moved, together.split([len(load) for _, load in moved]), strict=True):
                layer.correct(load)
        self.forget()
        return loads
