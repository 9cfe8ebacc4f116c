"""Checkpoints: everything a run needs to go on exactly, as plain files.

    checkpoints/step-00001500/
        state.json               format, step, whatever plain facts the run keeps, a SHA-256 of each file
        model.safetensors        the weights
        optimiser.safetensors    what the optimiser remembers
        random.safetensors       the state of the random number generators
        average.safetensors      the moving average of the weights, where the run keeps one

Where several processes each keep a share of the tensors (fsdp), each writes its own: model-00000.safetensors,
model-00001.safetensors and so on, and slices.json says which rows of what they are (shares.py). Any number of processes
can go on from either kind.

A checkpoint is there whole or not at all. One that was damaged later is noticed by its checksums, and the one before
it is used, with a message. The newest `keep` are kept, and besides them the one that was marked as best. One that is
`passing` (written because the run was interrupted, say) is kept only until the next: a run that was stopped on its way
keeps, in the end, what it would have kept without.
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
from regard.files import file_sha256, new_folder, sweep
from regard.run.tensors import read_tensors, write_tensors
from regard.train.shares import SLICES, Cut, Shared, Slices, read_slices, write_share
from regard.train.world import ALONE, World

FORMAT = 2
"""What this version reads. Checkpoints that are not in shares are still written as 1."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Checkpoint:
    """A moment of a run. `facts` is plain data: where the data stands, what was measured, what the loop needs.

    Written, tensors are as they lie in this process; read, they are whole.
    """

    step: int
    model: Mapping[str, Tensor]
    optimiser: Mapping[str, Tensor]
    random: Mapping[str, Tensor]
    facts: Mapping[str, Any] = field(default_factory=dict)
    average: Mapping[str, Tensor] = field(default_factory=dict)


class Checkpoints:
    """The checkpoints of a run in their folder. `say` hears what a person should know.

    `cut` knows which rows of tensors lie here, where they are not whole. All of a world's processes write together.
    """

    def __init__(
        self, folder: Path, *, keep: int = 5, say: Say | None = None, world: World = ALONE, cut: Cut | None = None
    ) -> None:
        if keep < 1:
            raise UserError(f"checkpoints: keep is {keep}; at least one must be kept to go on from.")
        self.folder, self.keep = folder, keep
        self.say: Say = say or (lambda sentence: None)
        self._world, self._cut = world, cut

    def steps(self) -> list[int]:
        """The steps there are checkpoints of, oldest first."""
        found = (re.fullmatch(r"step-(\d+)", path.name) for path in self.folder.glob("step-*"))
        return sorted(int(match[1]) for match in found if match is not None)

    def write(self, checkpoint: Checkpoint, *, best: bool = False, passing: bool = False) -> Path:
        """Write a checkpoint, then let go of those too old to keep. The `best` so far outlives its turn."""
        place = self._place(checkpoint.step)
        parts = {"model": checkpoint.model, "optimiser": checkpoint.optimiser}
        if checkpoint.average:
            parts["average"] = checkpoint.average
        if self._world.first:
            sweep(self.folder)  # by the run's one writer: whoever only reads must not touch what it has in hand
            with new_folder(place, replace=True) as beside:
                state = {
                    "format": 1 if self._cut is None else FORMAT,
                    "step": checkpoint.step,
                    "best": best,
                    "passing": passing,
                    "facts": dict(checkpoint.facts),
                    "sha256": self._fill(beside, parts, checkpoint.random),
                }
                (beside / "state.json").write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
            self._let_go(checkpoint.step)
        elif self._cut is not None:
            self._help_fill(parts)
        self._world.gather(None)  # it stands, and each may go on as if it had written it
        return place

    def read(self, step: int, *, check: bool = True) -> Checkpoint:
        """One checkpoint, whole; an error if anything about it is not as it was written (`check`)."""
        place = self._place(step)
        state = self._check(step) if check else self._state(place)
        parts: dict[str, Mapping[str, Tensor]] = {}
        names = [name for name in state["sha256"] if name.endswith(".safetensors")]
        slices = read_slices(place / SLICES) if SLICES in state["sha256"] else {}
        for part in dict.fromkeys(map(_part, names)):
            files = [name for name in names if _part(name) == part]
            whole = files == [f"{part}.safetensors"]
            parts[part] = read_tensors(place / files[0]) if whole else Shared(place, files, slices)
        return Checkpoint(step, facts=state["facts"], **parts)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole. Damaged ones are passed over with a message, and left for inspection."""
        step = self._world.from_first(self._newest)
        return None if step is None else self.read(step, check=False)

    def _newest(self) -> int | None:
        for step in reversed(self.steps()):
            try:
                self._check(step)
                return step
            except UserError as error:
                self.say(f"{error} The checkpoint of step {step} is passed over; the one before it is used.")
        return None

    def _check(self, step: int) -> dict[str, Any]:
        """What is written about a checkpoint, once all its files are found to be as they were written."""
        place = self._place(step)
        state = self._state(place)
        for name, digest in state["sha256"].items():
            path = place / name
            if not path.is_file() or file_sha256(path) != digest:
                raise UserError(f"{path} is missing or not as it was written.")
        return state

    def _fill(
        self, folder: Path, parts: Mapping[str, Mapping[str, Tensor]], random: Mapping[str, Tensor]
    ) -> dict[str, str]:
        """Write all tensors, each process what lies there; gives each file's SHA-256."""
        whole = {"random": random} if self._cut is not None else {**parts, "random": random}
        for name, tensors in whole.items():
            write_tensors(folder / f"{name}.safetensors", tensors)
        sums = {path.name: file_sha256(path) for path in sorted(folder.glob("*.safetensors"))}
        if self._cut is None:
            return sums
        slices: Slices = {}
        for more, their_sums in self._help_fill(parts, folder):
            slices |= more
            sums |= their_sums
        (folder / SLICES).write_text(json.dumps(slices) + "\n", encoding="utf-8")
        return dict(sorted(sums.items())) | {SLICES: file_sha256(folder / SLICES)}

    def _help_fill(
        self, parts: Mapping[str, Mapping[str, Tensor]], folder: Path | None = None
    ) -> list[tuple[Slices, dict[str, str]]]:
        """Write what lies here into the folder that the first process has made; gives what each has written."""
        assert self._cut is not None
        made = Path(self._world.gather(None if folder is None else str(folder))[0])
        slices: Slices = {}
        sums: dict[str, str] = {}
        try:
            for name, tensors in parts.items():
                if self._cut.writes:
                    more, digest = write_share(made, name, tensors, self._cut, self._world.rank)
                    slices |= more
                    sums |= dict.fromkeys(more, digest)
        except OSError as error:
            raise UserError(f"{made}: could not be written ({error.strerror or error}).") from None
        return [(more, their_sums) for more, their_sums in self._world.gather([slices, sums])]

    def mean(self, count: int) -> dict[str, Tensor]:
        """The mean of the weights of the last `count` whole checkpoints (no passing ones), summed in float64."""
        total: dict[str, Tensor] = {}
        types: dict[str, torch.dtype] = {}
        used = 0
        for step in reversed(self.steps()):
            if used == count:
                break
            if self._mark(step, "passing"):
                continue
            try:
                weights = dict(self.read(step).model)
            except UserError as error:
                self.say(f"{error} The checkpoint of step {step} is left out of the mean.")
                continue
            types = {name: tensor.dtype for name, tensor in weights.items()}
            total = {name: tensor.double() + total.get(name, 0.0) for name, tensor in weights.items()}
            used += 1
        if used == 0:
            raise UserError(f"{self.folder} has no whole checkpoint to take the mean of.")
        return {name: (tensor / used).to(types[name]) for name, tensor in total.items()}

    def _place(self, step: int) -> Path:
        return self.folder / f"step-{step:08}"

    def _state(self, place: Path) -> dict[str, Any]:
        path = place / "state.json"
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            number, sums, facts = state["format"], state["sha256"], state["facts"]
            whole = isinstance(sums, dict) and isinstance(facts, dict) and isinstance(number, int)
            whole = whole and {"model", "optimiser", "random"} <= {
                _part(name) for name in sums if name.endswith(".safetensors")
            }
        except (OSError, ValueError, KeyError, TypeError):
            whole, number = False, 0
        if not whole:
            raise UserError(f"{path} is missing or not as it was written.")
        if number > FORMAT:
            raise UserError(f"{path} was written by a newer regard (format {number}; this version reads {FORMAT}).")
        return dict(state)

    def regular(self) -> list[int]:
        """The steps of those that can be read and are not passing, oldest first."""
        return [step for step in self.steps() if self._mark(step, "passing") is False]

    def _let_go(self, written: int) -> None:
        """Keep the one just written, the newest, and of the older ones the latest that was best.

        A damaged one is left for inspection until all that are kept are newer.
        """
        best = [step for step in self.steps() if self._mark(step, "best")]
        newest = self.regular()[-self.keep :]
        for step in self.steps():
            damaged = self._mark(step, "passing") is None and (len(newest) < self.keep or step > newest[0])
            if step not in {written, *best[-1:], *newest} and not damaged:
                shutil.rmtree(self._place(step), ignore_errors=True)

    def _mark(self, step: int, mark: str) -> bool | None:
        """Whether a checkpoint bears a mark; None if that cannot be told any more."""
        try:
            return self._state(self._place(step)).get(mark) is True
        except UserError:
            return None


