"""Several processes, by PyTorch's process group: gloo between CPUs, NCCL between GPUs.

Facts (counts, sentences, JSON) always travel by gloo, between CPUs: asking for them makes no GPU wait. A question is
answered within the timeout, or the run ends. A wait that may be long (while the first process reads a corpus) is one
for a key in the store that the processes met at, which has no time limit.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as distributed
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from regard.errors import UserError
from regard.train.world import ADVICE, LostError, Thing, World

_PATIENCE = timedelta(days=30)
_MEETING = 600.0
"""Seconds after which processes that did not come are not waited for, however long an answer may take later."""


class Together(World):
    """One of several processes that have met at a store."""

    def __init__(self, store: Any, rank: int, size: int, *, device: torch.device, timeout: float) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self._waits = 0
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        with self.watching():
            room = _fresh_room(store, rank, size, min(timeout, _MEETING))
            self._store: Any = distributed.PrefixStore(room, store)  # type: ignore[attr-defined]
            distributed.init_process_group(
                backend, store=self._store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout)
            )

    @classmethod
    def from_environment(cls, device: torch.device, timeout: float) -> "Together":
        """By the variables that torchrun sets."""
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK") if name not in os.environ]
        if missing:
            raise UserError(f"RANK is set but not {missing[0]}; {ADVICE}.")
        meeting = min(timeout, _MEETING)
        try:
            store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=meeting)))
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"The processes did not find each other within {meeting:g} seconds ({reason}); {ADVICE}."
            ) from None
        return cls(store, rank, size, device=device, timeout=timeout)

    def gather(self, plain: Any) -> list[Any]:
        text = torch.frombuffer(bytearray(json.dumps(plain).encode()), dtype=torch.uint8)
        sizes = [size for (size,) in self.each([len(text)])]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(text)] = text
        found = [torch.empty_like(padded) for _ in sizes]
        with self.watching():
            distributed.all_gather(found, padded)
        return [json.loads(one[:size].numpy().tobytes()) for one, size in zip(found, sizes, strict=True)]

    def each(self, numbers: Sequence[int]) -> list[list[int]]:
        mine = torch.tensor(numbers, dtype=torch.int64)
        found = [torch.empty_like(mine) for _ in range(self.size)]
        with self.watching():
            distributed.all_gather(found, mine)
        return [one.tolist() for one in found]

    def sum(self, numbers: Sequence[float]) -> list[float]:
        total = torch.tensor(numbers, dtype=torch.float64)
        with self.watching():
            distributed.all_reduce(total)
        found: list[float] = total.tolist()
        return found

    def any(self, answer: bool) -> bool:
        return self.sum([answer])[0] > 0

    def from_first(self, make: Callable[[], Thing]) -> Thing:
        key = self._new_key()
        if not self.first:
            found = json.loads(self._wait(key))
            if "problem" in found:
                raise UserError(found["problem"])
            made: Thing = found["made"]
            return made
        try:
            made = make()
        except UserError as error:
            self._tell(key, {"problem": str(error)})
            raise
        self._tell(key, {"made": made})
        return made

    def in_turn(self, make: Callable[[], Thing]) -> Thing:
        made: list[Thing] = []
        self.from_first(lambda: made.append(make()))
        if not self.first:
            made.append(make())
        key = self._new_key()
        self._tell(f"{key}/{self.rank}", None)
        for rank in range(self.size):
            self._wait(f"{key}/{rank}")
        return made[0]

    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        with self.watching():
            for tensor in tensors:
                distributed.broadcast(tensor, src=0)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if not _of_a_lost_process(error):
                raise
            raise LostError(
                f"another process of this run ended, or did not answer within {self.timeout:g} seconds"
            ) from error

    def may_speak(self) -> bool:
        try:
            return int(self._store.add("last words", 1)) == 1
        except RuntimeError:  # the store went with the process that was lost
            return True

    def leave(self) -> None:
        with contextlib.suppress(RuntimeError):
            distributed.destroy_process_group()

    def _new_key(self) -> str:
        self._waits += 1
        return f"wait {self._waits}"

    def _tell(self, key: str, plain: Any) -> None:
        with self.watching():
            self._store.set(key, json.dumps(plain))

    def _wait(self, key: str) -> bytes:
        with self.watching():
            self._store.wait([key], _PATIENCE)
            found: bytes = self._store.get(key)
            return found


def _fresh_room(store: Any, rank: int, size: int, timeout: float) -> str:
    """A name that no process has used in this store before, the same for all.

    torchrun keeps its store when it starts processes anew, with all that those before them have left in it. So each
    process says hello under a name of its own, and the first answers whatever hello it finds with the room's name,
    until all have come there.
    """
    if rank == 0:
        room, missing = uuid4().hex, set(range(1, size))
        end = time.monotonic() + timeout
        while missing:
            for other in sorted(missing):
                if store.check([f"hello/{other}"]):
                    store.set(f"answer/{store.get(f'hello/{other}').decode()}", room)
                if store.check([f"{room}/{other}"]):
                    missing.remove(other)
            if time.monotonic() > end:
                raise LostError(f"process {min(missing)} of {size} did not come within {timeout:g} seconds")
            time.sleep(0.02)
        return room
    name = uuid4().hex
    store.set(f"hello/{rank}", name)
    store.wait([f"answer/{name}"], timedelta(seconds=timeout))
    room = str(store.get(f"answer/{name}").decode())
    store.set(f"{room}/{rank}", "")
    return room


def _of_a_lost_process(error: RuntimeError) -> bool:
    """PyTorch's own kinds of it, and what gloo and NCCL say, which arrives as a plain `RuntimeError`."""
    words = ("gloo", "nccl", "connection closed", "connection reset", "broken pipe", "socket")
    return isinstance(error, distributed.DistError) or any(word in str(error).lower() for word in words)
