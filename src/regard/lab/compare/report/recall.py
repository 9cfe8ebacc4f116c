"""The section of a report about what models remember: planted words, or for language models planted tokens."""

from collections.abc import Sequence

from regard.lab.charts import Series, line_chart
from regard.lab.compare.ladder import Ladder
from regard.lab.compare.report.analysis import Summary, nats_saved, recall_rate
from regard.lab.report import Section, Table


def recall_section(ladder: Ladder, full: Sequence[Summary]) -> Section:
    """A chart and a table; an empty section if nothing was measured."""
    distances = [each for each in ladder.recall if any(recall_rate(one, each) is not None for one in full)]
    if not distances:
        return Section("")
    if any(nats_saved(one, each) is not None for one in full for each in distances):
        return _of_sequences(full, distances)
    unit = "words after the planted one"
    note = (
        "A sentence with a rare word is followed by other sentences; the percentage of outputs that contain the word's "
        "translation, by the number of words after it. Texts longer than those in training are hard for any model."
    )
    series, rows = [], []
    for one in full:
        rates = [(distance, recall_rate(one, distance)) for distance in distances]
        points = tuple((float(distance), rate * 100) for distance, rate in rates if rate is not None)
        series.append(Series(one.rung.label, points, one.number))
        rows.append((one.rung.label, *("–" if rate is None else f"{rate:.0%}" for _, rate in rates)))
    title = "Recall of a planted word against its distance"
    chart = line_chart(title, unit, "% recalled", series, log_x=True, zero=True)
    table = Table(f"Recall by the number of {unit}", ("model", *map(str, distances)), tuple(rows))
    return Section(title, (note,), chart=chart, table=table)


def _of_sequences(full: Sequence[Summary], distances: Sequence[int]) -> Section:
    """What language models remember of random tokens."""
    unit = "tokens in between"
    note = (
        "A random sequence of tokens is followed by real text and then by itself. The chart shows by how many nats the "
        "loss of its tokens is lower than after another random sequence: 0 for a model that has forgotten what it "
        "read. In parentheses, the fraction of its tokens that the model ranks first the second time."
    )
    series, rows = [], []
    for one in full:
        found = [(nats_saved(one, distance), recall_rate(one, distance)) for distance in distances]
        points = tuple(
            (float(distance), saved) for distance, (saved, _) in zip(distances, found, strict=True) if saved is not None
        )
        series.append(Series(one.rung.label, points, one.number))
        cells = ("–" if saved is None else f"{round(saved, 2) + 0.0:.2f} ({rate or 0:.0%})" for saved, rate in found)
        rows.append((one.rung.label, *cells))
    title = "Recall of planted tokens against their distance"
    chart = line_chart(title, unit, "nats saved per token", series, log_x=True, include=(0.0, 0.5))
    table = Table(
        f"Nats saved, and tokens ranked first, by the number of {unit}", ("model", *map(str, distances)), tuple(rows)
    )
    return Section(title, (note,), chart=chart, table=table)
