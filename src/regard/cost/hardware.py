"""Machines to train on: what they can do, and which one this is."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Hardware:
    """A machine to train on: FLOP/s of large matrix products in `fp32` and `bf16`, memory and its bandwidth in bytes.

    A `memory` of 0 is unknown. The pairs are for a compiled and for an eager step: `passes` is how often all that is
    kept for backward goes through memory (norms, dropout, softmax and loss wait for nothing else), `pause` how many
    seconds a sublayer takes at least, forward and backward, because its kernels must be launched. Their values, and
    `REACHED`, were fitted to a handful of measured steps on an H200 and a CPU of 2 cores (see the tests).
    """

    name: str
    fp32: float
    bf16: float
    bandwidth: float
    memory: int
    passes: tuple[int, int] = (2, 10)
    pause: tuple[float, float] = (0.2e-3, 2.5e-3)
    captures: bool = True
    """Whether a step's launches can be recorded and replayed, as CUDA can."""
    device: Literal["cuda", "cpu"] = "cuda"
    """Whose rules say what is kept for backward."""
    workspace: int = 0
    """Bytes that the library of matrix products sets aside for each thread and stream, by PyTorch's default."""
    link: float = 1.25e9
    """Bytes a second that each of several processes can send: a network of 10 Gbit/s, unless something better is there.
    Data-sheet figures of one machine (NVLink or PCI Express), not measured."""


_GIB = 1 << 30
_HOPPER: dict[str, Any] = {"workspace": 32 << 20, "link": 450e9}
_ON_CPU: dict[str, Any] = {
    "passes": (4, 40),
    "pause": (0.0, 0.5e-3),
    "captures": False,
    "device": "cpu",
}  # few threads for what is not a matrix product


def _older(link: float) -> dict[str, Any]:
    return {"workspace": (8 << 20) + (128 << 10), "link": link}


# Dense data-sheet figures of the makers, float32 without TensorFloat. But h200 is as measured (its data sheet says
# 67e12, 989e12 and 4.8e12), and so are fp32 and bandwidth of cpu-2-cores, whose bf16 is taken to be no faster.
HARDWARE: dict[str, Hardware] = {
    machine.name: machine
    for machine in (
        Hardware("h200", fp32=49e12, bf16=770e12, bandwidth=4.22e12, memory=139 * _GIB, **_HOPPER),
        Hardware("h100", fp32=67e12, bf16=989e12, bandwidth=3.35e12, memory=79 * _GIB, **_HOPPER),  # SXM
        Hardware("a100", fp32=19.5e12, bf16=312e12, bandwidth=2.04e12, memory=79 * _GIB, **_older(300e9)),  # of 80 GB
        Hardware("rtx-4090", fp32=82.6e12, bf16=165e12, bandwidth=1.01e12, memory=23 * _GIB, **_older(32e9)),
        # fast in fp16, not in bf16
        Hardware("t4", fp32=8.1e12, bf16=8.1e12, bandwidth=0.32e12, memory=14 * _GIB, **_older(16e9)),
        Hardware("cpu-2-cores", fp32=148e9, bf16=148e9, bandwidth=29e9, memory=8 * _GIB, **_ON_CPU),
    )
}


def this_hardware(device: torch.device) -> Hardware:
    """The best guess for a device of this machine: known by its name, or else timed for some tenths of a second."""
    name, memory, others = (
        f"this {device.type}",
        0,
        _ON_CPU if device.type == "cpu" else {"captures": device.type == "cuda"},
    )
    if device.type == "cuda":
        name, memory = torch.cuda.get_device_name(device), int(torch.cuda.get_device_properties(device).total_memory)
        words = set(name.lower().replace("-", " ").split())
        for known in HARDWARE.values():
            if set(known.name.split("-")) <= words and "laptop" not in words:
                return replace(known, memory=memory)
    elif device.type == "cpu" and hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    side = 1024 if device.type == "cpu" else 4096
    dice = torch.Generator(device).manual_seed(0)  # its own: a run's random numbers must not depend on this
    full = torch.randn(side, side, device=device, generator=dice)
    half = full.bfloat16()
    long, copy = full.repeat(32, 1), full.repeat(32, 1)  # too long for caches
    return Hardware(
        name,
        fp32=2 * side**3 / _seconds(lambda: full @ full),
        bf16=2 * side**3 / _seconds(lambda: half @ half),
        bandwidth=2 * long.nbytes / _seconds(lambda: copy.copy_(long)),  # read and written
        memory=memory,
        **others,
    )


def _seconds(work: Callable[[], Tensor], limit: float = 0.08) -> float:
    """How long some work takes, the best of as many times as fit the limit."""
    work().sum().item()  # the first time is spent on getting ready
    times: list[float] = []
    while sum(times) < limit:
        begin = time.perf_counter()
        work()[0, 0].item()  # asking for a number waits for the device
        times.append(time.perf_counter() - begin)
    return min(times)
