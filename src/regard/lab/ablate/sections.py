"""The content of a sweep's report, section by section: the tables, and the charts of what was measured besides."""

from collections.abc import Sequence
from pathlib import Path

from regard.lab.ablate.analysis import MEASURES, Row, findings_of, read_rows, target_loss
from regard.lab.ablate.changes import base_setting
from regard.lab.ablate.measured_charts import gradients, learning_curves, lengths, over_fitting
from regard.lab.ablate.plan import Sweep
from regard.lab.ablate.reading import reading
from regard.lab.ablate.settings import Settings
from regard.lab.ablate.variations import BASE, GROUPS, PAPER_BASE, PaperRow
from regard.lab.charts import number
from regard.lab.report import Section, Table, write_report

_TABLE_3 = ("A", "B", "C", "D", "E", "big")
_SPREAD = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"


def write_ablation(sweep: Sweep) -> tuple[Path, Path]:
    """Write the report of a sweep into its folder; gives the paths of the HTML and of the Markdown file."""
    title = f"Ablation of {sweep.recipe.name or sweep.recipe.task}"
    return write_report(title, sweep.recipe.description, make_sections(sweep), sweep.out)


def make_sections(sweep: Sweep) -> list[Section]:
    """The content of a report."""
    rows = read_rows(sweep)
    sections = [
        Section("Reading", bullets=tuple(reading(sweep, rows))),
        _table_3(sweep, rows),
        _claims(sweep, rows),
        learning_curves(sweep, rows, target_loss(rows)),
        *gradients(sweep, rows),
        lengths(rows),
        over_fitting(sweep, rows),
        _setup(sweep, rows),
        Section("Notes on the variations", bullets=tuple(_notes(rows))),
        Section("Variations that were skipped", bullets=tuple(_skipped(sweep))),
        Section("Runs that did not finish", bullets=tuple(_failures(rows))),
    ]
    return [one for one in sections if one.paragraphs or one.bullets or one.table or one.chart]


def _table_3(sweep: Sweep, rows: Sequence[Row]) -> Section:
    """Groups A to E and the big model, with the paper's numbers beside ours."""
    chosen = [row for row in rows if row.plan.variation is None or row.plan.variation.group in _TABLE_3]
    if len(chosen) < 2:
        return Section("")
    second = _second_measure(rows)
    ours = ("variation", "setting", "PPL", second[1], "parameters")
    header = (*ours, "paper: setting", "paper: PPL", "paper: BLEU", "paper: size", "the paper's direction")
    lines = []
    for row in chosen:
        variation = row.plan.variation
        paper = PAPER_BASE if variation is None else variation.paper
        name = BASE if variation is None else f"({variation.group}) {variation.name}"
        verdict = "–" if variation is None else _verdict(row, rows)
        lines.append((name, _setting(sweep, row), *_numbers(sweep, row, second[0]), *_paper(paper), verdict))
    note = (
        f"{_where(sweep, rows)} The paper's numbers are those of its Table 3: English to German, newstest2013, without "
        "checkpoint averaging. They compare with each other, not with ours: what can be compared is the direction."
    )
    groups = "; ".join(f"({group}) {GROUPS[group].lower()}" for group in _TABLE_3 if group != "big")
    caption = f"Table 3 of Vaswani et al. 2017: {groups}; the big model"
    return Section("The variations of Table 3", (note,), table=Table(caption, header, tuple(lines)))


def _claims(sweep: Sweep, rows: Sequence[Row]) -> Section:
    """Group F: what was claimed without a number."""
    chosen = [row for row in rows if row.plan.variation is not None and row.plan.variation.group == "F"]
    if not chosen:
        return Section("")
    second = _second_measure(rows)
    lines = []
    for row in [rows[0], *chosen]:
        variation = row.plan.variation
        claim = "–" if variation is None else variation.claim
        verdict = "–" if variation is None else _verdict(row, rows)
        lines.append((row.name, _setting(sweep, row), *_numbers(sweep, row, second[0]), claim, verdict))
    header = ("variation", "setting", "PPL", second[1], "parameters", "claim", "the claimed direction")
    return Section("Other claims", (_where(sweep, rows),), table=Table("Other claims", header, tuple(lines)))


