"""Reading the safetensors files of a Hugging Face folder: one file, or several with an index.

Older checkpoints are pickles, which run code when they are opened; those are refused with the way to convert them.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from regard.errors import UserError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_OTHERS = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt", "*.bin", "*.h5", "*.msgpack")
HEADS = ("lm_head.", "final_logits_bias", "cls.", "classifier.")
"""How the names begin of what stands on a model, before which no prefix is put."""
_NUMBERS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Weights:
    """The tensors of a model, under their names without the prefix that some files have and some lack, and in one of
    several spellings (`renames`: patterns of others, and what they are instead).
    """

    def __init__(self, files: Iterable[Path], prefix: str, renames: Iterable[tuple[str, str]] = ()) -> None:
        self.prefix = prefix
        renames = list(renames)
        self._tensors: dict[str, Tensor] = {}
        self._spelled: dict[str, str] = {}
        self._files: dict[str, Path] = {}
        self.files = list(files)
        for path in self.files:
            for spelled, tensor in _load(path).items():
                name = spelled.removeprefix(prefix)
                for pattern, usual in renames:
                    name = re.sub(pattern, usual, name)
                if name in self._tensors:
                    raise UserError(
                        f"{path} holds the tensor {spelled}, which is also there as {self._spelled[name]}; "
                        "save the model again so that each has one name."
                    )
                self._tensors[name], self._spelled[name], self._files[name] = tensor, spelled, path

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    def tensor(self, name: str) -> Tensor:
        """A tensor that must be there, of numbers a model can be made of."""
        found = self._tensors.get(name)
        if found is None:
            raise UserError(
                f"{self.place(name)} lacks the tensor {self.spell(name)}, which config.json calls for; "
                "fetch the folder again from where the model came from."
            )
        if found.dtype not in _NUMBERS:
            raise UserError(
                f"{self.place(name)}: {self.spell(name)} is stored as {str(found.dtype).removeprefix('torch.')}; "
                "import the model in float32, float16 or bfloat16, not a quantised copy."
            )
        return found

    def get(self, name: str) -> Tensor | None:
        """A tensor that may be there."""
        return self.tensor(name) if name in self._tensors else None

    def put(self, name: str, tensor: Tensor | None) -> None:
        """Set a tensor in place of the file's; None takes it away."""
        if tensor is None:
            self._tensors.pop(name, None)
        else:
            self._tensors[name] = tensor

    def skip(self, patterns: Iterable[str]) -> None:
        """Leave out what is known to be no part of the model: constants that old versions stored beside it."""
        for name in self.names:
            if any(re.fullmatch(pattern, name) for pattern in patterns):
                del self._tensors[name]

    def spell(self, name: str) -> str:
        """The name as the file has it, or would have it."""
        if name in self._spelled:
            return self._spelled[name]
        prefixed = any(spelled.startswith(self.prefix) for spelled in self._spelled.values())
        return f"{self.prefix}{name}" if prefixed and not name.startswith(HEADS) else name

    def place(self, name: str) -> Path:
        """The file a tensor is in, or the folder where it would be looked for."""
        only = self.files[0] if len(self.files) == 1 else self.files[0].parent
        return self._files.get(name, only)


def find_files(directory: Path, architecture: str) -> list[Path]:
    """The safetensors files of a folder; `architecture` names the class that can convert other files."""
    if (directory / _SINGLE).is_file():
        return [directory / _SINGLE]
    if (directory / _INDEX).is_file():
        return _shards(directory / _INDEX)
    others = [path.name for pattern in _OTHERS for path in sorted(directory.glob(pattern))]
    if others:
        raise UserError(
            f"{directory} holds its weights only as {others[0]}, and regard opens nothing but safetensors (a pickle "
            "can run code when it is opened); convert it with transformers: "
            f"{architecture}.from_pretrained(this folder).save_pretrained(a new folder, safe_serialization=True)."
        )
    raise UserError(f"{directory} has neither {_SINGLE} nor {_INDEX}; fetch the model's weights into it.")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds a table."""
    values = parse_json(path)
    if not isinstance(values, dict):
        raise UserError(f"{path} should hold a table of settings, but holds a {type(values).__name__}.")
    return values


def read_if_there(path: Path) -> dict[str, Any]:
    """A JSON file that holds a table; an empty one where there is no file."""
    return read_json(path) if path.is_file() else {}


def parse_json(path: Path) -> Any:
    """What a JSON file holds."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}); fetch it again from where the model came from.") from None


def _shards(index: Path) -> list[Path]:
    """The files an index names, each of them there and a plain name."""
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not table or not all(isinstance(name, str) for name in table.values()):
        raise UserError(f"{index} has no weight_map that says which file holds which tensor; fetch it again.")
    names = sorted(set(table.values()))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise UserError(f"{index} names the file {name!r}; expected the name of a safetensors file beside it.")
        if not (index.parent / name).is_file():
            raise UserError(f"{index.parent / name} is missing, though {index.name} names it; fetch it too.")
    return [index.parent / name for name in names]


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(
            f"{path} is damaged or cut short ({error}); fetch it again from where the model came from."
        ) from None
