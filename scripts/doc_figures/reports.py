"""The reports of comparisons that were recorded with all their results: docs/reports/."""

import json
from pathlib import Path

from benchmarks.quality.ladder import split_cases

from doc_figures.markers import ROOT
from regard.lab.compare.report.sections import make_sections
from regard.lab.report import to_html, to_markdown

FOLDER = ROOT / "docs" / "reports"


def reports() -> dict[Path, str]:
    """Each report as a page of the documentation, and with its charts as an HTML file that needs nothing else."""
    found = {}
    for path in sorted((ROOT / "benchmarks" / "results").glob("ladder-*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if "ladder" not in record["cases"][-1]:  # an older record: not all that a report needs
            continue
        ladder, results, summary = split_cases(record["cases"])
        sections = make_sections(ladder, results, summary["speeds"])
        charts = FOLDER / f"{ladder.name}-with-charts.html"
        finished = sum(result["status"] == "finished" for result in results)
        note = (
            f"Written by `regard compare {ladder.name}` from {finished} finished runs on {summary['hardware']} "
            f"([results](../../benchmarks/results/{path.name}), with PyTorch "
            f"{record['versions']['torch'].partition('+')[0]}). [The same with charts]({charts.name})."
        )
        title, _, rest = to_markdown(ladder.name, ladder.description, sections).partition("\n\n")
        found[FOLDER / f"{ladder.name}.md"] = f"{title}\n\n{note}\n\n{rest}"
        found[charts] = to_html(ladder.name, ladder.description, sections)
    return found
