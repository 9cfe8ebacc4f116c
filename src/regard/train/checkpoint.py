"""Checkpoints: everything a run needs to resume exactly, as plain files.

    checkpoints/step-00001500/
        state.json               format, step, metadata as JSON, and a SHA-256 of each file
        model.safetensors        the weights
        optimizer.safetensors    the optimizer state
        rng.safetensors          the state of the random number generators
        ema.safetensors          the exponential moving average of the weights, if the run keeps one

If the tensors are sharded over processes (fsdp), each process writes its own files: model-00000.safetensors,
model-00001.safetensors and so on, and shards.json says which rows they hold (distributed/sharded_checkpoint.py). Any
number of processes can resume from either kind.

A checkpoint is written atomically. One that was damaged later is noticed by its checksums, and the one before it is
used instead, with a message. The newest `keep` checkpoints are kept, and besides them the one marked as best. A
`temporary` one (written because the run was interrupted, say) is kept only until the next: an interrupted run ends up
with the same checkpoints as one that was never interrupted.
"""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.files import file_sha256, new_folder, remove_unfinished
from regard.run.tensors import read_tensors, write_tensors
from regard.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from regard.train.distributed.sharded_checkpoint import (
    SHARD_INDEX,
    ShardedTensors,
    ShardIndex,
    Sharding,
    read_shard_index,
    write_shards,
)

FORMAT = 2
"""The newest format this version reads: 1 is without shards, 2 with them."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a step. `metadata` is JSON data: the trainer's counters, the position in the data, …

    To be written, tensors are as this process holds them; when read, they are always complete.
    """

    step: int
    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    rng: Mapping[str, Tensor]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    ema: Mapping[str, Tensor] = field(default_factory=dict)


