"""How fast each rung trains and decodes when it has the machine to itself: `python -m regard.lab.compare.speed OUT`.

The runs of a comparison share their machine, each with other neighbors, so their own times cannot be compared. After
all of them have ended, the first steps of each rung are therefore taken once more, one rung after the other, on all
data, and its trained model decodes one sentence.

    OUT/speed.json   what was measured, by rung
"""

import contextlib
import gc
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from regard.errors import UserError
from regard.files import write_text
from regard.kernels.dispatch import select_device
from regard.lab.compare.measure import measure_decoding_time
from regard.model import build_meta
from regard.progress import listen_to_phases
from regard.task.auto import open_model
from regard.task.base import Recipe
from regard.task.registry import read_values
from regard.task.run import train
from regard.train.callback import Callback
from regard.train.estimation import Estimated
from regard.train.runtime import DivergedError

_FILE = "speed.json"
_CPU_STEPS, _GPU_STEPS, _WARMUP_STEPS = 30, 80, 5
"""The steps that are timed, after some that compile kernels. On a GPU each shape of batch is captured once as a CUDA
graph; enough steps follow for the median to be that of a replay."""
_FEWEST_STEPS, _MOST_SECONDS = 8, 20.0
_MEMORY_STEPS = 6
_NEVER = 1_000_000_000

Speeds = Mapping[str, Mapping[str, Any]]
"""What was measured, by the name of the rung."""


class _ProbeEndError(Exception):
    """The probe has seen enough steps."""


class _Probe(Callback):
    """Times the first steps, and ends the run."""

    def __init__(self, device: torch.device, steps: int) -> None:
        self.device, self.steps = device, steps
        self.times: list[float] = []
        self.tokens: list[int] = []
        self.memory: list[tuple[int, int]] = []
        """The most bytes of GPU memory in use until the end of each step, and those in use after it."""

    def on_step(self, step: int, tokens: int) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            after = torch.cuda.memory_allocated(self.device)
            self.memory.append((torch.cuda.max_memory_allocated(self.device), after))
            torch.cuda.reset_peak_memory_stats(self.device)
        self.times.append(time.perf_counter())
        self.tokens.append(tokens)
        late = len(self.times) >= _FEWEST_STEPS and self.times[-1] - self.times[0] > _MOST_SECONDS
        if len(self.times) >= self.steps or late:
            raise _ProbeEndError


@dataclass(frozen=True)
class TrainingSpeed:
    """The speed of the first steps of a recipe: medians."""

    seconds_per_step: float
    tokens_per_second: float


def measure_training_speed(recipe: Recipe, device: torch.device) -> TrainingSpeed:
    """Time the first steps of a recipe."""
    probe = _first_steps(recipe, device, _GPU_STEPS if device.type == "cuda" else _CPU_STEPS)
    skipped = min(_WARMUP_STEPS, len(probe.times) - 2)
    seconds = [after - before for before, after in pairwise(probe.times[skipped:])]
    tokens = [after - before for before, after in pairwise(probe.tokens[skipped:])]
    rates = [count / duration for count, duration in zip(tokens, seconds, strict=True)]
    return TrainingSpeed(median(seconds), median(rates))


def measure_training_memory(recipe: Recipe, device: torch.device) -> dict[str, int]:
    """The most bytes of GPU memory that a step uses, and how many of them, besides weights and what else stays from
    step to step, for each target token. Without CUDA graphs, whose memory is not given back between steps."""
    if device.type != "cuda":
        return {}
    eager = recipe.train.model_copy(update={"cuda_graphs": False})
    probe = _first_steps(recipe.model_copy(update={"train": eager}), device, _MEMORY_STEPS)
    tokens = [after - before for before, after in pairwise(probe.tokens)]
    own = [peak - before for (_, before), (peak, _) in pairwise(probe.memory)]
    per_token = max(count / number for count, number in zip(own, tokens, strict=True))
    return {"peak_memory": max(peak for peak, _ in probe.memory), "bytes_per_token": round(per_token)}


def _first_steps(recipe: Recipe, device: torch.device, steps: int) -> _Probe:
    """Take the first steps of a recipe in a folder that is deleted."""
    folder, probe = Path(tempfile.mkdtemp(prefix="regard-probe-")), _Probe(device, steps)
    quiet = recipe.train.model_copy(update={"validate_every": _NEVER, "save_every": _NEVER})
    try:
        with contextlib.suppress(_ProbeEndError):
            train(recipe.model_copy(update={"train": quiet}), folder / "run", device=device, callback=probe)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if len(probe.times) < 3:
        raise UserError(f"the recipe has only {len(probe.times)} steps, too few to measure its speed")
    return probe


def unmeasured(out: Path, results: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys of the runs whose speed is not known yet: of each rung the first on all data, if its model is there."""
    known = read_speeds(out)
    return [
        result["key"]
        for result in results
        if result["status"] == "finished"
        and (result["size"], result["seed"]) == (1, 1)
        and result["rung"] not in known
        and (out / "runs" / result["key"]).is_dir()
    ]


def read_speeds(out: Path) -> Speeds:
    """What was measured in a folder."""
    path = out / _FILE
    found: Speeds = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def write_speeds(out: Path, speeds: Speeds) -> None:
    write_text(out / _FILE, json.dumps(speeds, ensure_ascii=False, indent=1))


def main(out: Path, keys: Sequence[str]) -> int:
    """Measure the speed of these runs, one after the other, and add it to what is known."""
    for key in keys:
        plan = json.loads((out / "plans" / f"{key}.json").read_text(encoding="utf-8"))
        try:
            with listen_to_phases(None):
                found = _measure(out, plan)
        except (UserError, DivergedError) as error:
            found = {"problem": str(error)}
        except torch.OutOfMemoryError:
            found = {"problem": f"it ran out of memory on {plan['device']}"}
        write_speeds(out, {**read_speeds(out), plan["rung"]: found})
        gc.collect()  # CUDA graphs of the last model, which refer to themselves
        print(f"{key}: {json.dumps(found)}", flush=True)
    return 0


def _measure(out: Path, plan: Mapping[str, Any]) -> dict[str, Any]:
    device, values = select_device(plan["device"]), plan["recipe"]
    if plan["init_from"]:
        values = values | {"init_from": str(out / "runs" / plan["init_from"])}
    recipe, found = read_values(values), dict[str, Any]()
    if not isinstance(build_meta(recipe.expected_model_config), Estimated):  # n-grams are counted in no steps
        found["tokens_per_second"] = round(measure_training_speed(recipe, device).tokens_per_second, 1)
        found |= measure_training_memory(recipe, device)
    pipeline: Any = open_model(out / "runs" / plan["key"], device)
    milliseconds = measure_decoding_time(pipeline.model.eval())
    return found | {"ms_per_decoded_token": None if milliseconds is None else round(milliseconds, 4)}


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
