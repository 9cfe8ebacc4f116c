"""Train a recipe of any task except translation with several seeds and evaluate it on its test sets.

    python benchmarks/quality/tasks.py digits --seeds 1 2 3
    python benchmarks/quality/tasks.py brown --seeds 1 2 3 --parallel 3

The results, benchmarks/results/task-RECIPE.json, contain the scores of each run, the mean of every metric over the
seeds, the standard deviation of the first metric, and the duration of the slowest run in seconds, from reading the data
to the scores. For translation use translation.py, which can also train a peer.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.quality.multi_seed import Result, argument_parser, measure

from regard.cli.training_display import TrainingDisplay
from regard.task.base import Recipe
from regard.task.recipe_io import read_recipe
from regard.task.run import train


def main() -> int:
    options = argument_parser(__doc__).parse_args()

    def train_seed(seed: int) -> Result:
        recipe = read_recipe(options.recipe, [*options.overrides, f"train.seed={seed}"])
        return train_and_evaluate(recipe, options.device, options.output_dir)

    return measure(f"task-{options.recipe}", options, train_seed)


def train_and_evaluate(recipe: Recipe, device: str, output_dir: Path | None) -> Result:
    """Train and evaluate a recipe. The run folder is deleted unless `output_dir` is given."""
    with tempfile.TemporaryDirectory() as folder, TrainingDisplay(recipe.train.steps, recipe.counted_unit) as display:
        run_folder = (output_dir or Path(folder)) / f"{recipe.name}-{recipe.train.seed}"
        start = time.perf_counter()
        trained = train(recipe, run_folder, device=device, callback=display)
        seconds = time.perf_counter() - start
        origin = json.loads((run_folder / "run.json").read_text(encoding="utf-8"))["origin"]
    return {
        "scores": {name: score.rounded() for name, score in trained.scores.items()},
        "training_seconds": trained.seconds,
        "seconds": seconds,
        "parameters": origin["parameters"],
        "non_embedding": origin["non_embedding"],
        "flops": origin["flops"],
    }


if __name__ == "__main__":
    sys.exit(main())
