"""Record the results of a finished sweep, from which the tables of the documentation are made.

    regard ablate quick --set train.steps=600 --out runs/ablate-quick
    python benchmarks/quality/ablation.py runs/ablate-quick --minutes 20 --hardware "two CPU cores"

Writes benchmarks/results/ablation-RECIPE.json: a case for the base and for each variation, with its numbers over the
seeds and what they say about the claim, and one with the reading of the report.
"""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.common import write_results

from regard.lab.ablate.analysis import MEASURES, Row, findings_of, read_rows
from regard.lab.ablate.plan import read_sweep
from regard.lab.ablate.reading import reading


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of the sweep (--out)")
    parser.add_argument("--minutes", type=float, help="how long the command took")
    parser.add_argument("--hardware", default="", help="the hardware, in a few words")
    options = parser.parse_args()
    sweep = read_sweep(options.folder)
    rows = read_rows(sweep)
    train = sweep.recipe.train
    summary = {
        "case": "summary",
        "recipe": sweep.recipe.name,
        "seeds": sweep.seeds,
        "steps": train.steps,
        "batch_tokens": train.batch_tokens,
        "minutes": options.minutes,
        "hardware": options.hardware,
        "reading": reading(sweep, rows),
    }
    cases = [*(make_case(row, rows) for row in rows), summary]
    print(f"Results written to {write_results(f'ablation-{sweep.recipe.name}', cases)}")
    return 0


def make_case(row: Row, rows: list[Row]) -> dict[str, Any]:
    """The numbers of a variation, or of the base."""
    samples = {name: row.sample(name) for name in MEASURES}
    return {
        "case": row.name,
        "setting": row.setting,
        "measures": {name: list(sample.values) for name, sample in samples.items() if sample is not None},
        "parameters": row.results[0]["parameters"] if row.results else None,
        "problems": [problem for _, problem in row.failures],
        "findings": [
            {
                "measure": one.measure,
                "expected": one.direction,
                "verdict": str(one.verdict),
                "difference": one.difference,
            }
            for one in findings_of(row, rows)
        ],
    }


if __name__ == "__main__":
    raise SystemExit(main())
