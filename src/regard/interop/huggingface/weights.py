"""Reading the safetensors files of a Hugging Face folder: one file, or several with an index.

Older checkpoints are pickles, which run code when they are opened; those are refused with the way to convert them.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from regard.config import parse_json
from regard.errors import UserError
from regard.run.tensors import unusable_reason

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_OTHER_FORMATS = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt", "*.bin", "*.h5", "*.msgpack")
HEADS = ("lm_head.", "final_logits_bias", "cls.", "classifier.")
"""Prefixes of a head's tensors, which never have the model's prefix."""


class Weights:
    """The tensors of a model by name, without the prefix that some files lack, and with `renames` applied:
    patterns of names in other versions, and what replaces them.
    """

    def __init__(self, files: Iterable[Path], prefix: str, renames: Iterable[tuple[str, str]] = ()) -> None:
        self.prefix = prefix
        renames = list(renames)
        self._tensors: dict[str, Tensor] = {}
        self._original_names: dict[str, str] = {}
        self._files: dict[str, Path] = {}
        self.files = list(files)
        for path in self.files:
            for original, tensor in _load(path).items():
                name = original.removeprefix(prefix)
                for pattern, replacement in renames:
                    name = re.sub(pattern, replacement, name)
                if name in self._tensors:
                    raise UserError(
                        f"{path} holds the tensor {original}, which is also there as {self._original_names[name]}; "
                        "save the model again so that each has one name."
                    )
                self._tensors[name], self._original_names[name], self._files[name] = tensor, original, path

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    def tensor(self, name: str) -> Tensor:
        """A tensor that must exist, in floating point."""
        found = self._tensors.get(name)
        if found is None:
            raise UserError(
                f"{self.file_of(name)} lacks the tensor {self.original_name(name)}, which config.json calls for; "
                "download the folder again."
            )
        if (reason := unusable_reason(found)) is not None:
            raise UserError(
                f"{self.file_of(name)}: {self.original_name(name)} {reason}; import an intact copy of the model that "
                "is not quantized."
            )
        return found

    def get(self, name: str) -> Tensor | None:
        """A tensor that may exist."""
        return self.tensor(name) if name in self._tensors else None

    def put(self, name: str, tensor: Tensor | None) -> None:
        """Replace a tensor of the file; None removes it."""
        if tensor is None:
            self._tensors.pop(name, None)
        else:
            self._tensors[name] = tensor

    def drop(self, patterns: Iterable[str]) -> None:
        """Remove tensors that are no part of the model: constants that old versions stored beside it."""
        for name in self.names:
            if any(re.fullmatch(pattern, name) for pattern in patterns):
                del self._tensors[name]

    def original_name(self, name: str) -> str:
        """The name in the file, or the name it would have there."""
        if name in self._original_names:
            return self._original_names[name]
        prefixed = any(original.startswith(self.prefix) for original in self._original_names.values())
        return f"{self.prefix}{name}" if prefixed and not name.startswith(HEADS) else name

    def file_of(self, name: str) -> Path:
        """The file that holds a tensor, or the folder where it would be looked for."""
        only = self.files[0] if len(self.files) == 1 else self.files[0].parent
        return self._files.get(name, only)


def find_files(directory: Path, class_name: str) -> list[Path]:
    """The safetensors files of a folder; `class_name` is the class that can convert other formats."""
    if (directory / _SINGLE).is_file():
        return [directory / _SINGLE]
    if (directory / _INDEX).is_file():
        return _shards(directory / _INDEX)
    other_files = [path.name for pattern in _OTHER_FORMATS for path in sorted(directory.glob(pattern))]
    if other_files:
        raise UserError(
            f"{directory} holds its weights only as {other_files[0]}, and regard opens nothing but safetensors (a "
            "pickle can run code when it is opened); convert it with transformers: "
            f"{class_name}.from_pretrained(this folder).save_pretrained(a new folder, safe_serialization=True)."
        )
    raise UserError(f"{directory} has neither {_SINGLE} nor {_INDEX}; download the model's weights into it.")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object."""
    values = read_any_json(path)
    if not isinstance(values, dict):
        raise UserError(f"{path} should hold an object, but holds a {type(values).__name__}.")
    return values


def read_if_there(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object; an empty one if there is no file."""
    return read_json(path) if path.is_file() else {}


def read_any_json(path: Path) -> Any:
    """The content of a JSON file."""
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); download it again.") from None


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _shards(index: Path) -> list[Path]:
    """The files an index lists, each of which must exist beside it."""
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not table or not all(isinstance(name, str) for name in table.values()):
        raise UserError(f"{index} has no weight_map that says which file holds which tensor; download it again.")
    names = sorted(set(table.values()))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise UserError(f"{index} names the file {name!r}; expected the name of a safetensors file beside it.")
        if not (index.parent / name).is_file():
            raise UserError(f"{index.parent / name} is missing, though {index.name} names it; download it too.")
    return [index.parent / name for name in names]


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is damaged or cut short ({error}); download it again.") from None
