"""Writing checkpoints of tensors that are sharded over processes: each writes its rows (run/sharded_tensors.py)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from regard.files import file_sha256
from regard.run.sharded_tensors import ShardIndex, TensorShard
from regard.run.tensors import write_tensors


class Sharding(Protocol):
    """Which rows of each tensor this process holds."""

    @property
    def writes_shards(self) -> bool:
        """Whether this process writes its rows, rather than another one that holds the same."""
        ...

    def shard_of(self, tensor: Tensor) -> TensorShard | None:
        """None for a tensor that is not sharded."""
        ...


def write_shards(
    folder: Path, name: str, tensors: Mapping[str, Tensor], sharding: Sharding, rank: int
) -> tuple[ShardIndex, str]:
    """Write this process' rows of some tensors; returns which rows these are and the file's SHA-256.

    Tensors that are not sharded are written by rank 0.
    """
    written: dict[str, Tensor] = {}
    index: dict[str, Any] = {}
    for key, tensor in tensors.items():
        shard = sharding.shard_of(tensor)
        if shard is not None:
            written[key] = shard.rows
            index[key] = {"first_row": shard.first_row, "full_shape": list(shard.full_shape)}
        elif rank == 0:
            written[key] = tensor
    path = folder / f"{name}-{rank:05}.safetensors"
    write_tensors(path, written)
    return {path.name: index}, file_sha256(path)
