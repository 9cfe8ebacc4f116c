"""Files of named tensors: safetensors only, a format that cannot execute code when it is opened."""

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from regard.errors import UserError


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
    if not path.is_file():
        raise UserError(f"{path} is missing; restore it from a copy.")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged or truncated ({error}); restore it from a copy.") from None
