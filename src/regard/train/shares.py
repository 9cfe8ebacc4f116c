"""Tensors that lie in several processes, as files: each writes the rows it has, and all of them are read as one.

A share is a safetensors file with some rows of each tensor. Which rows of what they are stands in slices.json:

    {"model-00001.safetensors": {"encoder.norm.weight": {"first": 256, "whole": [512]}, …}, …}

A tensor that is not listed there is whole. Nothing about a share says how many processes there must be to read it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.errors import UserError
from regard.files import file_sha256
from regard.run.tensors import write_tensors

SLICES = "slices.json"

Slices = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Rows:
    """Some rows of a tensor: those from `first` on, of a tensor that is `whole` in shape."""

    tensor: Tensor
    first: int
    whole: tuple[int, ...]


class Cut(Protocol):
    """Knows which rows of a tensor lie here."""

    @property
    def writes(self) -> bool:
        """Whether they are written from here, and not by another process that has the same."""
        ...

    def rows(self, tensor: Tensor) -> Rows | None:
        """None where it is all of them."""
        ...


def write_share(folder: Path, name: str, tensors: Mapping[str, Tensor], cut: Cut, rank: int) -> tuple[Slices, str]:
    """Write what of some tensors is this process' to write; gives which rows of what it is, and the file's SHA-256.

    Whole tensors are the first process'.
    """
    kept: dict[str, Tensor] = {}
    slices: dict[str, Any] = {}
    for key, tensor in tensors.items():
        rows = cut.rows(tensor)
        if rows is not None:
            kept[key], slices[key] = rows.tensor, {"first": rows.first, "whole": list(rows.whole)}
        elif rank == 0:
            kept[key] = tensor
    path = folder / f"{name}-{rank:05}.safetensors"
    write_tensors(path, kept)
    return {path.name: slices}, file_sha256(path)


class Shared(Mapping[str, Tensor]):
    """Tensors in shares, each put together when it is asked for: never all of them in memory at once."""

    def __init__(self, folder: Path, files: Sequence[str], slices: Slices) -> None:
        self._slices = slices
        self._places: dict[str, list[Path]] = {}
        for file in files:
            for key in _keys(folder / file):
                self._places.setdefault(key, []).append(folder / file)

    def __getitem__(self, name: str) -> Tensor:
        pieces = []
        for path in self._places[name]:
            rows = self._slices.get(path.name, {}).get(name)
            if rows is None:
                return _tensor(path, name)
            pieces.append((rows["first"], tuple(rows["whole"]), _tensor(path, name)))
        pieces.sort(key=lambda piece: (piece[0], len(piece[2])))
        whole = torch.cat([tensor for _, _, tensor in pieces])
        if tuple(whole.shape) != pieces[0][1]:
            raise UserError(f"{self._places[name][0].parent}: rows of {name} are missing; it cannot be put together.")
        return whole

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def read_slices(path: Path) -> Slices:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        raise UserError(f"{path} is missing or not as it was written.") from None


def _keys(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is missing or damaged ({error}).") from None


def _tensor(path: Path, name: str) -> Tensor:
    try:
        with safe_open(path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is missing or damaged ({error}).") from None
