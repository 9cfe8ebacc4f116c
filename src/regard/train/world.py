"""The processes that work together, as the training loop and the commands see them.

One process alone is a `World` of size one, in which every question has a plain answer. Several processes, started by
torchrun or by `--processes`, are `Together` (together.py), which answers the same questions by asking the others. What
runs in one therefore runs in many, and nobody asks which of the two it is in.

All processes must ask the same questions in the same order. One that fails just ends: the others notice when they next
ask, and end with a `LostError`.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from regard.errors import UserError

Thing = TypeVar("Thing")
ADVICE = "start several processes by torchrun or --processes, or unset RANK to work with one"
"""What to do where the variables of torchrun are there, and others of its processes are not."""


class LostError(Exception):
    """Another process of the run has ended, or did not answer in time."""


class World:
    """One process by itself."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one process that prints and writes."""
        return self.rank == 0

    def share(self, things: Sequence[Thing]) -> list[Thing]:
        """What of some things is for this process: every `size`-th."""
        return list(things[self.rank :: self.size])

    def whole(self, mine: Sequence[Thing]) -> list[Thing]:
        """What was made of each process' share, in the order of the things; plain data only."""
        parts = self.gather(list(mine))
        together: list[Thing] = [thing for part in parts for thing in part]
        for rank, part in enumerate(parts):
            together[rank :: self.size] = part
        return together

    def gather(self, plain: Any) -> list[Any]:
        """Plain data of each process, by rank."""
        return [plain]

    def each(self, numbers: Sequence[int]) -> list[list[int]]:
        """Some numbers of each process, by rank: `gather` for what is asked at every step."""
        return [list(numbers)]

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Numbers added up over all processes."""
        return list(numbers)

    def any(self, answer: bool) -> bool:
        """Whether it is true for one of the processes at least."""
        return answer

    def from_first(self, make: Callable[[], Thing]) -> Thing:
        """What the first process makes, plain data, for all. The others wait for as long as it takes."""
        return make()

    def in_turn(self, make: Callable[[], Thing]) -> Thing:
        """Each process makes it for itself; the first before the others, which find what it left on the disk."""
        return make()

    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """The first process' values into everybody's tensors."""

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Errors that come of a lost process become a `LostError`."""
        yield

    def may_speak(self) -> bool:
        """Whether nobody else has said yet why the run ends: one sentence is enough."""
        return True

    def leave(self) -> None:
        """Nothing more will be asked."""


ALONE = World()


def joined_size() -> int:
    """How many processes this one was started with, by torchrun or by us; 1 where it was started by itself."""
    try:
        return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    except ValueError:
        raise UserError(f"WORLD_SIZE is {os.environ['WORLD_SIZE']!r}; torchrun sets it to a number.") from None


def join(device: torch.device, timeout: float) -> World:
    """The world this process was started in. `timeout`: seconds after which one that does not answer is lost."""
    if joined_size() == 1:
        return ALONE
    from regard.train.together import Together

    return Together.from_environment(device, timeout)
