"""Train GPT-2 (124M parameters) for 100 steps on the command line: speed, interruption, resumption and a sample.

    python benchmarks/quality/gpt2.py

Trains the recipe `gpt2-124m`, interrupts it after half of the steps as Ctrl-C does, continues with `--resume`, and
generates a sample. The tokens per second are those that the trainer logs; for comparison the results include the speed
of the training step alone, if `train.py --gpu` has measured it.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, log, write_results

STEPS, INTERRUPT_AT, LOG_EVERY = 100, 50, 5
OVERRIDES = {
    "train.steps": STEPS, "train.schedule.warmup_steps": 20, "train.log_every": LOG_EVERY,
    "train.validate_every": STEPS, "train.save_every": STEPS // 4,
}  # fmt: skip
PROMPT = "The jury said"


def regard_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "regard", *arguments]


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The metrics that the run has logged so far."""
    path = folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines]


def last_step(folder: Path) -> int:
    """The last logged step."""
    return max((int(metrics["step"]) for metrics in read_metrics(folder)), default=0)


def train_and_interrupt(command: list[str], folder: Path) -> int:
    """Start training and interrupt it after half of its steps. Returns the last logged step."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while last_step(folder) < INTERRUPT_AT and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    if last_step(folder) < INTERRUPT_AT:
        raise RuntimeError(f"Training ended early:\n{errors}")
    return last_step(folder)


def step_speed() -> float | None:
    """The tokens per second of the training step alone, from the results of `train.py --gpu`."""
    path = RESULTS / "train-gpu.json"
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"] if path.is_file() else []
    return next((case["ours"] for case in cases if case["case"].startswith("GPT-2")), None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="override a recipe key"
    )
    options = parser.parse_args()
    overrides = [f"{key}={value}" for key, value in OVERRIDES.items()] + options.overrides
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        command = regard_command("train", "gpt2-124m", "--out", str(folder))
        for override in overrides:
            command += ["--set", override]
        stopped = train_and_interrupt(command, folder)
        resumed = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False)
        if resumed.returncode:
            raise RuntimeError(resumed.stderr)
        steps = [metrics for metrics in read_metrics(folder) if "tokens_per_second" in metrics]
        warmups = (LOG_EVERY, stopped + LOG_EVERY)  # these include compilation and the capture of CUDA graphs
        speeds = [metrics["tokens_per_second"] for metrics in steps if metrics["step"] not in warmups]
        generate = regard_command("generate", str(folder), PROMPT, "--max-new-tokens", "30", "--seed", "1")
        environment = {**os.environ, "COLUMNS": "200"}
        sample = subprocess.run(generate, capture_output=True, text=True, check=True, env=environment)
        case = {
            "case": f"gpt2-124m, {STEPS} steps",
            "changes": overrides,
            "stopped_at": stopped,
            "ended_at": last_step(folder),
            "tokens_per_second": statistics.median(speeds),
            "bare_tokens_per_second": step_speed(),
            "losses": {metrics["step"]: metrics["loss"] for metrics in steps},
            "validation": [metrics for metrics in read_metrics(folder) if "valid/loss" in metrics],
            "sample": sample.stdout.strip(),
        }
    print(f"written: {write_results('gpt2', [log(case)])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
