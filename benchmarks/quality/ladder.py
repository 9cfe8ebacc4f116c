"""Record the results of a comparison, from which the tables and reports of the documentation are made.

    regard compare what-attention-buys-quick --out runs/quick
    python benchmarks/quality/ladder.py runs/quick --minutes 6.5 --cpu-minutes 12.5 --hardware "two CPU cores"
    python benchmarks/quality/ladder.py runs/again --restore what-attention-buys

Writes benchmarks/results/ladder-NAME.json: the result of each run, and a summary with the ladder, the speeds and the
reading of the report. The hardware in it is that of the machine that this script runs on, so run it where the models
were trained. With --restore, a folder is made from a record: `regard compare` then trains only the runs that are
missing in it, and `--report-only` writes its report again.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, write_results

from regard.files import write_text
from regard.lab.compare.ladder import Ladder
from regard.lab.compare.report.analysis import choose_metric, reading, summarize
from regard.lab.compare.runner import read_results, read_saved_ladder
from regard.lab.compare.speed import read_speeds, write_speeds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of the comparison (--out)")
    parser.add_argument("--minutes", type=float, help="how long the command took")
    parser.add_argument("--cpu-minutes", type=float, help="user and system time of the command, as `time` shows it")
    parser.add_argument("--hardware", default="", help="the hardware, in a few words")
    parser.add_argument("--restore", metavar="NAME", help="make the folder from the record of this ladder")
    options = parser.parse_args()
    if options.restore:
        cases = json.loads((RESULTS / f"ladder-{options.restore}.json").read_text(encoding="utf-8"))["cases"]
        restore(cases, options.folder)
        print(f"{len(cases) - 1} results are in {options.folder}")
        return 0
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
        {"case": result["key"], **{name: value for name, value in result.items() if name != "key"}}
        for result in results
    ]
    summary = {"ladder": ladder.plain(), "speeds": read_speeds(folder), "metric": metric.key, **measured}
    lines = reading(ladder, results, summarize(ladder, results, metric), metric)
    return [*cases, {"case": "summary", **summary, "reading": lines}]


def split_cases(cases: list[dict[str, Any]]) -> tuple[Ladder, list[dict[str, Any]], dict[str, Any]]:
    """The ladder, the results and the summary of a record."""
    *runs, summary = cases
    ladder = Ladder.read(summary["ladder"], "the record")
    return ladder, [{"key": run["case"], **run} for run in runs], summary


def restore(cases: list[dict[str, Any]], folder: Path) -> None:
    """Write the results of a record into the folder of a comparison."""
    ladder, results, summary = split_cases(cases)
    (folder / "results").mkdir(parents=True, exist_ok=True)
    write_text(folder / "ladder.json", json.dumps(ladder.plain(), ensure_ascii=False, indent=1))
    write_speeds(folder, summary["speeds"])
    for result in results:
        path = folder / "results" / f"{result['key']}.json"
        write_text(path, json.dumps(result, ensure_ascii=False, indent=1))


if __name__ == "__main__":
    raise SystemExit(main())
