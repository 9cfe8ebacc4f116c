"""Files of named tensors: safetensors, and nothing that could run code when it is opened."""

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from regard.errors import UserError


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors from any device. Errors of the disk are `OSError`, as for any other file."""
    here = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    path.touch()
    usual = path.stat().st_mode  # the library would let only the owner read what it writes
    try:
        save_file(here, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from None
    path.chmod(usual)


def read_tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise UserError(f"{path} is missing; restore it from a copy.")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged or cut short ({error}); restore it from a copy.") from None
