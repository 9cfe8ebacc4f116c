"""Measure the time from starting Python until the recipe `shakespeare` reaches nanoGPT's validation loss.

    python benchmarks/quality/shakespeare.py --seeds 1 2 3

Each run has its own process and an empty kernel cache, and validates often. The time includes importing, reading the
data, compiling kernels and training, but neither validation nor checkpoints. nanoGPT itself is not run: its figures
were measured earlier on the same GPU model.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import log, write_results

from regard.train.callback import Callback

TARGET_LOSS = 1.4697
"""The validation loss that nanoGPT reports for its own recipe."""
NANOGPT_SECONDS, NANOGPT_BEST = 52.0, 1.4675
"""nanoGPT's time to that loss, with 31 s of compilation and without evaluation, and its best loss on all validation
data."""


class ValidationTimer(Callback):
    """Records each validation loss with the time since the start, not counting validations."""

    def __init__(self, start: float) -> None:
        self.start, self.excluded, self.last_step = start, 0.0, 0.0
        self.curve: list[tuple[int, float, float]] = []  # step, seconds, loss

    def on_train_metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.last_step = time.time()

    def on_validation_metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.curve.append((step, self.last_step - self.start - self.excluded, values["nll"]))
        self.excluded += time.time() - self.last_step


def train_seed(seed: int, start: float, validate_every: int, device: str) -> dict[str, Any]:
    """Train with one seed and report when it reached the target loss. `start`: when this process was started."""
    from regard.task.recipe_io import read_recipe
    from regard.task.run import train

    timer = ValidationTimer(start)
    intervals = [f"train.validate_every={validate_every}", f"train.log_every={validate_every}"]
    recipe = read_recipe("shakespeare", [f"train.seed={seed}", *intervals, "train.save_every=1000000"])
    with tempfile.TemporaryDirectory() as folder:
        trained = train(recipe, Path(folder) / "run", device=device, callback=timer)
    reached = [point for point in timer.curve if point[2] <= TARGET_LOSS]
    best = min(timer.curve, key=lambda point: point[2])
    return {
        "case": f"from start to a loss of {TARGET_LOSS}",
        "seed": seed,
        "seconds": reached[0][1] if reached else None,
        "step": reached[0][0] if reached else None,
        "final_loss": trained.scores["valid"].rounded()["loss"],
        "best_loss": best[2],
        "best_step": best[0],
        "curve": [[step, round(seconds, 2), round(loss, 4)] for step, seconds, loss in timer.curve],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--validate-every", type=int, default=50, help="steps between validations (default: 50)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(
            json.dumps(train_seed(int(options.one[0]), float(options.one[1]), options.validate_every, options.device))
        )
        return 0
    cases = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as kernel_cache:
            arguments = ["--validate-every", str(options.validate_every), "--device", options.device]
            completed = subprocess.run(
                [sys.executable, __file__, *arguments, "--one", str(seed), str(time.time())],
                env={**os.environ, "TRITON_CACHE_DIR": kernel_cache},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        cases.append(log(json.loads(completed.stdout.splitlines()[-1])))
    times = [case["seconds"] for case in cases if case["seconds"] is not None]
    cases.append(
        log(
            {
                "case": "summary",
                "seeds": options.seeds,
                "seconds": statistics.mean(times) if len(times) == len(options.seeds) else None,
                "peer_seconds": NANOGPT_SECONDS,
                "ratio": NANOGPT_SECONDS / statistics.mean(times) if len(times) == len(options.seeds) else None,
                "final_loss": statistics.mean(case["final_loss"] for case in cases),
                "peer_best_loss": NANOGPT_BEST,
            }
        )
    )
    print(f"written: {write_results('shakespeare-time', cases)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
