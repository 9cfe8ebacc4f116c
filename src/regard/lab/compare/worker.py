"""One run of a comparison, in a process of its own: `python -m regard.lab.compare.worker OUT KEY`.

A rung that diverges, is killed or runs out of memory ends this process and nothing else. Whatever happens, the result
is a file: what was measured, or one sentence that says what went wrong.
"""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from regard.errors import UserError
from regard.files import write_text
from regard.kernels.dispatch import select_device
from regard.lab.compare.ladder import Ladder
from regard.lab.compare.measure import measure, measure_decoding
from regard.lab.compare.speed import measure_training_speed
from regard.model import build_meta
from regard.progress import listen_to_phases
from regard.task.base import Recipe
from regard.task.recipe_io import with_steps
from regard.task.registry import read_values
from regard.task.run import log_cost, train
from regard.train.callback import Callback, PrinterCallback
from regard.train.distributed.process_group import SINGLE_PROCESS
from regard.train.estimation import Estimated
from regard.train.runtime import DivergedError, StoppedError

_COUNTED_BATCHES = 100
"""The batches whose mean number of tokens decides how many steps a budget of tokens allows."""
STOPPED = 130
"""The exit code of a run that was stopped and can be resumed."""


def main(out: Path, key: str) -> int:
    """Train and measure the run `key` of a comparison; the exit code says whether there is a result."""
    plan = json.loads((out / "plans" / f"{key}.json").read_text(encoding="utf-8"))
    result = {name: plan[name] for name in ("key", "rung", "label", "size", "seed")}
    folder, start = out / "runs" / key, time.time()
    try:
        device, ladder = select_device(plan["device"]), Ladder.read(plan["ladder"])
        _check_needs(out, plan)
        with listen_to_phases(None):
            if plan["decodes"]:
                recipe, folders = read_values(plan["recipe"]), [out / "runs" / each for each in plan["decodes"]]
                result |= {"status": "finished", **measure_decoding(recipe, folders, ladder, device)}
                result["flops"] = sum(_result(out, each)["flops"] for each in plan["decodes"])
            else:
                recipe = _recipe(out, plan, ladder, device)
                resume = (folder / "recipe.toml").exists()
                train(recipe, folder, resume=resume, device=device, callback=PrinterCallback())
                result |= {"status": "finished", **measure(recipe, folder, ladder, device)}
                if plan["init_from"]:
                    result["flops"] += _result(out, plan["init_from"])["flops"]
    except StoppedError:
        return STOPPED
    except DivergedError as error:
        result |= {
            "status": "diverged",
            "problem": f"it diverged: the loss was no longer finite at step {error.step:,}",
        }
    except UserError as error:
        result |= {"status": "failed", "problem": str(error)}
    except torch.OutOfMemoryError:
        result |= {"status": "failed", "problem": f"it ran out of memory on {plan['device']}"}
    result["wall_seconds"] = round(time.time() - start, 1)
    write_text(out / "results" / f"{key}.json", json.dumps(result, ensure_ascii=False, indent=1))
    if result["status"] == "finished":  # checkpoints are large, and only an unfinished run needs them
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return 0


def _result(out: Path, key: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "results" / f"{key}.json").read_text(encoding="utf-8"))
    return found


def _check_needs(out: Path, plan: Mapping[str, Any]) -> None:
    for key in plan["needs"]:
        path = out / "results" / f"{key}.json"
        if not path.is_file() or _result(out, key)["status"] != "finished":
            raise UserError(f"it needs the model of {key}, which did not finish")


def _recipe(out: Path, plan: dict[str, Any], ladder: Ladder, device: torch.device) -> Recipe:
    """What a run trains, with its steps decided, which the plan then records."""
    if plan["init_from"]:
        return read_values(plan["recipe"] | {"init_from": str(out / "runs" / plan["init_from"])})
    recipe = read_values(plan["recipe"])
    if isinstance(build_meta(recipe.expected_model_config), Estimated):
        return recipe  # it reads its data once, whatever the budget
    if plan.get("steps") is None and ladder.budget.kind in ("tokens", "flops", "minutes"):
        plan["steps"] = _steps(recipe, ladder, plan["size"], device)
        write_text(out / "plans" / f"{plan['key']}.json", json.dumps(plan, ensure_ascii=False, indent=1))
    return recipe if plan.get("steps") is None else with_steps(recipe, plan["steps"])


def _steps(recipe: Recipe, ladder: Ladder, size: float, device: torch.device) -> int:
    """The number of steps that the budget allows a rung."""
    kind, value = ladder.budget.kind, ladder.budget.of(size)
    if kind == "minutes":
        per_step = measure_training_speed(recipe, device).seconds_per_step / 60
    else:
        with tempfile.TemporaryDirectory(prefix="regard-probe-") as folder:
            task = recipe.build_task(Path(folder), lambda message: None, SINGLE_PROCESS)
            if kind == "flops":
                per_step = float(log_cost(recipe, task, device, Callback()).flops_per_step)
            else:
                counts = [batch.count for batch in islice(task.batches.epochs(), _COUNTED_BATCHES)]
                per_step = recipe.train.grad_accumulation * fmean(counts)
    steps = value / per_step
    if steps < 1:
        raise UserError(
            f"the budget of {value:g} {kind} is impossible: a single step of this rung takes {per_step:.3g} {kind}"
        )
    return round(steps)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
