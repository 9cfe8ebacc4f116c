"""The content of a report, section by section: tables and charts of a comparison's results.

Whether it becomes HTML or Markdown is not known here (`report.py`), so both say the same.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.lab.charts import Series, bar_chart, line_chart, number
from regard.lab.compare.ladder import Ladder
from regard.lab.compare.report.analysis import (
    Metric,
    Result,
    Summary,
    choose_metric,
    failures,
    reading,
    summarize,
    with_spread,
)
from regard.lab.compare.report.contrasts import contrast_section
from regard.lab.compare.report.recall import recall_section
from regard.lab.compare.report.speed import speed_section
from regard.lab.compare.report.word_vectors import word_vectors_section
from regard.lab.compare.speed import Speeds, read_speeds
from regard.lab.report import Section, Table, number_cell, score_cell, write_report
from regard.task.recipe_io import recipe_name


def write_comparison(ladder: Ladder, results: Sequence[Result], out: Path) -> tuple[Path, Path]:
    """Write the report of a comparison into its folder; gives the paths of the HTML and of the Markdown file."""
    return write_report(ladder.name, ladder.description, make_sections(ladder, results, read_speeds(out)), out)


def make_sections(ladder: Ladder, results: Sequence[Result], speeds: Speeds) -> list[Section]:
    """The content of a report."""
    metric = choose_metric(results, ladder.test)
    summaries = summarize(ladder, results, metric)
    full = [one for one in summaries if one.size == max(ladder.sizes)]
    sections = [
        Section("Reading", bullets=tuple(reading(ladder, results, summaries, metric))),
        contrast_section(ladder, summaries, metric, speeds),
        _scores(ladder, full, metric),
        speed_section(full, speeds),
        _by_size(ladder, summaries, metric),
        _by_cost(full, metric),
        _by_length(full, metric),
        _by_position(full),
        recall_section(ladder, full),
        word_vectors_section(ladder, summaries, metric),
        _complexity(full),
        _samples(ladder, full),
        _setup(ladder, results),
        Section("Runs that did not finish", bullets=tuple(failures(results))),
    ]
    return [one for one in sections if one.paragraphs or one.bullets or one.table or one.chart]


def _scores(ladder: Ladder, full: Sequence[Summary], metric: Metric) -> Section:
    """Table 2's columns, score and training FLOPs, with published numbers beside ours."""
    rows = [
        (
            one.rung.label,
            with_spread(one),
            score_cell(one.second),
            number_cell(one.mean("flops")),
            number_cell(one.mean("parameters")),
            str(len(one.results)),
            "; ".join(_published(each) for each in one.rung.published) or "–",
        )
        for one in full
    ]
    header = ("model", metric.name, metric.second[1], "training FLOPs", "parameters", "seeds", "published")
    table = Table(f"Scores on {ladder.test}, mean ± standard deviation over the seeds", header, tuple(rows))
    bars = [(one.rung.label, one.score, one.spread, one.number) for one in full]
    direction = "higher" if metric.higher_is_better else "lower"
    chart = bar_chart(f"{metric.name} of each model", f"{metric.name}, {direction} is better", bars)
    return Section("Scores and training cost", chart=chart, table=table) if rows else Section("")


def _by_size(ladder: Ladder, summaries: Sequence[Summary], metric: Metric) -> Section:
    sizes = sorted({one.size for one in summaries})
    if len(sizes) < 2:
        return Section("")
    series, rows = [], []
    for place, rung in enumerate(ladder.rungs):
        found = {one.size: one for one in summaries if one.number == place}
        if found:
            points = tuple((size * 100, found[size].score) for size in sizes if size in found)
            series.append(Series(rung.label, points, place))
            rows.append((rung.label, *(with_spread(found[size]) if size in found else "–" for size in sizes)))
    chart = line_chart(
        f"{metric.name} against training-set size", "% of the training data", metric.name, series, log_x=True
    )
    header = ("model", *(f"{size:.0%}" for size in sizes))
    return Section(
        "Score against data size", chart=chart, table=Table(f"{metric.name} by data size", header, tuple(rows))
    )


def _by_cost(full: Sequence[Summary], metric: Metric) -> Section:
    """The validations of the first seed against the FLOPs until then."""
    has_flops = any(one.mean("flops") for one in full)
    series, rows = [], []
    for one in full:
        result = one.results[0]
        if has_flops and not result["flops"]:  # a table of n-grams is counted
            rows.append((one.rung.label, "none", *_last_and_best(result["curve"], metric)))
            continue
        per_step = (result["flops"] / max(result["steps"], 1)) if has_flops else 1
        points = [
            (row["step"] * per_step, row[metric.curve])
            for row in result["curve"]
            if metric.curve in row and row["step"]
        ]
        if points:
            series.append(Series(one.rung.label, tuple(points), one.number))
            rows.append((one.rung.label, number(points[-1][0]), *_last_and_best(result["curve"], metric)))
    if not series:
        return Section("")
    unit = "training FLOPs" if has_flops else "steps"
    chart = line_chart(f"{metric.curve_name} against {unit}", unit, metric.curve_name, series, log_x=True)
    header = ("model", f"{unit} in all", "last", "best")
    table = Table(f"{_capital(metric.curve_name)} against {unit}", header, tuple(rows))
    return Section(
        "Score against training cost",
        ("Validations of the first seed while it was trained.",),
        chart=chart,
        table=table,
    )


