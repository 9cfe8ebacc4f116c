"""A `ProcessGroup` of several processes, on top of torch.distributed: gloo between CPUs, NCCL between GPUs.

Control data (counts, messages, JSON) always travels over gloo, so that exchanging it never synchronizes a GPU. A
collective that is not answered within the timeout ends the run. Waits that may be long (while rank 0 reads a corpus)
wait for a key in the rendezvous store instead, which has no time limit.
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
from regard.train.distributed.process_group import LAUNCH_ADVICE, LostPeerError, ProcessGroup, T

_STORE_TIMEOUT = timedelta(days=30)
_RENDEZVOUS_SECONDS = 600.0
"""The longest wait for all processes to start, even if `timeout` is longer."""
_COMMUNICATION_MARKS = ("gloo", "nccl", "connection closed", "connection reset", "broken pipe", "socket")
_LOST_MARKS = ("closed", "reset", "refused", "broken pipe", "socket", "timed out", "timeout", "remote", "aborted")
_CAUSE_CHARACTERS = 500
"""How much of an error's text is shown: NCCL adds a stack trace."""


class TorchProcessGroup(ProcessGroup):
    """One of several processes that found each other through a store."""

    def __init__(self, store: Any, rank: int, size: int, *, device: torch.device, timeout: float) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self._waits = 0
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        with self.detect_lost_peers():
            prefix = _agree_on_prefix(store, rank, size, min(timeout, _RENDEZVOUS_SECONDS))
            self._store: Any = distributed.PrefixStore(prefix, store)  # type: ignore[attr-defined]
            distributed.init_process_group(
                backend, store=self._store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout)
            )

    @classmethod
    def from_environment(cls, device: torch.device, timeout: float) -> "TorchProcessGroup":
        """The group that torchrun's environment variables describe."""
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK") if name not in os.environ]
        if missing:
            raise UserError(f"RANK is set but not {missing[0]}; {LAUNCH_ADVICE}.")
        seconds = min(timeout, _RENDEZVOUS_SECONDS)
        try:
            store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=seconds)))
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"The processes did not find each other within {seconds:g} seconds ({reason}); {LAUNCH_ADVICE}."
            ) from None
        return cls(store, rank, size, device=device, timeout=timeout)

    def all_gather_object(self, value: Any) -> list[Any]:
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [size for (size,) in self.all_gather([len(text)])]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(text)] = text
        gathered = [torch.empty_like(padded) for _ in sizes]
        with self.detect_lost_peers():
            distributed.all_gather(gathered, padded)
        return [json.loads(each[:size].numpy().tobytes()) for each, size in zip(gathered, sizes, strict=True)]

    def all_gather(self, numbers: Sequence[int]) -> list[list[int]]:
        tensor = torch.tensor(numbers, dtype=torch.int64)
        gathered = [torch.empty_like(tensor) for _ in range(self.size)]
        with self.detect_lost_peers():
            distributed.all_gather(gathered, tensor)
        return [each.tolist() for each in gathered]

    def all_reduce(self, numbers: Sequence[float]) -> list[float]:
        total = torch.tensor(numbers, dtype=torch.float64)
        with self.detect_lost_peers():
            distributed.all_reduce(total)
        sums: list[float] = total.tolist()
        return sums

    def any(self, condition: bool) -> bool:
        return self.all_reduce([condition])[0] > 0

    def broadcast_from_rank0(self, make: Callable[[], T]) -> T:
        key = self._next_key()
        if not self.is_rank0:
            message = json.loads(self._wait(key))
            if "error" in message:
                raise UserError(message["error"])
            value: T = message["value"]
            return value
        try:
            value = make()
        except UserError as error:
            self._set(key, {"error": str(error)})
            raise
        self._set(key, {"value": value})
        return value

    def rank0_first(self, make: Callable[[], T]) -> T:
        made: list[T] = []
        self.broadcast_from_rank0(lambda: made.append(make()))
        if not self.is_rank0:
            made.append(make())
        key = self._next_key()
        self._set(f"{key}/{self.rank}", None)
        for rank in range(self.size):
            self._wait(f"{key}/{rank}")
        return made[0]

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        with self.detect_lost_peers():
            for tensor in tensors:
                distributed.broadcast(tensor, src=0)

    @contextlib.contextmanager
    def detect_lost_peers(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            explained = explain_communication_error(error, self.timeout)
            if explained is None:
                raise
            raise explained from error

    def claim_error_report(self) -> bool:
        try:
            return int(self._store.add("error reports", 1)) == 1
        except RuntimeError:  # the store was hosted by the process that was lost
            return True

    def destroy(self) -> None:
        with contextlib.suppress(RuntimeError):
            distributed.destroy_process_group()

    def _next_key(self) -> str:
        self._waits += 1
        return f"wait {self._waits}"

    def _set(self, key: str, value: Any) -> None:
        with self.detect_lost_peers():
            self._store.set(key, json.dumps(value))

    def _wait(self, key: str) -> bytes:
        with self.detect_lost_peers():
            self._store.wait([key], _STORE_TIMEOUT)
            value: bytes = self._store.get(key)
            return value


def _agree_on_prefix(store: Any, rank: int, size: int, timeout: float) -> str:
    """A key prefix that is the same in all processes and was never used in this store before.

    torchrun keeps its store when it restarts processes, along with every key that their predecessors set. So each
    process announces itself under a random name. Rank 0 answers every announcement it finds with the prefix, until all
    processes have confirmed it.
    """
    if rank == 0:
        prefix, missing = uuid4().hex, set(range(1, size))
        deadline = time.monotonic() + timeout
        while missing:
            for other in sorted(missing):
                if store.check([f"hello/{other}"]):
                    store.set(f"answer/{store.get(f'hello/{other}').decode()}", prefix)
                if store.check([f"{prefix}/{other}"]):
                    missing.remove(other)
            if time.monotonic() > deadline:
                raise LostPeerError(f"process {min(missing)} of {size} did not start within {timeout:g} seconds")
            time.sleep(0.02)
        return prefix
    name = uuid4().hex
    store.set(f"hello/{rank}", name)
    store.wait([f"answer/{name}"], timedelta(seconds=timeout))
    prefix = str(store.get(f"answer/{name}").decode())
    store.set(f"{prefix}/{rank}", "")
    return prefix


def explain_communication_error(error: RuntimeError, timeout: float) -> Exception | None:
    """What an error of torch.distributed, gloo or NCCL (plain `RuntimeError`s) means; None for any other error.

    A lost process shows as a broken connection or a timeout. Everything else (two processes on one GPU, an unknown
    network interface, a GPU without memory) is for the user to solve. Both keep the original text.
    """
    text = str(error).lower()
    if not (isinstance(error, distributed.DistError) or any(mark in text for mark in _COMMUNICATION_MARKS)):
        return None
    cause = " ".join(line.strip() for line in str(error).splitlines() if line.strip())[:_CAUSE_CHARACTERS].rstrip(".")
    if any(mark in text for mark in _LOST_MARKS):
        return LostPeerError(
            f"another process of this run exited, or did not answer within {timeout:g} seconds ({cause})"
        )
    return UserError(
        f"The processes of this run cannot communicate ({cause}); check the devices and the network that they use, or "
        "use a single process."
    )
