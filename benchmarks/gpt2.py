"""GPT-2 with 124 million parameters for a hundred steps, by the command: its speed, a stop, the way on, a sample.

    python benchmarks/gpt2.py

Trains the recipe `gpt2-124m` for 100 steps, interrupts it as Ctrl-C does once half of them are done, lets it go on with
`--resume`, and writes a few words with what came out. Tokens a second are those of the loop, as it reports them. Beside
it stands the speed of the bare steps, where `train.py --gpu` has measured it.
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

from common import RESULTS, say, write_results

STEPS, HALF, EVERY = 100, 50, 5
CHANGES = {
    "train.steps": STEPS, "train.schedule.warmup": 20, "train.log_every": EVERY,
    "train.validate_every": STEPS, "train.save_every": STEPS // 4,
}  # fmt: skip
PROMPT = "The jury said"


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "regard", *words]


def logged(folder: Path) -> list[dict[str, Any]]:
    """What the run has noted of its steps so far."""
    path = folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines]


def steps_done(folder: Path) -> int:
    return max((int(values["step"]) for values in logged(folder)), default=0)


def interrupted(words: list[str], folder: Path) -> int:
    """Start a training and interrupt it when half of its steps are noted; how many are."""
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        while steps_done(folder) < HALF and running.poll() is None:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate()
    if steps_done(folder) < HALF:
        raise RuntimeError(f"The training ended early:\n{said}")
    return steps_done(folder)


def bare_speed() -> float | None:
    path = RESULTS / "train-gpu.json"
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"] if path.is_file() else []
    return next((case["ours"] for case in cases if case["case"].startswith("GPT-2")), None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    changes = [f"{key}={value}" for key, value in CHANGES.items()] + options.changes
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        words = command("train", "gpt2-124m", "--out", str(folder))
        for change in changes:
            words += ["--set", change]
        stopped = interrupted(words, folder)
        done = subprocess.run([*words, "--resume"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        steps = [values for values in logged(folder) if "words_per_second" in values]
        # The first after each start holds compiling and recording.
        speeds = [values["words_per_second"] for values in steps if values["step"] not in (EVERY, stopped + EVERY)]
        asked = command("generate", str(folder), PROMPT, "--length", "30", "--seed", "1")
        sample = subprocess.run(asked, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"})
        case = {
            "case": f"gpt2-124m, {STEPS} steps",
            "changes": changes,
            "stopped_at": stopped,
            "ended_at": steps_done(folder),
            "tokens_per_second": statistics.median(speeds),
            "bare_tokens_per_second": bare_speed(),
            "losses": {values["step"]: values["loss"] for values in steps},
            "validation": [values for values in logged(folder) if "valid/loss" in values],
            "sample": sample.stdout.strip(),
        }
    print(f"written: {write_results('gpt2', [say(case)])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
