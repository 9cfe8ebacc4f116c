"""Regenerate the tables and figures of README.md and docs/ from the files under benchmarks/results.

    python scripts/update_docs.py            rewrite the text between the markers
    python scripts/update_docs.py --check    change nothing; exit with code 1 if a page is out of date

A table is between `<!-- table: NAME -->` and `<!-- end table -->`, a single figure between `<!-- fig: NAME -->` and
`<!-- end fig -->`. The names are those of the functions in scripts/doc_figures. The pages in docs/reports are written
whole.
"""

import argparse
import sys
from pathlib import Path

from doc_figures import ROOT, render
from doc_figures.reports import reports


def main() -> int:
    parser = argparse.ArgumentParser(description="Regenerate the tables and figures of the documentation.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page is out of date")
    check = parser.parse_args().check
    outdated = []
    written = reports()
    for page in [*pages(), *written]:
        text = page.read_text(encoding="utf-8") if page.is_file() else ""
        rendered = written[page] if page in written else render(text, str(page.relative_to(ROOT)))
        if rendered != text:
            outdated.append(str(page.relative_to(ROOT)))
            if not check:
                page.parent.mkdir(exist_ok=True)
                page.write_text(rendered, encoding="utf-8")
    if check and outdated:
        print(f"Out of date: {', '.join(outdated)}. Run `python scripts/update_docs.py`.", file=sys.stderr)
        return 1
    print(f"{len(outdated)} pages updated." if outdated else "All pages are up to date.")
    return 0


def pages() -> list[Path]:
    """Every page that may hold generated figures."""
    return [
        ROOT / "README.md",
        *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "reports"),
    ]


if __name__ == "__main__":
    sys.exit(main())
