"""What can run here: the one place that asks which libraries are installed and what the hardware can do.

Packages are looked for without being imported, so that numba and Triton are imported only where a kernel is used.
"""

from functools import cache
from importlib.util import find_spec

import torch

from regard.errors import UserError


@cache
def has_numba() -> bool:
    return find_spec("numba") is not None


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None


@cache
def has_onednn() -> bool:
    """Whether PyTorch was built with oneDNN and has its fused linear layer."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@cache
def cpu_features() -> frozenset[str]:
    """The instruction sets that numba compiles for, such as "+avx2"."""
    from numba.core import config
    from numba.core.codegen import get_host_cpu_features

    features = get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
    return frozenset(features.split(","))


def has_vnni() -> bool:
    """Whether the CPU multiplies int8 faster than float32."""
    return ("+avx512vnni" if "+avx512f" in cpu_features() else "+avxvnni") in cpu_features()


@cache
def runs_numba(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether numba kernels take tensors like this: all of them are for float32 on a CPU."""
    return device.type == "cpu" and dtype == torch.float32 and has_numba()


@cache
def runs_triton(device: torch.device) -> bool:
    """Whether Triton kernels run on this device. Tests replace this function to run them in Triton's interpreter."""
    return device.type == "cuda" and has_triton()


def select_device(name: torch.device | str, option: str = "device") -> torch.device:
    """The device of this name, checked to be available; "auto" is a GPU if there is one. Errors name the `option`."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UserError(
            f"{option} {name}: this device is not available; cpu always is, and auto selects the best."
        ) from None
    return device