def _setting(sweep: Sweep, row: Row) -> str:
    """What a row changes, or what the base has."""
    shown = row.setting if row.name != BASE else base_setting(Settings(sweep.recipe.resolved()))
    return _unbroken(shown)


def _unbroken(setting: str) -> str:
    """With no line break beside an equals sign."""
    return setting.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")


def _verdict(row: Row, rows: Sequence[Row]) -> str:
    if not row.results:
        return "did not finish (see below)" if row.failures else "not done yet"
    found = (str(finding).replace(" (", "\N{NO-BREAK SPACE}(") for finding in findings_of(row, rows))
    return "; ".join(found) or "–"


def _numbers(sweep: Sweep, row: Row, second: str) -> tuple[str, str, str]:
    """PPL, BLEU (or bits per byte) and parameters."""
    shown = []
    for name in ("ppl", second):
        sample = row.sample(name)
        shown.append("–" if sample is None else sample.shown(MEASURES[name].decimals))
    if row.results and len(row.results) < sweep.seeds:
        shown[0] += f" ({len(row.results)} of {sweep.seeds} seeds)"
    parameters = number(row.results[0]["parameters"]) if row.results else "–"
    return shown[0].replace(" ± ", _SPREAD), shown[1].replace(" ± ", _SPREAD), parameters


def _paper(paper: PaperRow | None) -> tuple[str, str, str, str]:
    if paper is None:
        return "–", "–", "–", "–"
    parameters = "" if paper.parameters is None else f"{paper.parameters} M"
    return _unbroken(paper.setting), f"{paper.ppl:.2f}", f"{paper.bleu:.1f}", parameters


def _second_measure(rows: Sequence[Row]) -> tuple[str, str]:
    """The measure beside perplexity, and the header of its column."""
    if any(row.sample("bits_per_byte") is not None for row in rows):
        return "bits_per_byte", "bits per byte"
    return "bleu", "BLEU"


def _where(sweep: Sweep, rows: Sequence[Row]) -> str:
    """Which data the numbers are from."""
    first = next((result for row in rows for result in row.results), None)
    test = "the test set" if first is None else next(iter(first["scores"]), "the test set")
    name = _second_measure(rows)[1]
    search = ", with the recipe's search" if name == "BLEU" else ""
    spread = f" Mean ± standard deviation of {sweep.seeds} seeds." if sweep.seeds > 1 else ""
    return (
        "PPL is perplexity per token of the recipe's tokenizer on the validation set, without label smoothing; "
        f"{name} is on {test}{search}.{spread}"
    )


def _setup(sweep: Sweep, rows: Sequence[Row]) -> Section:
    recipe, results = sweep.recipe, [result for row in rows for result in row.results]
    devices = ", ".join(sorted({str(result["device"]) for result in results})) or "–"
    hours = sum(float(result["seconds"]) for result in results) / 3600
    tokens = number(results[0]["valid_tokens"]) if results else "–"
    lines = [
        ("recipe", recipe.name or recipe.task),
        ("steps", f"{recipe.train.steps:,}"),
        ("seeds", str(sweep.seeds)),
        ("runs that have finished", str(len(results))),
        ("target tokens of the validation set", tokens),
        ("device", devices),
        ("training time in all", f"{hours:.2f} hours" if hours >= 1 else f"{hours * 60:.1f} minutes"),
    ]
    note = (
        "recipe.toml has every setting of the base, recipes/ those of every run, and runs/ the run folders, whose "
        "models can be used by all commands. All runs have the same data, steps and search."
    )
    return Section("Setup", (note,), table=Table("Setup", ("", ""), tuple(lines)))


def _notes(rows: Sequence[Row]) -> list[str]:
    return [f"{row.name}: {note}" for row in rows if row.plan.change for note in row.plan.change.notes]


def _skipped(sweep: Sweep) -> list[str]:
    return [f"{one.name} was skipped, because {one.skipped}." for one in sweep.plans if one.skipped is not None]


def _failures(rows: Sequence[Row]) -> list[str]:
    return [
        f"{row.name}, seed {seed}, did not finish: {problem.rstrip('.')}."
        for row in rows
        for seed, problem in row.failures
    ]
