"""Reports: one HTML file that needs nothing else, and the same as Markdown.

Both are made from the same sections (a text, a table, a chart), so they cannot say different things. A report is made
from result files, so it can be written again at any time, also of an experiment that is not finished.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.cost.format import si_prefixed
from regard.files import write_text
from regard.lab.charts import COLORS, number
from regard.lab.markup import escape


@dataclass(frozen=True)
class Table:
    """Rows of text under a header."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Section:
    """A part of the report; empty parts are left out."""

    title: str
    paragraphs: tuple[str, ...] = ()
    bullets: tuple[str, ...] = ()
    chart: str = ""
    table: Table | None = None


def number_cell(value: float | None) -> str:
    """A count, or a dash for what was not measured."""
    return "–" if value is None else number(value)


def score_cell(value: float | None) -> str:
    """A score with two decimals, or more for a small one."""
    return "–" if value is None else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3g}"


def bytes_cell(value: float | None) -> str:
    return "–" if value is None else f"{si_prefixed(value)}B"


def write_report(title: str, description: str, sections: Sequence[Section], out: Path) -> tuple[Path, Path]:
    """Write report.html and report.md; gives both paths."""
    html, markdown = out / "report.html", out / "report.md"
    write_text(html, to_html(title, description, sections))
    write_text(markdown, to_markdown(title, description, sections))
    return html, markdown


def to_markdown(title: str, description: str, sections: Sequence[Section]) -> str:
    """The report as Markdown; charts are only in the HTML."""
    lines = [f"# {title}", "", description, ""]
    for section in sections:
        lines += [f"## {section.title}", ""]
        for paragraph in section.paragraphs:
            lines += [_plain(paragraph), ""]
        lines += [f"- {_plain(bullet)}" for bullet in section.bullets]
        lines += [""] if section.bullets else []
        if section.table is not None:
            header = section.table.header
            lines += [f"| {' | '.join(map(_cell, header))} |", f"|{' --- |' * len(header)}"]
            lines += [f"| {' | '.join(map(_cell, row))} |" for row in section.table.rows]
            lines.append("")
    return "\n".join(lines)


def to_html(title: str, description: str, sections: Sequence[Section]) -> str:
    """The report as one HTML file."""
    body = [f"<h1>{escape(title)}</h1>", f"<p>{escape(description)}</p>"]
    for section in sections:
        body.append(f"<section><h2>{escape(section.title)}</h2>")
        body += [f"<p>{escape(paragraph)}</p>" for paragraph in section.paragraphs]
        if section.bullets:
            body.append("<ul>" + "".join(f"<li>{escape(bullet)}</li>" for bullet in section.bullets) + "</ul>")
        body.append(f"<figure>{section.chart}</figure>" if section.chart else "")
        body.append("" if section.table is None else _html_table(section.table))
        body.append("</section>")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{escape(title)}</title><style>{_style()}</style></head>\n"
        f"<body><main>{chr(10).join(part for part in body if part)}</main></body></html>\n"
    )


def _html_table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.header)
    rows = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(map(_html_cell, row[1:])) + "</tr>" for row in table.rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(table.caption)}"><table>'
        f"<caption>{escape(table.caption)}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _html_cell(cell: str) -> str:
    """A cell; numbers with their units and spreads are not wrapped."""
    kind = ' class="short"' if len(cell) <= _SHORT else ""
    return f"<td{kind}>{escape(cell)}</td>"


_SHORT = 20
"""Characters that fit on one line in any table."""
LIGHT = ("#1f6fb2", "#c4501b", "#2e7d4f", "#8a3fa0", "#a67c00", "#b3245c", "#0f7f86", "#5b5b5b")
DARK = ("#6fb3ec", "#f0935f", "#6cc48f", "#cf92e0", "#e0bd4a", "#f07fae", "#5fcdd3", "#b8b8b8")


def _style() -> str:
    def variables(colors: Sequence[str]) -> str:
        return "".join(f"--c{index}:{color};" for index, color in enumerate(colors))

    series = "".join(
        f".s{i}{{fill:none;stroke:var(--c{i});stroke-width:2}}.m{i}{{fill:var(--c{i})}}.t{i}{{fill:var(--c{i})}}"
        for i in range(COLORS)
    )
    return (
        f":root{{color-scheme:light dark;--bg:#fff;--fg:#1b1b1b;--soft:#5c5c5c;--line:#d9d9d9;{variables(LIGHT)}}}"
        f"@media(prefers-color-scheme:dark){{:root{{--bg:#16181b;--fg:#e8e8e8;--soft:#a8a8a8;--line:#3a3d42;{variables(DARK)}}}}}"
        "body{background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,sans-serif;margin:0}"
        "main{max-width:76rem;margin:0 auto;padding:1.5rem 1rem 4rem}h1{line-height:1.2}h2{margin-top:2.5rem}"
        "p,ul{max-width:60rem}td:nth-child(n+7):last-child{min-width:11rem}"
        "figure{margin:1rem 0;max-width:60rem}svg{width:100%;height:auto;font:12px system-ui,sans-serif}"
        "svg text{fill:var(--fg)}svg .label{fill:var(--soft)}.grid{stroke:var(--line);stroke-width:1}"
        ".leader{stroke:var(--line)}.error{stroke:var(--fg);stroke-width:1.5}.wide{overflow-x:auto}"
        "table{border-collapse:collapse;font-size:.9rem}caption{text-align:left;color:var(--soft);padding:.3rem 0}"
        "th,td{text-align:left;padding:.3rem .5rem;border-bottom:1px solid var(--line);vertical-align:top;"
        "font-variant-numeric:tabular-nums}.short{white-space:nowrap}thead th{border-bottom:2px solid var(--soft)}"
        "tbody th{font-weight:600;min-width:10rem}"
        f"@media print{{main{{max-width:none}}}}{series}svg text.t0{{fill:var(--c0)}}"
        + "".join(f"svg text.t{i}{{fill:var(--c{i})}}" for i in range(1, COLORS))
    )


def _plain(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|") or " "
