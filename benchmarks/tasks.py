"""Quality: a recipe of any task but translation trained from its files, with several seeds.

    python benchmarks/tasks.py digits --seeds 1 2 3
    python benchmarks/tasks.py brown --seeds 1 2 3 --together 3

One JSON file a recipe, task-RECIPE, under benchmarks/results: each run's scores on the recipe's test sets, and over all
seeds the mean of every measure, the standard deviation of the first, and the slowest run's seconds, from files to
scores. Translation has translation.py, which also trains a peer.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from quality import Run, command_line, measure

from regard.cli.progress import TrainingDisplay
from regard.task import Recipe, read_recipe, train


def train_once(recipe: Recipe, device: str, keep: Path | None) -> Run:
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


def main() -> int:
    options = command_line(__doc__).parse_args()

    def train_one(seed: int) -> Run:
        recipe = read_recipe(options.recipe, [*options.changes, f"train.seed={seed}"])
        return train_once(recipe, options.device, options.keep)

    return measure(f"task-{options.recipe}", options, train_one)


if __name__ == "__main__":
    sys.exit(main())
