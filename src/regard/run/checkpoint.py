"""Reading the checkpoints of a run: which there are, whether they are intact, and their tensors.

    checkpoints/step-00001500/
        state.json               format, step, metadata as JSON, a SHA-256 of each file, and a checksum of all that
        model.safetensors        the weights
        optimizer.safetensors    the optimizer state
        rng.safetensors          the state of the random number generators
        ema.safetensors          the exponential moving average of the weights, if the run keeps one

If the tensors were sharded over processes (fsdp), each process has written its own files: model-00000.safetensors,
model-00001.safetensors and so on, and shards.json says which rows they hold (sharded_tensors.py).

`run` in state.json is what the run.json of the finished model will say (the model's config, how it is made, checksums
of the tokenizers), so that a checkpoint is a model too. train/checkpoint.py writes checkpoints.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config import parse_json
from regard.errors import UserError, how_to_upgrade
from regard.files import file_sha256
from regard.run.sharded_tensors import SHARD_INDEX, ShardedTensors, read_shard_index
from regard.run.tensors import read_tensors

FORMAT = 2
"""The newest format this version reads: 1 is without shards, 2 with them."""

_KEYS = {"format", "step", "best", "temporary", "metadata", "run", "sha256", "checksum"}


class NewerFormatError(UserError):
    """A checkpoint was written by a newer regard. It is neither skipped nor deleted."""


class CheckpointReader:
    """The checkpoints of a run in their folder. `log` receives messages for the user."""

    def __init__(self, folder: Path, log: Callable[[str], None] | None = None) -> None:
        self.folder = folder
        self.log: Callable[[str], None] = log or (lambda message: None)

    def path(self, step: int) -> Path:
        """The folder of one checkpoint."""
        return self.folder / f"step-{step:08}"

    def steps(self) -> list[int]:
        """The steps of all checkpoints, oldest first."""
        matches = (re.fullmatch(r"step-(\d+)", path.name) for path in self.folder.glob("step-*"))
        return sorted(int(match[1]) for match in matches if match is not None)

    def permanent_steps(self) -> list[int]:
        """The steps of those that are readable and not temporary, oldest first."""
        return [step for step in self.steps() if self.flag(step, "temporary") is False]

    def best_step(self) -> int | None:
        """The step of the checkpoint that did best on the validation set; None if none is marked."""
        return next((step for step in reversed(self.steps()) if self.flag(step, "best")), None)

    def newest(self, groups: Collection[str] | None = None) -> int | None:
        """The step of the newest intact checkpoint; damaged ones are skipped with a message. See `check`."""
        for step in reversed(self.steps()):
            try:
                self.check(step, groups)
                return step
            except NewerFormatError:
                raise
            except UserError as error:
                self.log(f"{error} The checkpoint of step {step} is skipped; the one before it is used.")
        return None

    def check(self, step: int, groups: Collection[str] | None = None) -> dict[str, Any]:
        """The contents of a checkpoint's state.json, once its files match their checksums.

        `groups` limits this to some of them, such as "model"; by default all files are read.
        """
        path = self.path(step)
        state = self.read_state(step)
        for name, digest in state["sha256"].items():
            if groups is not None and name != SHARD_INDEX and group_of(name) not in groups:
                continue
            file = path / name
            if not file.is_file() or file_sha256(file) != digest:
                raise UserError(f"{file} is missing or damaged.")
        return state

    def read_state(self, step: int) -> dict[str, Any]:
        """The contents of a checkpoint's state.json, if they are what was written."""
        path = self.path(step) / "state.json"
        try:
            state = parse_json(path.read_text(encoding="utf-8"))
            number = state["format"] if isinstance(state, dict) else None
        except (OSError, ValueError, KeyError, RecursionError):
            state, number = {}, None
        if type(number) is int and number > FORMAT:
            raise NewerFormatError(
                f"{path} was written by a newer regard (format {number}; this version reads {FORMAT}); "
                f"{how_to_upgrade()}."
            )
        if type(number) is not int or not _is_valid(state):
            raise UserError(f"{path} is missing or damaged.")
        return dict(state)

    def read_group(self, step: int, state: Mapping[str, Any], group: str) -> Mapping[str, Tensor]:
        """The tensors of a group, such as "model"; empty if the checkpoint has none. Checksums are not compared."""
        path = self.path(step)
        files = [name for name in state["sha256"] if name.endswith(".safetensors") and group_of(name) == group]
        if files == [f"{group}.safetensors"]:
            return read_tensors(path / files[0])
        index = read_shard_index(path / SHARD_INDEX) if SHARD_INDEX in state["sha256"] else {}
        return ShardedTensors(path, files, index)

    def read_weights(self, step: int) -> Mapping[str, Tensor]:
        """The weights of one checkpoint; an error if their files are damaged."""
        return self.read_group(step, self.check(step, ("model",)), "model")

    def last_steps(self, count: int) -> list[int]:
        """The steps of the last `count` checkpoints with intact weights, oldest first, without temporary ones."""
        found: list[int] = []
        for step in reversed(self.steps()):
            if len(found) == count:
                break
            if self.flag(step, "temporary"):
                continue
            try:
                self.check(step, ("model",))
            except NewerFormatError:
                raise
            except UserError as error:
                self.log(f"{error} The checkpoint of step {step} is left out of the average.")
                continue
            found.append(step)
        if not found:
            raise UserError(f"{self.folder} has no intact checkpoint to average.")
        return found[::-1]

    def average_weights(self, count: int) -> dict[str, Tensor]:
        """The mean of the weights of the last `count` intact checkpoints (no temporary ones), summed in float64."""
        steps = self.last_steps(count)
        return average_tensors(self.read_group(step, self.read_state(step), "model") for step in steps)

    def flag(self, step: int, name: str) -> bool | None:
        """Whether a checkpoint has a flag; None if it cannot be read."""
        try:
            return self.read_state(step).get(name) is True
        except UserError:
            return None


def average_tensors(groups: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of tensors of the same names and shapes, summed in float64."""
    total: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    count = 0
    for tensors in groups:
        for name, tensor in tensors.items():
            dtypes[name] = tensor.dtype
            total[name] = tensor.double() + total.get(name, 0.0)
        count += 1
    return {name: (tensor / count).to(dtypes[name]) for name, tensor in total.items()}


def state_checksum(state: Mapping[str, Any]) -> str:
    """The checksum of a state.json: of all its other entries. Every format computes it in the same way."""
    entries = {key: value for key, value in state.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def group_of(file: str) -> str:
    """What a file holds: model, for model.safetensors and model-00001.safetensors."""
    return re.sub(r"(-\d+)?\.safetensors$", "", file)


def _is_valid(state: Mapping[str, Any]) -> bool:
    """Whether a state.json has all it needs, and matches its checksum (the first checkpoints had none)."""
    digests = state.get("sha256")
    if not set(state) <= _KEYS or not isinstance(digests, dict) or not isinstance(state.get("metadata"), dict):
        return False
    if "checksum" in state and state["checksum"] != state_checksum(state):
        return False
    groups = {group_of(name) for name in digests if name.endswith(".safetensors")}
    return {"model", "optimizer", "rng"} <= groups and all(Path(name).name == name for name in digests)
