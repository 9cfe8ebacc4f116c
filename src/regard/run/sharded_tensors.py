"""Tensors whose rows several processes have written to several files, read back as one.

Every process writes a safetensors file with some rows of each tensor. shards.json says which rows these are:

    {"model-00001.safetensors": {"encoder.norm.weight": {"first_row": 256, "full_shape": [512]}, …}, …}

A tensor that is not listed there is complete. Any number of processes can read the files.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.config import parse_json
from regard.errors import UserError

SHARD_INDEX = "shards.json"

ShardIndex = dict[str, dict[str, Any]]
"""The rows that each file has of each sharded tensor."""


@dataclass(frozen=True)
class TensorShard:
    """Consecutive rows of a tensor of shape `full_shape`, starting at `first_row`."""

    rows: Tensor
    first_row: int
    full_shape: tuple[int, ...]


class ShardedTensors(Mapping[str, Tensor]):
    """Tensors whose rows are in several files, each assembled when it is accessed: never all in memory at once."""

    def __init__(self, folder: Path, files: Sequence[str], index: ShardIndex) -> None:
        self._index = index
        self._paths: dict[str, list[Path]] = {}
        for file in files:
            for key in _keys(folder / file):
                self._paths.setdefault(key, []).append(folder / file)

    def __getitem__(self, name: str) -> Tensor:
        shards = []
        for path in self._paths[name]:
            entry = self._index.get(path.name, {}).get(name)
            if entry is None:
                return _read_tensor(path, name)
            shards.append(TensorShard(_read_tensor(path, name), entry["first_row"], tuple(entry["full_shape"])))
        shards.sort(key=lambda shard: (shard.first_row, len(shard.rows)))
        full = torch.cat([shard.rows for shard in shards])
        if tuple(full.shape) != shards[0].full_shape:
            raise UserError(f"{self._paths[name][0].parent}: rows of {name} are missing, so it cannot be assembled.")
        return full

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def read_shard_index(path: Path) -> ShardIndex:
    try:
        return dict(parse_json(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        raise UserError(f"{path} is missing or damaged.") from None


def _keys(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is missing or damaged ({error}).") from None


def _read_tensor(path: Path, name: str) -> Tensor:
    try:
        with safe_open(path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is missing or damaged ({error}).") from None
