"""Checkpoints: everything a run needs to go on exactly, as plain files.

    checkpoints/step-00001500/
        state.json               format, step, whatever plain facts the run keeps, a SHA-256 of each file
        model.safetensors        the weights
        optimiser.safetensors    what the optimiser remembers
        random.safetensors       the state of the random number generators
        average.safetensors      the moving average of the weights, where the run keeps one

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

FORMAT = 1

Say = Callable[[str], None]


@dataclass(frozen=True)
class Checkpoint:
    """A moment of a run. `facts` is plain data: where the data stands, what was measured, what the loop needs."""

    step: int
    model: Mapping[str, Tensor]
    optimiser: Mapping[str, Tensor]
    random: Mapping[str, Tensor]
    facts: Mapping[str, Any] = field(default_factory=dict)
    average: Mapping[str, Tensor] = field(default_factory=dict)


class Checkpoints:
    """The checkpoints of a run in their folder. `say` hears what a person should know."""

    def __init__(self, folder: Path, *, keep: int = 5, say: Say | None = None) -> None:
        if keep < 1:
            raise UserError(f"checkpoints: keep is {keep}; at least one must be kept to go on from.")
        self.folder, self.keep = folder, keep
        self.say: Say = say or (lambda sentence: None)

    def steps(self) -> list[int]:
        """The steps there are checkpoints of, oldest first."""
        found = (re.fullmatch(r"step-(\d+)", path.name) for path in self.folder.glob("step-*"))
        return sorted(int(match[1]) for match in found if match is not None)

    def write(self, checkpoint: Checkpoint, *, best: bool = False, passing: bool = False) -> Path:
        """Write a checkpoint, then let go of those too old to keep. The `best` so far outlives its turn."""
        sweep(self.folder)  # by the run's one writer: whoever only reads must not touch what it has in hand
        place = self._place(checkpoint.step)
        parts = {"model": checkpoint.model, "optimiser": checkpoint.optimiser, "random": checkpoint.random}
        if checkpoint.average:
            parts["average"] = checkpoint.average
        with new_folder(place, replace=True) as beside:
            for name, tensors in parts.items():
                write_tensors(beside / f"{name}.safetensors", tensors)
            state = {
                "format": FORMAT,
                "step": checkpoint.step,
                "best": best,
                "passing": passing,
                "facts": dict(checkpoint.facts),
                "sha256": {path.name: file_sha256(path) for path in sorted(beside.glob("*.safetensors"))},
            }
            (beside / "state.json").write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
        self._let_go(checkpoint.step)
        return place

    def read(self, step: int) -> Checkpoint:
        """One checkpoint, whole; an error if anything about it is not as it was written."""
        place = self._place(step)
        state = self._state(place)
        for name, digest in state["sha256"].items():
            path = place / name
            if not path.is_file() or file_sha256(path) != digest:
                raise UserError(f"{path} is missing or not as it was written.")
        parts = {name.removesuffix(".safetensors"): read_tensors(place / name) for name in state["sha256"]}
        return Checkpoint(step, facts=state["facts"], **parts)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole. Damaged ones are passed over with a message, and left for inspection."""
        for step in reversed(self.steps()):
            try:
                return self.read(step)
            except UserError as error:
                self.say(f"{error} The checkpoint of step {step} is passed over; the one before it is used.")
        return None

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
                weights = self.read(step).model
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
            whole = whole and {f"{name}.safetensors" for name in ("model", "optimiser", "random")} <= sums.keys()
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


def random_state() -> dict[str, Tensor]:
    """The random number generators of this process, as tensors."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"cuda:{number}": state for number, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def restore_random_state(states: Mapping[str, Tensor]) -> None:
    """Go on with the random numbers that would have come next."""
    torch.set_rng_state(states["cpu"])
    for name, state in states.items():
        kind, _, number = name.partition(":")
        if kind == "cuda" and torch.cuda.is_available() and int(number) < torch.cuda.device_count():
            torch.cuda.set_rng_state(state, int(number))
