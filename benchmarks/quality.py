"""What measuring quality shares: a recipe trained with several seeds, one after the other or side by side.

Small models leave most of a GPU idle, so several runs may share it, each in a process of its own (start NVIDIA's MPS
first, and their kernels run at the same time too). How many others ran beside it is part of a result, since its seconds
are then not those of a run alone.
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
from common import RESULTS, say, write_results

from regard.task.recipe import MEASURES

Run = dict[str, Any]


def command_line(about: str | None) -> argparse.ArgumentParser:
    """What every such benchmark takes."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--keep", type=Path, help="a folder to keep the finished runs in")
    parser.add_argument("--add", action="store_true", help="keep the seeds that the results already hold")
    parser.add_argument("--together", type=int, default=1, help="so many seeds side by side")
    parser.add_argument("--beside", type=int, default=0, help="how many other processes are at work on the device")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    return parser


def measure(name: str, options: argparse.Namespace, train_one: Callable[[int], Run]) -> int:
    """Train with each seed and write what came out under a name."""
    if options.one:
        print(json.dumps(train_one(options.seeds[0])))
        return 0
    runs = []
    for seed, found in _side_by_side(options) if options.together > 1 else _in_turn(options, train_one):
        beside = options.beside + min(options.together, len(options.seeds)) - 1
        facts = {"beside": beside} if beside else {}
        runs.append(say({"case": "ours", "seed": seed, "changes": options.changes, **found, **facts}))
    if options.add:
        runs = [*_kept(name, options.seeds), *runs]
    runs.sort(key=lambda run: int(run["seed"]))
    print(f"written: {write_results(name, [*runs, say(summary(runs))])}")
    return 0


def summary(runs: list[Run]) -> Run:
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


def _in_turn(options: argparse.Namespace, train_one: Callable[[int], Run]) -> Iterator[tuple[int, Run]]:
    for seed in options.seeds:
        yield seed, train_one(seed)


def _side_by_side(options: argparse.Namespace) -> Iterator[tuple[int, Run]]:
    """Each seed in a process of its own, which runs this very command for that seed alone."""
    for first in range(0, len(options.seeds), options.together):
        seeds = options.seeds[first : first + options.together]
        running = {seed: subprocess.Popen(_command(seed), stdout=subprocess.PIPE, text=True) for seed in seeds}
        try:
            for seed, process in running.items():
                output, _ = process.communicate()
                if process.returncode:
                    raise RuntimeError(f"The run with seed {seed} ended with code {process.returncode}.")
                yield seed, json.loads(output.splitlines()[-1])
        finally:  # where one failed, nobody waits for the others
            for process in running.values():
                process.terminate()


def _command(seed: int) -> list[str]:
    return [sys.executable, *sys.argv, "--seeds", str(seed), "--one"]  # what is given last counts


def _kept(name: str, seeds: list[int]) -> list[Run]:
    """The runs with other seeds that were measured before."""
    path = RESULTS / f"{name}.json"
    before = json.loads(path.read_text(encoding="utf-8"))["cases"] if path.is_file() else []
    return [case for case in before if "seed" in case and case["seed"] not in seeds]
