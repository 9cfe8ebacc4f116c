"""The processes of a run, as the trainer and the commands see them.

A single process is a `ProcessGroup` of size one, whose collectives return their own argument. Several processes,
started by torchrun or by `--processes`, form a `TorchProcessGroup` (multi_process.py), which communicates. Callers use
the same methods in both cases and never ask which of the two they have.

All processes must call the same collectives in the same order. A process that fails simply exits: the others notice at
their next collective and exit with a `LostPeerError`.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from regard.errors import UserError

T = TypeVar("T")
LAUNCH_ADVICE = "start several processes with torchrun or --processes, or unset RANK to run a single one"
"""What to do if torchrun's variables are set but the other processes are missing."""


class LostPeerError(Exception):
    """Another process of the run exited, or did not answer in time."""


class ProcessGroup:
    """A single process."""

    rank: int = 0
    size: int = 1

    @property
    def is_rank0(self) -> bool:
        """Whether this is the process that prints and writes files."""
        return self.rank == 0

    def shard(self, items: Sequence[T]) -> list[T]:
        """This process' items: every `size`-th, starting at `rank`."""
        return list(items[self.rank :: self.size])

    def gather_interleaved(self, shard: Sequence[T]) -> list[T]:
        """The results for every process' `shard`, in the original order of the items. JSON data only."""
        shards = self.all_gather_object(list(shard))
        items: list[T] = [item for each in shards for item in each]
        for rank, each in enumerate(shards):
            items[rank :: self.size] = each
        return items

    def all_gather_object(self, value: Any) -> list[Any]:
        """The JSON value of every process, by rank."""
        return [value]

    def all_gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """The integers of every process, by rank; cheap enough for every step."""
        return [list(numbers)]

    def all_reduce(self, numbers: Sequence[float]) -> list[float]:
        """Numbers summed over all processes."""
        return list(numbers)

    def any(self, condition: bool) -> bool:
        """Whether the condition holds in at least one process."""
        return condition

    def broadcast_from_rank0(self, make: Callable[[], T]) -> T:
        """Call `make` on rank 0 and return its JSON value in every process, however long it takes."""
        return make()

    def rank0_first(self, make: Callable[[], T]) -> T:
        """Call `make` in every process, on rank 0 before the others, so that they find the files it wrote."""
        return make()

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Copy rank 0's values into every process' tensors."""

    @contextlib.contextmanager
    def detect_lost_peers(self) -> Iterator[None]:
        """Raise a `LostPeerError` for communication errors that a lost process causes."""
        yield

    def claim_error_report(self) -> bool:
        """Whether this process is the first to report why the run ends: one message is enough."""
        return True

    def destroy(self) -> None:
        """Leave the group; no more collectives follow."""


SINGLE_PROCESS = ProcessGroup()


def world_size() -> int:
    """How many processes were started together, by torchrun or by `--processes`; 1 for a process on its own."""
    try:
        return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    except ValueError:
        raise UserError(f"WORLD_SIZE is {os.environ['WORLD_SIZE']!r}; torchrun sets it to a number.") from None


def init_process_group(device: torch.device, timeout: float) -> ProcessGroup:
    """The group this process was started in. A peer that does not answer within `timeout` seconds counts as lost."""
    if world_size() == 1:
        return SINGLE_PROCESS
    from regard.train.distributed.multi_process import TorchProcessGroup

    return TorchProcessGroup.from_environment(device, timeout)
