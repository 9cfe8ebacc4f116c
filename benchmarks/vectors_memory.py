"""Training word vectors on a text of 5 GB needs the memory of one of 50 MB: peak memory of each part of a run.

    python benchmarks/vectors_memory.py                        # needs 10 GB of disk, which it gives back
    python benchmarks/vectors_memory.py --megabytes 20 200 --steps 0

A text is generated with 30,000 words by Zipf's law, in lines of 20, and in every fifth line a word that never occurs
again, so that the words to count grow with the text (data.words.max_distinct bounds them at a million). A process of
its own trains skip-gram on it as `regard train` does. Memory is counted twice: what the process has for itself
(RssAnon), and with the mapped files that the system can take back at any time (VmHWM). Results are written to
benchmarks/results/vectors-memory.json.
"""

import argparse
import multiprocessing
import os
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.common import log, process_memory_mb, write_results

from regard.progress import Phase
from regard.task.run import train
from regard.task.word_vectors.recipe import WordVectorsRecipe
from regard.train.callback import Callback

VOCABULARY, LINE, POOL = 30_000, 20, 100_000
MAX_DISTINCT = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[50, 5000], help="the sizes of the texts")
    parser.add_argument("--steps", type=int, default=10_000, help="blocks of 10,000 words to train on; 0: an epoch")
    args = parser.parse_args()
    spawn, cases = multiprocessing.get_context("spawn"), []
    for megabytes in args.megabytes:
        with tempfile.TemporaryDirectory() as folder, spawn.Pool(1) as pool:  # a process without a past
            cases.append(log(pool.apply(measure, (Path(folder), int(megabytes * 1e6), args.steps))))
    print(f"Results written to {write_results('vectors-memory', cases)}")


class MemoryOfPhases(Callback):
    """The most memory of each phase of a run, in MB."""

    def __init__(self) -> None:
        self.peaks: defaultdict[str, float] = defaultdict(float)
        self.tokens, self.text = 0, ""
        self._phases = ["start"]
        self._stopped = threading.Event()
        threading.Thread(target=self._sample, daemon=True).start()

    def log(self, message: str) -> None:
        if message.startswith("Training on "):
            self.text = message.removeprefix("Training on ")

    def on_phase_begin(self, phase: Phase) -> None:
        self._phases.append(phase.name)

    def on_phase_end(self, phase: Phase) -> None:
        self._phases.pop()

    def on_train_begin(self, step: int, tokens: int) -> None:
        self._phases[0] = "Training"

    def on_step(self, step: int, tokens: int) -> None:
        self.tokens = tokens

    def stop(self) -> None:
        self._stopped.set()

    def _sample(self) -> None:
        while not self._stopped.wait(0.05):
            name = self._phases[-1]
            self.peaks[name] = max(self.peaks[name], process_memory_mb()["RssAnon"])


def measure(folder: Path, size: int, steps: int) -> dict[str, Any]:
    """Train on a text of this many bytes."""
    os.environ["REGARD_CACHE"] = str(folder / "cache")
    text = folder / "text.txt"
    write_text(text, size)
    words = {"kind": "whitespace", "lowercase": False, "vocab_size": VOCABULARY, "max_distinct": MAX_DISTINCT}
    recipe = WordVectorsRecipe.model_validate(
        {
            "name": "memory",
            "description": "Skip-gram on a generated text.",
            "task": "word-vectors",
            "data": {"train": [{"path": str(text)}], "words": words},
            "model": {"kind": "skip-gram", "width": 100},
            "train": {"epochs": 1, "steps": steps},
        }
    )
    memory, start = MemoryOfPhases(), time.perf_counter()
    train(recipe, folder / "run", callback=memory)
    memory.stop()
    return {
        "case": f"{text.stat().st_size / 1e6:,.0f} MB of text",
        "text": memory.text,
        "words_trained_on": memory.tokens,
        "minutes": round((time.perf_counter() - start) / 60, 1),
        "peak_mb": round(max(memory.peaks.values())),
        "peak_mb_with_mapped_files": round(process_memory_mb()["VmHWM"]),
        "peak_mb_of_phases": {name: round(peak) for name, peak in memory.peaks.items()},
    }


def write_text(path: Path, size: int) -> None:
    """Sentences of Zipf's words, drawn from a pool, each fifth with a new word at its end."""
    rng, chances = np.random.default_rng(0), 1 / np.arange(1, VOCABULARY + 1)
    names = np.array([f"word{number:06}" for number in range(VOCABULARY)])
    drawn = names[rng.choice(VOCABULARY, size=(POOL, LINE), p=chances / chances.sum())]
    pool, new = [" ".join(line) for line in drawn.tolist()], 0
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < size:
            lines = [pool[row] for row in rng.integers(POOL, size=10_000)]
            for row in range(0, len(lines), 5):
                lines[row], new = f"{lines[row]} new{new}", new + 1
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
