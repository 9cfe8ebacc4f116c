"""Files of named tensors: safetensors only, a format that cannot execute code when it is opened."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from regard.errors import UserError

Read = TypeVar("Read")

_WEIGHT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors from any device. Disk errors are raised as `OSError`, as for any other file."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    path.touch()
    mode = path.stat().st_mode  # safetensors makes files readable by their owner only: restore the usual mode
    try:
        save_file(on_cpu, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from None
    path.chmod(mode)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a file into CPU memory."""
    return _read(path, load_file)


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of a file, from its header alone; what a header may claim must be in the file."""

    def shapes(path: Path) -> dict[str, tuple[int, ...]]:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118

    return _read(path, shapes)


def unusable_reason(weight: Tensor) -> str | None:
    """Why a tensor cannot be a weight (its dtype, or a value that is not finite); None if it can.

    One pass over the tensor, without a temporary copy: a NaN or an infinity is always an extreme.
    """
    name = str(weight.dtype).removeprefix("torch.")
    if weight.dtype not in _WEIGHT_DTYPES:
        return f"is stored as {name}; weights are float32, float16, bfloat16 or float64"
    if weight.numel():
        largest = [float(value.float()) for value in torch.aminmax(weight)]
        if not all(map(math.isfinite, largest)):
            return "has values that are not finite (NaN or infinity)"
    return None


def _read(path: Path, read: Callable[[Path], Read]) -> Read:
    if not path.is_file():
        raise UserError(f"{path} is missing; restore it from a copy.")
    try:
        return read(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged or truncated ({error}); restore it from a copy.") from None
