"""Quality: a recipe of any task but translation trained from its files, with several seeds.

    python benchmarks/tasks.py digits --seeds 1 2 3

One JSON file a recipe, task-RECIPE, under benchmarks/results: each run's scores on the recipe's test sets, and over all
seeds the mean of every measure, the standard deviation of the first, and the slowest run's seconds, from files to
scores. Translation has translation.py, which also trains a peer.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, say, write_results

from regard.cli.progress import TrainingDisplay
from regard.task import Recipe, read_recipe, train
from regard.task.recipe import MEASURES


def train_once(recipe: Recipe, device: str, keep: Path | None) -> dict[str, Any]:
    """A run by the recipe, from files to scores; its folder is kept where asked."""
    with tempfile.TemporaryDirectory() as folder, TrainingDisplay(recipe.train.steps, recipe.counted) as display:
        place = (keep or Path(folder)) / f"{recipe.name}-{recipe.train.seed}"
        begin = time.perf_counter()
        trained = train(recipe, place, device=device, listener=display)
        seconds = time.perf_counter() - begin
        origin = json.loads((place / "run.json").read_text(encoding="utf-8"))["origin"]
    return {
        "scores": {name: score.rounded() for name, score in trained.scores.items()},
        "training_seconds": trained.seconds,
        "seconds": seconds,
        "parameters": origin["parameters"],
        "non_embedding": origin["non_embedding"],
        "flops": origin["flops"],
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds, and standard deviations of the first measure where there are several."""
    sets: dict[str, dict[str, Any]] = runs[0]["scores"]
    measures = [name for name in MEASURES if name in next(iter(sets.values()))]

    def of(measure: str, test: str) -> list[float]:
        return [run["scores"][test][measure] for run in runs]

    return {
        "case": "summary",
        "seeds": [run["seed"] for run in runs],
        **{measure: {test: statistics.mean(of(measure, test)) for test in sets} for measure in measures},
        "spread": {test: statistics.stdev(of(measures[0], test)) if len(runs) > 1 else None for test in sets},
        "spread_of": measures[0],
        "slowest_seconds": max(run["seconds"] for run in runs),
    }


def kept(name: str, seeds: list[int]) -> list[dict[str, Any]]:
    """The runs with other seeds that were measured before."""
    path = RESULTS / f"{name}.json"
    before = json.loads(path.read_text(encoding="utf-8"))["cases"] if path.is_file() else []
    return [case for case in before if "seed" in case and case["seed"] not in seeds]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--keep", type=Path, help="a folder to keep the finished runs in")
    parser.add_argument("--add", action="store_true", help="keep the seeds that the results already hold")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    runs = []
    for seed in options.seeds:
        recipe = read_recipe(options.recipe, [*options.changes, f"train.seed={seed}"])
        found = train_once(recipe, options.device, options.keep)
        runs.append(say({"case": "ours", "seed": seed, "changes": options.changes, **found}))
    name = f"task-{options.recipe}"
    if options.add:
        runs = [*kept(name, options.seeds), *runs]
    print(f"written: {write_results(name, [*runs, say(summary(runs))])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