def _part(name: str) -> str:
    """What a file holds: model, of model.safetensors and of model-00001.safetensors."""
    return re.sub(r"(-\d+)?\.safetensors$", "", name)


def random_state(world: World = ALONE) -> dict[str, Tensor]:
    """The random number generators of this process, as tensors; behind them, those of the others as 1/cpu and so on."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and world.size == 1:
        states |= {f"cuda:{number}": state for number, state in enumerate(torch.cuda.get_rng_state_all())}
    elif torch.cuda.is_available():  # the other devices are the others'
        states["cuda:0"] = torch.cuda.get_rng_state()
    if world.size == 1:
        return states
    all_of_them = world.gather({name: bytes(state.tolist()).hex() for name, state in states.items()})
    return {
        name if rank == 0 else f"{rank}/{name}": torch.tensor(list(bytes.fromhex(state)), dtype=torch.uint8)
        for rank, theirs in enumerate(all_of_them)
        for name, state in theirs.items()
    }


def restore_random_state(states: Mapping[str, Tensor], world: World = ALONE, *, seed: int = 0) -> None:
    """Go on with the random numbers that would have come next; from `seed`, where this process was not there before."""
    before = f"{world.rank}/" if world.rank else ""
    if f"{before}cpu" not in states:
        torch.manual_seed(seed)
        return
    torch.set_rng_state(states[f"{before}cpu"])
    if not torch.cuda.is_available():
        return
    if world.size > 1:
        if f"{before}cuda:0" in states:
            torch.cuda.set_rng_state(states[f"{before}cuda:0"])
        return
    for name, state in states.items():
        kind, _, number = name.partition(":")
        if kind == "cuda" and int(number) < torch.cuda.device_count():
            torch.cuda.set_rng_state(state, int(number))
