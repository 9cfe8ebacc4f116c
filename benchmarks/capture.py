"""Replaying recorded passes on a GPU: the same training, and how much faster (`python benchmarks/capture.py`).

A small model is trained for some steps twice from the same seed, once with every pass recorded and replayed as a CUDA
graph, once launched kernel by kernel. The losses of both are compared step by step, and the time of a step is taken
after all shapes have been met.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import say, write_results

from regard.task.prepare import prepare
from regard.task.recipe import read_recipe
from regard.task.translation import TranslationTask
from regard.train.loop import Loop

STEPS = 300
TIMED = 100


def train(changes: list[str], capture: bool) -> tuple[list[float], float, float]:
    """The loss of every step, and the seconds of all steps and of one at the end."""
    recipe = read_recipe("multi30k-en-de", [*changes, f"train.capture={str(capture).lower()}"])
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(recipe, Path(folder), lambda sentence: None, None)
        torch.manual_seed(recipe.train.seed)
        model = recipe.model_settings(prepared.target.vocabulary).build()
        task = TranslationTask(recipe, prepared, model)
        loop = Loop(task, recipe.train, Path(folder), device="cuda")
        losses = []
        torch.cuda.synchronize()
        begin = late = time.perf_counter()
        for step, loss in enumerate(loop.steps(STEPS), start=1):
            losses.append(loss.total / loss.count)
            if step == STEPS - TIMED:
                torch.cuda.synchronize()
                late = time.perf_counter()
        torch.cuda.synchronize()
        end = time.perf_counter()
    return torch.stack(losses).tolist(), end - begin, (end - late) / TIMED


def compare(name: str, changes: list[str]) -> dict[str, Any]:
    ours, all_ours, step_ours = train(changes, capture=True)
    plain, all_plain, step_plain = train(changes, capture=False)
    difference = max(abs(one - other) for one, other in zip(ours[:50], plain[:50], strict=True))
    return {
        "case": name,
        "captured_step_ms": 1e3 * step_ours,
        "plain_step_ms": 1e3 * step_plain,
        "ratio": step_plain / step_ours,
        "captured_seconds_of_all": all_ours,
        "plain_seconds_of_all": all_plain,
        "largest_difference_of_50_losses": difference,
        "passed": difference < 0.02,
    }


def main() -> int:
    if not torch.cuda.is_available():
        print("There is no GPU here, and nothing to record on a CPU.", file=sys.stderr)
        return 2
    cases = [
        say(compare("float32", ["train.precision=fp32", "train.loss.consistency=0.0"])),
        say(compare("bf16", ["train.loss.consistency=0.0"])),
        say(compare("bf16, two passes (R-Drop)", [])),
    ]
    print(f"written: {write_results('capture-gpu', cases)}")
    return 0 if all(case["passed"] for case in cases) else 1


if __name__ == "__main__":
    sys.exit(main())
