"""Work beside the main line of a backward pass, on a second stream of a GPU.

What flows back from layer to layer is made by one kernel after the other. The gradients of weights hang off that line:
nobody waits for them before the optimiser. Computed on a stream of their own they fill the device where the main line
leaves it half idle, between kernels and in those that only move memory. What they read must not be given to others
until they have read it. So the last few of them are remembered, and the main line waits for one that is to be
forgotten, which by then is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

_REMEMBERED = 12
"""How many tasks may be under way: about those of two layers."""


class Aside:
    """A second stream, and what is under way on it."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self._under_way: deque[tuple[torch.cuda.Event, tuple[Tensor, ...]]] = deque()
        self._seen: set[int] = set()

    def do(self, work: Callable[..., Tensor], *given: Tensor, parameter: Tensor) -> Tensor:
        """What some work makes of tensors that are ready on the main line: a parameter's gradient, ready after `wait`.

        A parameter that is used twice has its gradients added up on the main line, which then has to wait for them.
        """
        if parameter.data_ptr() in self._seen:
            self._catch_up()
            return work(*given)
        self._seen.add(parameter.data_ptr())
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            made = work(*given)
            done = torch.cuda.Event()
            done.record()
        self._under_way.append((done, given))
        while len(self._under_way) > _REMEMBERED:
            self._forget()
        return made

    def wait(self) -> None:
        """Let the main line go on when all is done; what follows is another pass."""
        self._catch_up()
        self._seen.clear()

    def _catch_up(self) -> None:
        while self._under_way:
            self._forget()

    def _forget(self) -> None:
        done, _ = self._under_way.popleft()
        torch.cuda.current_stream(self.stream.device).wait_event(done)


_ASIDES: dict[torch.device, Aside] = {}
_IN_USE: list[Aside] = []


class beside:  # noqa: N801 (reads as a word in a `with`)
    """Within it, gradients of weights on a CUDA device are computed aside; at its end all of them are ready."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __enter__(self) -> None:
        if self._device.type == "cuda":
            _IN_USE.append(_ASIDES.setdefault(self._device, Aside(self._device)))

    def __exit__(self, *_: object) -> None:
        if self._device.type == "cuda":
            _IN_USE.pop().wait()


def aside(work: Callable[..., Tensor], *given: Tensor, parameter: Tensor) -> Tensor:
    """Some work for the gradient of a parameter: aside where that is asked for, if the gradient ends there."""
    if not _IN_USE or not parameter.is_leaf:
        return work(*given)
    return _IN_USE[-1].do(work, *given, parameter=parameter)
