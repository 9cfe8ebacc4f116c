"""The speed of training and decoding on a CPU beside a busy process, relative to that on an idle machine.

    python benchmarks/busy_neighbor.py     # on an otherwise idle machine, for 12 minutes; --quick takes one

Training takes steps of the recipe `quick`; decoding translates with the model `en-tr`, one sentence at a time in plain
PyTorch and 64 at a time with the fused decoder; all on as many threads as there are cores. The busy process is a loop
in Python, or products of large matrices on one thread. Every measurement is a process of its own, in which idle and
busy periods alternate; the busy process is stopped and continued, and the first seconds after each change are not
counted. `spinning` is the same without the monitor of `kernels/cpu/threads.py`, and `idle_ratio` is the speed on an
idle machine with the monitor relative to that without.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from benchmarks.common import log, write_results

import regard
from regard.kernels.cpu.threads import watch_cores
from regard.task.recipe_io import read_recipe
from regard.task.translation.pipeline import Translator
from regard.train.distributed.process_group import SINGLE_PROCESS
from regard.train.trainer import Trainer

NEIGHBORS = {
    "a loop in Python": "while True: pass",
    "matrix products": "import torch; torch.set_num_threads(1); a = torch.randn(700, 700)\nwhile True: a @ a",
}
WORKLOADS = ("training", "decoding one by one", "decoding 64 at a time")
_STARTUP_SECONDS = 5.0
"""A neighbor that imports PyTorch is stopped only after that."""
_DEFAULT_SPINS = "300000"
"""libgomp's default, without the monitor: there is none if GOMP_SPINCOUNT is set."""
Work = Callable[[], float]
"""Does some work and returns how much: target tokens, or sentences."""


def make_work(workload: str) -> Work:
    return make_training() if workload == "training" else make_decoding(1 if "one" in workload else 64)


def make_training() -> Work:
    """A step of the recipe `quick`."""
    recipe = read_recipe("quick", [])
    with tempfile.TemporaryDirectory() as name:
        task = recipe.build_task(Path(name), lambda message: None, SINGLE_PROCESS)
        trainer = Trainer(task, recipe.train, Path(name))
    watch_cores()  # as `Trainer.run` does
    steps = trainer.steps(1_000_000)

    def work() -> float:
        before = trainer.state.tokens
        next(steps)
        return trainer.state.tokens - before

    return work


def make_decoding(batch: int) -> Work:
    """Translations of random sentences of known words."""
    translator = regard.load("en-tr")
    assert isinstance(translator, Translator)
    translator.backend.fused = batch > 1
    rng, words = random.Random(1), ("the", "cat", "ate", "a", "mouse", "and", "my", "old", "dog", "slept", "house")
    sentences = [f"{' '.join(rng.choices(words, k=rng.randint(4, 12)))}." for _ in range(batch)]
    decode = translator.search(None)

    def work() -> float:
        translator.translate_batch(sentences, decode)
        return batch

    return work


@contextmanager
def stopped_neighbor(code: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        time.sleep(_STARTUP_SECONDS)
        process.send_signal(signal.SIGSTOP)
        yield process
    finally:
        process.kill()
        process.wait()


def rate(work: Work, settle: float, seconds: float) -> float:
    """Work per second, after some seconds that are not counted."""
    start = time.perf_counter()
    while time.perf_counter() - start < settle:
        work()
    done, start = 0.0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        done += work()
    return done / elapsed


def measure(workload: str, neighbor: str, quick: bool) -> dict[str, list[float]]:
    """The rates in idle and busy periods, in this process."""
    rounds, seconds = (2, 2.0) if quick else (4, 4.0)
    torch.set_num_threads(os.cpu_count() or 1)
    work = make_work(workload)
    rates: dict[str, list[float]] = {"idle": [], "busy": []}
    with stopped_neighbor(NEIGHBORS[neighbor]) as process:
        rate(work, 0.0, seconds)  # imports and compiles everything
        for _ in range(rounds):
            for period, send in (("idle", signal.SIGSTOP), ("busy", signal.SIGCONT)):
                process.send_signal(send)
                rates[period].append(rate(work, 2.0, seconds))
    return rates


def measure_in_subprocess(workload: str, neighbor: str, spinning: bool, quick: bool) -> dict[str, list[float]]:
    command = [sys.executable, __file__, "--measure", workload, neighbor, *["--quick"] * quick]
    environment = os.environ | ({"GOMP_SPINCOUNT": _DEFAULT_SPINS} if spinning else {})
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    rates: dict[str, list[float]] = json.loads(process.stdout.splitlines()[-1])
    return rates


def compare(workload: str, neighbor: str, quick: bool) -> dict[str, Any]:
    """Both ways of waiting, each in a process of its own."""
    idle, busy = {}, {}
    for spinning in (False, True):
        rates = measure_in_subprocess(workload, neighbor, spinning, quick)
        idle[spinning], busy[spinning] = statistics.median(rates["idle"]), statistics.median(rates["busy"])
    return {
        "case": f"{workload} beside {neighbor}",
        "idle": idle[False],
        "busy": busy[False],
        "ratio": busy[False] / idle[False],
        "spinning": busy[True] / idle[True],
        "idle_ratio": idle[False] / idle[True],
        "unit": "target tokens a second" if workload == "training" else "sentences a second",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds of training only; no results are written")
    parser.add_argument("--measure", nargs=2, metavar=("WORKLOAD", "NEIGHBOR"), help="measure one case in this process")
    args = parser.parse_args()
    if args.measure:
        workload, neighbor = args.measure
        print(json.dumps(measure(workload, neighbor, args.quick)))
        return 0
    workloads, neighbors = (WORKLOADS[:1], list(NEIGHBORS)[:1]) if args.quick else (WORKLOADS, list(NEIGHBORS))
    cases = [log(compare(workload, neighbor, args.quick)) for workload in workloads for neighbor in neighbors]
    if not args.quick:
        print(f"Results written to {write_results('busy-neighbor', cases)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