class CheckpointManager:
    """The checkpoints of a run in their folder. `log` receives messages for the user.

    `sharding` says which rows of each tensor this process holds, if they are sharded. All processes write together.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int = 5,
        log: Callable[[str], None] | None = None,
        process_group: ProcessGroup = SINGLE_PROCESS,
        sharding: Sharding | None = None,
    ) -> None:
        if keep < 1:
            raise UserError(f"checkpoints: keep is {keep}; at least one must be kept to resume from.")
        self.folder, self.keep = folder, keep
        self.log: Callable[[str], None] = log or (lambda message: None)
        self._process_group, self._sharding = process_group, sharding

    def steps(self) -> list[int]:
        """The steps of all checkpoints, oldest first."""
        matches = (re.fullmatch(r"step-(\d+)", path.name) for path in self.folder.glob("step-*"))
        return sorted(int(match[1]) for match in matches if match is not None)

    def permanent_steps(self) -> list[int]:
        """The steps of those that are readable and not temporary, oldest first."""
        return [step for step in self.steps() if self._flag(step, "temporary") is False]

    def save(self, checkpoint: Checkpoint, *, best: bool = False, temporary: bool = False) -> Path:
        """Write a checkpoint, then delete those that are too old. The latest `best` one is not deleted."""
        path = self._path(checkpoint.step)
        groups = {"model": checkpoint.model, "optimizer": checkpoint.optimizer}
        if checkpoint.ema:
            groups["ema"] = checkpoint.ema
        if self._process_group.is_rank0:
            remove_unfinished(self.folder)  # only the run's one writer does: a reader must not touch unfinished files
            with new_folder(path, replace=True) as unfinished:
                state = {
                    "format": 1 if self._sharding is None else FORMAT,
                    "step": checkpoint.step,
                    "best": best,
                    "temporary": temporary,
                    "metadata": dict(checkpoint.metadata),
                    "sha256": self._write_tensors(unfinished, groups, checkpoint.rng),
                }
                (unfinished / "state.json").write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
            self._delete_old(checkpoint.step)
        elif self._sharding is not None:
            self._write_shards(groups)
        self._process_group.all_gather_object(None)  # a barrier: the checkpoint is complete
        return path

    def load(self, step: int, *, check: bool = True) -> Checkpoint:
        """One checkpoint; an error if its files are not as they were written (unless `check` is off)."""
        path = self._path(step)
        state = self._check(step) if check else self._read_state(path)
        groups: dict[str, Mapping[str, Tensor]] = {}
        names = [name for name in state["sha256"] if name.endswith(".safetensors")]
        index = read_shard_index(path / SHARD_INDEX) if SHARD_INDEX in state["sha256"] else {}
        for group in dict.fromkeys(map(_group, names)):
            files = [name for name in names if _group(name) == group]
            complete = files == [f"{group}.safetensors"]
            groups[group] = read_tensors(path / files[0]) if complete else ShardedTensors(path, files, index)
        return Checkpoint(step, metadata=state["metadata"], **groups)

    def load_latest(self) -> Checkpoint | None:
        """The newest intact checkpoint. Damaged ones are skipped with a message, and left for inspection."""
        step = self._process_group.broadcast_from_rank0(self._newest)
        return None if step is None else self.load(step, check=False)

    def average_weights(self, count: int) -> dict[str, Tensor]:
        """The mean of the weights of the last `count` intact checkpoints (no temporary ones), summed in float64."""
        total: dict[str, Tensor] = {}
        dtypes: dict[str, torch.dtype] = {}
        used = 0
        for step in reversed(self.steps()):
            if used == count:
                break
            if self._flag(step, "temporary"):
                continue
            try:
                weights = dict(self.load(step).model)
            except UserError as error:
                self.log(f"{error} The checkpoint of step {step} is left out of the average.")
                continue
            dtypes = {name: tensor.dtype for name, tensor in weights.items()}
            total = {name: tensor.double() + total.get(name, 0.0) for name, tensor in weights.items()}
            used += 1
        if used == 0:
            raise UserError(f"{self.folder} has no intact checkpoint to average.")
        return {name: (tensor / used).to(dtypes[name]) for name, tensor in total.items()}

    def _newest(self) -> int | None:
        for step in reversed(self.steps()):
            try:
                self._check(step)
                return step
            except UserError as error:
                self.log(f"{error} The checkpoint of step {step} is skipped; the one before it is used.")
        return None

    def _check(self, step: int) -> dict[str, Any]:
        """The contents of a checkpoint's state.json, once all its files match their checksums."""
        path = self._path(step)
        state = self._read_state(path)
        for name, digest in state["sha256"].items():
            file = path / name
            if not file.is_file() or file_sha256(file) != digest:
                raise UserError(f"{file} is missing or damaged.")
        return state

    def _write_tensors(
        self, folder: Path, groups: Mapping[str, Mapping[str, Tensor]], rng: Mapping[str, Tensor]
    ) -> dict[str, str]:
        """Write all tensors, each process its own shards; returns each file's SHA-256."""
        complete = {"rng": rng} if self._sharding is not None else {**groups, "rng": rng}
        for name, tensors in complete.items():
            write_tensors(folder / f"{name}.safetensors", tensors)
        digests = {path.name: file_sha256(path) for path in sorted(folder.glob("*.safetensors"))}
        if self._sharding is None:
            return digests
        index: ShardIndex = {}
        for rank_index, rank_digests in self._write_shards(groups, folder):
            index |= rank_index
            digests |= rank_digests
        (folder / SHARD_INDEX).write_text(json.dumps(index) + "\n", encoding="utf-8")
        return dict(sorted(digests.items())) | {SHARD_INDEX: file_sha256(folder / SHARD_INDEX)}

    def _write_shards(
        self, groups: Mapping[str, Mapping[str, Tensor]], folder: Path | None = None
    ) -> list[tuple[ShardIndex, dict[str, str]]]:
        """Write this process' shards into the folder that rank 0 has created; returns what each process has written."""
        assert self._sharding is not None
        shared = Path(self._process_group.all_gather_object(None if folder is None else str(folder))[0])
        index: ShardIndex = {}
        digests: dict[str, str] = {}
        try:
            for name, tensors in groups.items():
                if self._sharding.writes_shards:
                    entry, digest = write_shards(shared, name, tensors, self._sharding, self._process_group.rank)
                    index |= entry
                    digests |= dict.fromkeys(entry, digest)
        except OSError as error:
            raise UserError(f"{shared}: could not be written ({error.strerror or error}).") from None
        return [(each[0], each[1]) for each in self._process_group.all_gather_object([index, digests])]

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08}"

    def _read_state(self, folder: Path) -> dict[str, Any]:
        path = folder / "state.json"
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            number, digests, metadata = state["format"], state["sha256"], state["metadata"]
            valid = isinstance(digests, dict) and isinstance(metadata, dict) and isinstance(number, int)
            valid = valid and {"model", "optimizer", "rng"} <= {
                _group(name) for name in digests if name.endswith(".safetensors")
            }
        except (OSError, ValueError, KeyError, TypeError):
            valid, number = False, 0
        if not valid:
            raise UserError(f"{path} is missing or damaged.")
        if number > FORMAT:
            raise UserError(f"{path} was written by a newer regard (format {number}; this version reads {FORMAT}).")
        return dict(state)

    def _delete_old(self, written: int) -> None:
        """Keep the one just written, the newest ones, and the latest of those marked as best.

        A damaged one is left for inspection until all those that are kept are newer.
        """
        best = [step for step in self.steps() if self._flag(step, "best")]
        newest = self.permanent_steps()[-self.keep :]
        for step in self.steps():
            damaged = self._flag(step, "temporary") is None and (len(newest) < self.keep or step > newest[0])
            if step not in {written, *best[-1:], *newest} and not damaged:
                shutil.rmtree(self._path(step), ignore_errors=True)

    def _flag(self, step: int, name: str) -> bool | None:
        """Whether a checkpoint has a flag; None if it is damaged."""
        try:
            return self._read_state(self._path(step)).get(name) is True
        except UserError:
            return None


