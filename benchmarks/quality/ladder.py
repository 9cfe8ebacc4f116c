"""Record the results of a finished comparison, from which the tables of the documentation are made.

    regard compare what-attention-buys-quick --out runs/quick
    python benchmarks/quality/ladder.py runs/quick --minutes 6.5 --cpu-minutes 12.5 --hardware "two CPU cores"

Writes benchmarks/results/ladder-NAME.json: a case for each run, without its samples, and one with the reading of the
report. The hardware in it is that of the machine that this script runs on, so run it where the models were trained.
"""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.common import write_results

from regard.lab.compare.analysis import choose_metric, reading, summarize
from regard.lab.compare.runner import read_results, read_saved_ladder

KEPT = (
    "rung",
    "label",
    "size",
    "seed",
    "status",
    "problem",
    "scores",
    "steps",
    "tokens",
    "flops",
    "parameters",
    "seconds",
    "tokens_per_second",
    "peak_memory",
    "device",
    "decode",
    "by_length",
    "by_position",
    "recall",
    "curve",
)
"""What is recorded of a run."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of the comparison (--out)")
    parser.add_argument("--minutes", type=float, help="how long the command took")
    parser.add_argument("--cpu-minutes", type=float, help="user and system time of the command, as `time` shows it")
    parser.add_argument("--hardware", default="", help="the hardware, in a few words")
    options = parser.parse_args()
    measured = {"minutes": options.minutes, "cpu_minutes": options.cpu_minutes, "hardware": options.hardware}
    cases = make_cases(options.folder, measured)
    print(f"Results written to {write_results(f'ladder-{read_saved_ladder(options.folder).name}', cases)}")
    return 0


def make_cases(folder: Path, measured: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs of a comparison in the order of its ladder, and what its report says about them."""
    ladder, results = read_saved_ladder(folder), read_results(folder)
    places = {rung.name: number for number, rung in enumerate(ladder.rungs)}
    results.sort(key=lambda result: (-result["size"], places[result["rung"]], result["seed"]))
    metric = choose_metric(results, ladder.test)
    cases: list[dict[str, Any]] = [
        {"case": result["key"], **{name: result[name] for name in KEPT if name in result}} for result in results
    ]
    settings = ladder.plain()
    summary = {name: settings[name] for name in ("description", "base", "budget", "seeds", "sizes", "test")}
    lines = reading(ladder, results, summarize(ladder, results, metric), metric)
    return [*cases, {"case": "summary", **summary, "metric": metric.key, **measured, "reading": lines}]


if __name__ == "__main__":
    raise SystemExit(main())
