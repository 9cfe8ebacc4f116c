"""Hardware to train on: what named machines can do, and what this one is."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from regard.errors import UserError


@dataclass(frozen=True)
class Hardware:
    """One device: FLOP/s of large matmuls in float32 and bfloat16, memory in bytes and its bandwidth in bytes/s.

    A `memory` of 0 is unknown. The pairs are for a compiled and for an eager step: `memory_passes` is how often all
    that is saved for backward goes through memory (norms, dropout, softmax and loss are bound by it), `launch_seconds`
    the least time of a sublayer's forward and backward, because its kernels must be launched. Their values, and
    `ACHIEVED_FLOPS`, were fitted to a handful of measured steps on an H200 and a CPU with 2 cores (see the tests).
    """

    name: str
    float32_flops: float
    bfloat16_flops: float
    bandwidth: float
    memory: int
    memory_passes: tuple[int, int] = (2, 10)
    launch_seconds: tuple[float, float] = (0.2e-3, 2.5e-3)
    supports_cuda_graphs: bool = True
    device: Literal["cuda", "cpu"] = "cuda"
    """Whose kernels decide what is saved for backward."""
    workspace: int = 0
    """Bytes that cuBLAS allocates per thread and stream, by PyTorch's default."""
    interconnect: float = 1.25e9
    """Bytes/s that each of several processes can send: a network of 10 Gbit/s, unless there is something better. NVLink
    and PCI Express figures are from data sheets, not measured."""


_GIB = 1 << 30
_MIN_SIDE = 64
"""The smallest matrices that a device is timed with."""
_HOPPER: dict[str, Any] = {"workspace": 32 << 20, "interconnect": 450e9}
_CPU: dict[str, Any] = {
    "memory_passes": (4, 40),  # few threads for what is not a matmul
    "launch_seconds": (0.0, 0.5e-3),
    "supports_cuda_graphs": False,
    "device": "cpu",
}


def _before_hopper(interconnect: float) -> dict[str, Any]:
    return {"workspace": (8 << 20) + (128 << 10), "interconnect": interconnect}


# Dense data-sheet figures, float32 without TF32. The h200 is as measured instead (its data sheet says 67e12, 989e12 and
# 4.8e12), and so are float32 and bandwidth of cpu-2-cores, whose bfloat16 is taken to be no faster.
_KNOWN: tuple[tuple[str, float, float, float, int, dict[str, Any]], ...] = (
    # name, float32 and bfloat16 FLOP/s, bandwidth, memory in GiB
    ("h200", 49e12, 770e12, 4.22e12, 139, _HOPPER),
    ("h100", 67e12, 989e12, 3.35e12, 79, _HOPPER),  # SXM
    ("a100", 19.5e12, 312e12, 2.04e12, 79, _before_hopper(300e9)),  # 80 GB
    ("rtx-4090", 82.6e12, 165e12, 1.01e12, 23, _before_hopper(32e9)),
    ("t4", 8.1e12, 8.1e12, 0.32e12, 14, _before_hopper(16e9)),  # fast in float16, not in bfloat16
    ("cpu-2-cores", 148e9, 148e9, 29e9, 8, _CPU),
)
HARDWARE: dict[str, Hardware] = {
    name: Hardware(name, float32, bfloat16, bandwidth, memory * _GIB, **more)
    for name, float32, bfloat16, bandwidth, memory, more in _KNOWN
}


def detect_hardware(device: torch.device) -> Hardware:
    """The best guess for a device of this machine: known by its name, or else timed for some tenths of a second."""
    name, memory = f"this {device.type}", device_memory(device)
    more = _CPU if device.type == "cpu" else {"supports_cuda_graphs": device.type == "cuda"}
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        name_parts = set(name.lower().replace("-", " ").split())
        for known in HARDWARE.values():
            if set(known.name.split("-")) <= name_parts and "laptop" not in name_parts:
                return replace(known, memory=memory)
    side = 1024 if device.type == "cpu" else 4096
    while True:
        try:
            float32_flops, bfloat16_flops, bandwidth = _measure(device, side)
            return Hardware(name, float32_flops, bfloat16_flops, bandwidth, memory, **more)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if side <= _MIN_SIDE:
                raise UserError(
                    f"{name} has no memory left to work with; end other programs that use it, or choose another device."
                ) from None
        side //= 4  # the memory may be full of the model that is about to be trained


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _measure(device: torch.device, side: int) -> tuple[float, float, float]:
    """FLOP/s in float32 and bfloat16, and bytes/s, with matrices of this size."""
    generator = torch.Generator(device).manual_seed(0)  # its own: a run's random numbers must not depend on this
    float32 = torch.randn(side, side, device=device, generator=generator)
    bfloat16 = float32.bfloat16()
    source, copy = float32.repeat(32, 1), float32.repeat(32, 1)  # larger than any cache
    return (
        2 * side**3 / _seconds(lambda: float32 @ float32),
        2 * side**3 / _seconds(lambda: bfloat16 @ bfloat16),
        2 * source.nbytes / _seconds(lambda: copy.copy_(source)),  # read and written
    )


def device_memory(device: torch.device) -> int:
    """The memory of a device of this machine in bytes; 0 if it is unknown."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if device.type == "cpu" and hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 0


def _seconds(function: Callable[[], Tensor], budget: float = 0.08) -> float:
    """The shortest time of a call, over as many calls as fit the budget."""
    function().sum().item()  # warm-up
    times: list[float] = []
    while sum(times) < budget:
        start = time.perf_counter()
        function()[0, 0].item()  # reading a number synchronizes with the device
        times.append(time.perf_counter() - start)
    return min(times)