def _group(file: str) -> str:
    """What a file holds: model, for model.safetensors and model-00001.safetensors."""
    return re.sub(r"(-\d+)?\.safetensors$", "", file)


def rng_state(process_group: ProcessGroup = SINGLE_PROCESS) -> dict[str, Tensor]:
    """The random number generators of rank 0 as cpu, cuda:0, …, and those of the other processes as RANK/cpu, …"""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and process_group.size == 1:
        states |= {f"cuda:{number}": state for number, state in enumerate(torch.cuda.get_rng_state_all())}
    elif torch.cuda.is_available():  # the other devices belong to other processes
        states["cuda:0"] = torch.cuda.get_rng_state()
    if process_group.size == 1:
        return states
    gathered = process_group.all_gather_object({name: bytes(state.tolist()).hex() for name, state in states.items()})
    return {
        name if rank == 0 else f"{rank}/{name}": torch.tensor(list(bytes.fromhex(state)), dtype=torch.uint8)
        for rank, each in enumerate(gathered)
        for name, state in each.items()
    }


def restore_rng_state(
    states: Mapping[str, Tensor], process_group: ProcessGroup = SINGLE_PROCESS, *, seed: int = 0
) -> None:
    """Restore what `rng_state` gave; a process that has no state there is seeded with `seed`."""
    prefix = f"{process_group.rank}/" if process_group.rank else ""
    if f"{prefix}cpu" not in states:
        torch.manual_seed(seed)
        return
    torch.set_rng_state(states[f"{prefix}cpu"])
    if not torch.cuda.is_available():
        return
    if process_group.size > 1:
        if f"{prefix}cuda:0" in states:
            torch.cuda.set_rng_state(states[f"{prefix}cuda:0"])
        return
    for name, state in states.items():
        kind, _, number = name.partition(":")
        if kind == "cuda" and int(number) < torch.cuda.device_count():
            torch.cuda.set_rng_state(state, int(number))
