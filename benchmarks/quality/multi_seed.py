"""Train a recipe with several seeds, one after the other or in parallel, and summarize the scores.

Small models leave most of a GPU idle, so several runs can share it, each in its own process (start NVIDIA MPS first so
that their kernels overlap too). A result includes the number of concurrent processes, since they make a run slower.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from benchmarks.common import RESULTS, log, write_results

from regard.task.expect import METRICS

Result = dict[str, Any]


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """The common arguments of multi-seed benchmarks."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="name or path of the recipe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="override a recipe key"
    )
    parser.add_argument("--output-dir", type=Path, help="folder for the run folders, which are deleted otherwise")
    parser.add_argument("--add", action="store_true", help="keep the results of other seeds in the results file")
    parser.add_argument("--parallel", type=int, default=1, help="number of seeds to train at a time (default: 1)")
    parser.add_argument(
        "--concurrent", type=int, default=0, help="number of other processes that use the device (default: 0)"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    return parser


def measure(name: str, options: argparse.Namespace, train_seed: Callable[[int], Result]) -> int:
    """Train with each seed and write the results to benchmarks/results/NAME.json."""
    if options.one:
        print(json.dumps(train_seed(options.seeds[0])))
        return 0
    results = []
    for seed, result in _in_parallel(options) if options.parallel > 1 else _sequentially(options, train_seed):
        concurrent = options.concurrent + min(options.parallel, len(options.seeds)) - 1
        extra = {"beside": concurrent} if concurrent else {}
        results.append(log({"case": "ours", "seed": seed, "changes": options.overrides, **result, **extra}))
    if options.add:
        results = [*_results_of_other_seeds(name, options.seeds), *results]
    results.sort(key=lambda result: int(result["seed"]))
    print(f"written: {write_results(name, [*results, log(summary(results))])}")
    return 0


def summary(results: list[Result]) -> Result:
    """The mean of every metric over the seeds, and the standard deviation of the first if there are several seeds."""
    test_sets: dict[str, dict[str, Any]] = results[0]["scores"]
    first = next(iter(test_sets.values()))
    metrics = [name for name in METRICS if isinstance(first.get(name), int | float)]  # not the F1 of each class

    def scores(metric: str, test_set: str) -> list[float]:
        return [result["scores"][test_set][metric] for result in results]

    return {
        "case": "summary",
        "seeds": [result["seed"] for result in results],
        **{metric: {name: statistics.mean(scores(metric, name)) for name in test_sets} for metric in metrics},
        "spread": {
            name: statistics.stdev(scores(metrics[0], name)) if len(results) > 1 else None for name in test_sets
        },
        "spread_of": metrics[0],
        "slowest_seconds": max(result["seconds"] for result in results),
    }


def _sequentially(options: argparse.Namespace, train_seed: Callable[[int], Result]) -> Iterator[tuple[int, Result]]:
    for seed in options.seeds:
        yield seed, train_seed(seed)


def _in_parallel(options: argparse.Namespace) -> Iterator[tuple[int, Result]]:
    """Train each seed in a process of its own, which runs this command with that seed only."""
    for start in range(0, len(options.seeds), options.parallel):
        seeds = options.seeds[start : start + options.parallel]
        running = {seed: subprocess.Popen(_command(seed), stdout=subprocess.PIPE, text=True) for seed in seeds}
        try:
            for seed, process in running.items():
                output, _ = process.communicate()
                if process.returncode:
                    raise RuntimeError(f"The run with seed {seed} failed with exit code {process.returncode}.")
                yield seed, json.loads(output.splitlines()[-1])
        finally:  # if one failed, stop the others
            for process in running.values():
                process.terminate()


def _command(seed: int) -> list[str]:
    return [sys.executable, *sys.argv, "--seeds", str(seed), "--one"]  # the last --seeds takes precedence


def _results_of_other_seeds(name: str, seeds: list[int]) -> list[Result]:
    """The results in the file, without those of `seeds`."""
    path = RESULTS / f"{name}.json"
    earlier = json.loads(path.read_text(encoding="utf-8"))["cases"] if path.is_file() else []
    return [case for case in earlier if "seed" in case and case["seed"] not in seeds]
