"""Try variations of a recipe side by side and judge them by the validation set.

    python benchmarks/tries.py multi30k-en-de tries.toml --together 4

The file names each try and what it changes:

    "dropout 0.1" = ["model.encoder.dropout=0.1", "model.decoder.dropout=0.1"]
    "twice as long" = ["train.steps=12000"]

Small models leave most of a GPU idle, so several share it, in processes of their own (start NVIDIA's MPS first, and
their kernels run at the same time too). Times of such runs say nothing and are not kept. Results are added to
benchmarks/results/tries-RECIPE.json as they come.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

from common import RESULTS, say, write_results

from regard.task import read_recipe, train
from regard.train.loop import Silent


def judged_by_validation(recipe: Any) -> Any:
    """The recipe with its validation set in the place of its test sets, which are not to be looked at."""
    assert recipe.data.valid is not None
    data = recipe.data.model_copy(update={"test": {"valid": recipe.data.valid}})
    return recipe.model_copy(update={"data": data, "expect": None})


def try_one(name: str, changes: list[str], device: str) -> dict[str, Any]:
    recipe = judged_by_validation(read_recipe(name, changes))
    with tempfile.TemporaryDirectory() as folder:
        trained = train(recipe, Path(folder) / "run", device=device, listener=Silent())
        lines = (trained.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    found = [values for values in map(json.loads, lines) if "valid/loss" in values]
    best = min(found, key=lambda values: float(values["valid/loss"]))
    return {
        "seed": recipe.train.seed,
        "changes": changes,
        "scores": {"valid": trained.scores["valid"].rounded()},
        "valid_loss": found[-1]["valid/loss"],
        "best_valid_loss": best["valid/loss"],
        "best_step": best["step"],
    }


def try_all(name: str, tries: dict[str, list[str]], device: str, together: int) -> int:
    """All tries, so many at a time, each in a process of its own; how many failed."""
    waiting, failed = list(tries.items()), 0
    running: dict[str, subprocess.Popen[str]] = {}
    while waiting or running:
        while waiting and len(running) < together:
            label, changes = waiting.pop(0)
            command = [sys.executable, __file__, name, "--one", json.dumps(changes), "--device", device]
            running[label] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        time.sleep(1)
        for label, process in list(running.items()):
            if process.poll() is None:
                continue
            del running[label]
            output = process.stdout.read() if process.stdout is not None else ""
            if process.returncode:
                failed += 1
                print(f"{label}: failed with code {process.returncode}", file=sys.stderr)
            else:
                add(name, say({"case": label, **json.loads(output.splitlines()[-1])}))
    return failed


def add(name: str, case: dict[str, Any]) -> Path:
    """Tries are added to those there are: nothing that was measured is forgotten."""
    file = f"tries-{name}"
    path = RESULTS / f"{file}.json"
    before = json.loads(path.read_text(encoding="utf-8"))["cases"] if path.is_file() else []
    return write_results(file, [*before, case])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("tries", nargs="?", type=Path, help="a TOML file: what each try is called and changes")
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(try_one(options.recipe, json.loads(options.one), options.device)))
        return 0
    tries = tomllib.loads(options.tries.read_text(encoding="utf-8"))
    return 1 if try_all(options.recipe, tries, options.device, options.together) else 0


if __name__ == "__main__":
    sys.exit(main())