def _last_and_best(curve: Sequence[Result], metric: Metric) -> tuple[str, str]:
    """The last and the best validation of a run."""
    values = [row[metric.curve] for row in curve if metric.curve in row]
    if not values:
        return "–", "–"
    return number(values[-1]), number(metric.best(values) if metric.curve == metric.key else min(values))


def _by_length(full: Sequence[Summary], metric: Metric) -> Section:
    buckets = {
        (row["from"], row["to"]): row["sentences"] for one in full for row in one.results[0].get("by_length") or ()
    }
    if not buckets:
        return Section("")
    order = sorted(buckets, key=lambda each: each[0])
    series, rows = [], []
    for one in full:
        scores: dict[Any, list[float]] = {}
        for result in one.results:
            for row in result.get("by_length") or ():
                if row[metric.key] is not None:
                    scores.setdefault((row["from"], row["to"]), []).append(row[metric.key])
        means = {bucket: sum(values) / len(values) for bucket, values in scores.items()}
        points = tuple(
            (float(low if high is None else (low + high) / 2), means[low, high])
            for low, high in order
            if (low, high) in means
        )
        series.append(Series(one.rung.label, points, one.number))
        rows.append((one.rung.label, *(score_cell(means.get(bucket)) for bucket in order)))
    header = ("model", *(f"{_range(low, high)} words ({buckets[low, high]})" for low, high in order))
    name = metric.name
    chart = line_chart(f"{name} against sentence length", "words of the source", name, series)
    note = "Sentences by the length of their source, with their number in parentheses; too few of them give no score."
    return Section(
        "Score against sentence length", (note,), chart=chart, table=Table(f"{name} by length", header, tuple(rows))
    )


def _by_position(full: Sequence[Summary]) -> Section:
    buckets = sorted({(row["from"], row["to"]) for one in full for row in one.results[0].get("by_position") or ()})
    if not buckets:
        return Section("")
    series, rows = [], []
    for one in full:
        found = {(row["from"], row["to"]): row["loss"] for row in one.results[0].get("by_position") or ()}
        points = tuple(((low + high) / 2, found[low, high]) for low, high in buckets if (low, high) in found)
        series.append(Series(one.rung.label, points, one.number))
        rows.append((one.rung.label, *(score_cell(found.get(bucket)) for bucket in buckets)))
    chart = line_chart("Loss against the tokens read", "tokens read before", "nats per token", series, log_x=True)
    header = ("model", *(_range(low, high) for low, high in buckets))
    note = "The loss of a token by the number of tokens before it in its window: what a model makes of more context."
    return Section(
        "Loss against context", (note,), chart=chart, table=Table("Loss by tokens read", header, tuple(rows))
    )


def _complexity(full: Sequence[Summary]) -> Section:
    rows = []
    for one in full:
        found = one.results[0].get("complexity")
        if found:
            counts = [found["at"][length] for length in ("10", "100", "1000")]
            columns = (
                " / ".join(number(count[name]) for count in counts)
                for name in ("sequential_steps", "path_length", "receptive_field")
            )
            rows.append((one.rung.label, found["per_layer"], *columns))
    header = ("model", "operations per layer", "sequential steps", "path length", "receptive field")
    note = (
        "As in Table 1 of Vaswani et al. 2017, for sequences of 10 / 100 / 1,000 tokens: sequential steps of a forward "
        "pass in training, the longest path between two tokens, and the tokens that an output can depend on."
    )
    return (
        Section("Sequential steps, path length, receptive field", (note,), table=Table("Table 1", header, tuple(rows)))
        if rows
        else Section("")
    )


def _samples(ladder: Ladder, full: Sequence[Summary]) -> Section:
    rows: list[tuple[str, ...]] = []
    count = max((len(one.results[0].get("samples") or ()) for one in full), default=0)
    for index in range(count):
        holders = [
            (one, one.results[0]["samples"][index]) for one in full if len(one.results[0].get("samples") or ()) > index
        ]
        first = holders[0][1]
        rows += [("source", first["source"]), ("reference", first["reference"])]
        rows += [(one.rung.label, sample["output"] or "(nothing)") for one, sample in holders]
    return (
        Section("Samples", table=Table(f"Outputs for examples of {ladder.test}, first seed", ("", "text"), tuple(rows)))
        if rows
        else Section("")
    )


def _setup(ladder: Ladder, results: Sequence[Result]) -> Section:
    devices = sorted({str(result["device"]) for result in results if result.get("device")})
    rows = [
        (rung.label, recipe_name(ladder.recipe_of(rung)), rung.reference or "–", rung.note or "–")
        for rung in ladder.rungs
    ]
    paragraph = (
        f"All models have the data and the metric of the recipe {recipe_name(ladder.base)}, and are trained and "
        "decoded by the same code. Each has a "
        f"budget of {number(ladder.budget.value)} {ladder.budget.kind}. Seeds: {ladder.seeds} on all data, "
        f"{ladder.seeds_of_parts} on parts of it. Device: {', '.join(devices) or ladder.device}. Runs side by side: "
        f"{ladder.parallel}. Models are "
        "listed in the order in which they are expected to do better."
    )
    return Section("Setup", (paragraph,), table=Table("Models", ("model", "recipe", "reference", "note"), tuple(rows)))


def _published(each: Any) -> str:
    where = f" on {each.test}" if each.test else ""
    return f"{number(each.score)} {each.metric}{where} ({each.source})"


def _range(low: int, high: int | None) -> str:
    return f"{low}+" if high is None else str(low) if low == high else f"{low}–{high}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
