"""Writing checkpoints: everything a run needs to resume exactly, as plain files (run/checkpoint.py reads them).

A checkpoint is written atomically. One that was damaged later is noticed by its checksums, and the one before it is
used instead, with a message. The newest `keep` checkpoints are kept, and besides them the one marked as best. A
`temporary` one (written because the run was interrupted, say) is kept only until the next: an interrupted run ends up
with the same checkpoints as one that was never interrupted.

If the tensors are sharded over processes (fsdp), each process writes its own files (distributed/sharded_checkpoint.py).
Any number of processes can resume from either kind.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.files import file_sha256, new_folder, remove_unfinished
from regard.run.checkpoint import FORMAT, CheckpointReader, NewerFormatError, group_of, state_checksum
from regard.run.sharded_tensors import SHARD_INDEX, ShardIndex
from regard.run.tensors import write_tensors
from regard.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from regard.train.distributed.sharded_checkpoint import Sharding, write_shards


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


class CheckpointManager(CheckpointReader):
    """Reads and writes the checkpoints of a run. `log` receives messages for the user.

    `sharding` says which rows of each tensor this process holds, if they are sharded. All processes write together.
    `run` is what the run.json of the finished model will say; with it, checkpoints can be loaded as models.
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
        super().__init__(folder, log)
        self.keep = keep
        self.run: Mapping[str, Any] | None = None
        self._process_group, self._sharding = process_group, sharding

    def save(self, checkpoint: Checkpoint, *, best: bool = False, temporary: bool = False) -> Path:
        """Write a checkpoint, then delete those that are too old. The latest `best` one is not deleted."""
        path = self.path(checkpoint.step)
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
                    **({} if self.run is None else {"run": dict(self.run)}),
                    "sha256": self._write_tensors(unfinished, groups, checkpoint.rng),
                }
                state["checksum"] = state_checksum(json.loads(json.dumps(state)))
                (unfinished / "state.json").write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
            self._delete_old(checkpoint.step)
        elif self._sharding is not None:
            self._write_shards(groups)
        self._process_group.all_gather_object(None)  # a barrier: the checkpoint is complete
        return path

    def load(self, step: int, *, check: bool = True) -> Checkpoint:
        """One checkpoint; an error if its files are not as they were written (unless `check` is off)."""
        state = self.check(step) if check else self.read_state(step)
        names = dict.fromkeys(group_of(name) for name in state["sha256"] if name.endswith(".safetensors"))
        groups = {group: self.read_group(step, state, group) for group in names}
        return Checkpoint(step, metadata=state["metadata"], **groups)

    def load_latest(self) -> Checkpoint | None:
        """The newest intact checkpoint. Damaged ones are skipped with a message, and left for inspection."""
        step = self._process_group.broadcast_from_rank0(self.newest)
        return None if step is None else self.load(step, check=False)

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

    def _delete_old(self, written: int) -> None:
        """Keep the one just written, the newest ones, and the latest of those marked as best.

        A damaged one is left for inspection until all those that are kept are newer, and one that a newer regard has
        written is never deleted.
        """
        best = [step for step in self.steps() if self.flag(step, "best")]
        newest = self.permanent_steps()[-self.keep :]
        for step in self.steps():
            try:
                self.read_state(step)
            except NewerFormatError:
                continue
            except UserError:
                if len(newest) < self.keep or step > newest[0]:
                    continue
            if step not in {written, *best[-1:], *newest}:
                shutil.rmtree(self.path(step), ignore_errors=True)


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
