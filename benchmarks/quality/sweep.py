"""Hyperparameter sweep: train variants of a recipe in parallel and compare them on the validation set.

    python benchmarks/quality/sweep.py multi30k-en-de variants.toml --parallel 4

The TOML file lists the overrides of each variant:

    "dropout 0.1" = ["model.encoder.dropout=0.1", "model.decoder.dropout=0.1"]
    "twice as long" = ["train.steps=12000"]

Small models leave most of a GPU idle, so several variants can share it, each in its own process (start NVIDIA MPS first
so that their kernels overlap too). The duration of such runs is not meaningful and is not recorded. Each result is
appended to benchmarks/results/tries-RECIPE.json as soon as its variant is finished.
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

from benchmarks.common import RESULTS, log, write_results

from regard.task.recipe_io import read_recipe
from regard.task.run import train
from regard.train.callback import Callback


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="name or path of the recipe")
    parser.add_argument("variants", nargs="?", type=Path, help="TOML file with the name and the overrides of each")
    parser.add_argument("--parallel", type=int, default=1, help="number of variants to train at a time (default: 1)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(train_variant(options.recipe, json.loads(options.one), options.device)))
        return 0
    if options.variants is None:
        parser.error("the following arguments are required: variants")
    variants = tomllib.loads(options.variants.read_text(encoding="utf-8"))
    return 1 if train_all(options.recipe, variants, options.device, options.parallel) else 0


def train_variant(name: str, overrides: list[str], device: str) -> dict[str, Any]:
    """Train one variant and evaluate it on the validation set."""
    recipe = replace_test_sets(read_recipe(name, overrides))
    with tempfile.TemporaryDirectory() as folder:
        trained = train(recipe, Path(folder) / "run", device=device, callback=Callback())
        lines = (trained.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    validations = [metrics for metrics in map(json.loads, lines) if "valid/nll" in metrics]
    best = min(validations, key=lambda metrics: float(metrics["valid/nll"]))
    return {
        "seed": recipe.train.seed,
        "changes": overrides,
        "scores": {"valid": trained.scores["valid"].rounded()},
        "valid_loss": validations[-1]["valid/nll"],
        "best_valid_loss": best["valid/nll"],
        "best_step": best["step"],
    }


def replace_test_sets(recipe: Any) -> Any:
    """The recipe with its test sets replaced by its validation set, so that no choice depends on test data."""
    assert recipe.data.valid is not None
    data = recipe.data.model_copy(update={"test": {"valid": recipe.data.valid}})
    return recipe.model_copy(update={"data": data, "expect": None})


def train_all(name: str, variants: dict[str, list[str]], device: str, parallel: int) -> int:
    """Train all variants, `parallel` at a time, each in its own process. Returns the number of failed ones."""
    waiting, failed = list(variants.items()), 0
    running: dict[str, subprocess.Popen[str]] = {}
    while waiting or running:
        while waiting and len(running) < parallel:
            variant, overrides = waiting.pop(0)
            command = [sys.executable, __file__, name, "--one", json.dumps(overrides), "--device", device]
            running[variant] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        time.sleep(1)
        for variant, process in list(running.items()):
            if process.poll() is None:
                continue
            del running[variant]
            output = process.stdout.read() if process.stdout is not None else ""
            if process.returncode:
                failed += 1
                print(f"{variant}: failed with exit code {process.returncode}", file=sys.stderr)
            else:
                append_result(name, log({"case": variant, **json.loads(output.splitlines()[-1])}))
    return failed


def append_result(name: str, case: dict[str, Any]) -> Path:
    """Append a case to the results file of the recipe. Earlier cases are never removed."""
    results_name = f"tries-{name}"
    path = RESULTS / f"{results_name}.json"
    earlier = json.loads(path.read_text(encoding="utf-8"))["cases"] if path.is_file() else []
    return write_results(results_name, [*earlier, case])


if __name__ == "__main__":
    sys.exit(main())
