"""The sections on what is measured besides scores: learning curves, gradient norms, long sentences, over-fitting.

Each has a chart and a table with the same numbers.
"""

import math
from collections.abc import Sequence
from statistics import fmean

from regard.lab.ablate.analysis import MEASURES, Row, compared_norms, findings_of
from regard.lab.ablate.changes import dropout_keys
from regard.lab.ablate.measure import DEEP_LAYERS
from regard.lab.ablate.plan import Sweep
from regard.lab.ablate.reading import row_label
from regard.lab.ablate.settings import Settings
from regard.lab.ablate.variations import BASE
from regard.lab.charts import COLORS, Series, bar_chart, line_chart, number
from regard.lab.report import Section, Table
from regard.lab.samples import Sample


def learning_curves(sweep: Sweep, rows: Sequence[Row], target: float | None) -> Section:
    """The validation loss of both norm positions by step, and the steps to a given loss."""
    compared = compared_norms(rows)
    if target is None or len(compared) < 2:
        return Section("")
    series, lines = [], []
    for color, row in enumerate(compared):
        steps = [point["step"] for point in row.results[0]["curve"]]
        curves = [{point["step"]: point["nll"] for point in result["curve"]} for result in row.results]
        shared = [step for step in steps if all(step in curve for curve in curves)]
        points = tuple((step, fmean(curve[step] for curve in curves)) for step in shared)
        series.append(Series(row_label(sweep, row), points, color))
        found = row.sample("steps")
        last = f"{points[-1][1]:.3f}" if points else "–"
        lines.append((row_label(sweep, row), "–" if found is None else found.shown(0), last))
    chart = line_chart("Validation loss by step", "steps", "validation loss (nats per token)", series)
    note = (
        f"Steps until the validation loss is {target:.3f}, the lowest that every run of both norm positions has "
        "reached, by interpolation between validations. Both have the learning rate and the warmup of the recipe; "
        "with others the order may be another."
    )
    header = ("norm position", f"steps to {target:.3f}", "loss at the end")
    table = Table("Steps to a given validation loss", header, tuple(lines))
    return Section("Norm position: steps to a given loss", (note,), chart=chart, table=table)


def gradients(sweep: Sweep, rows: Sequence[Row]) -> list[Section]:
    """The gradient norm of every layer, for each stack: at the start and the end of training, and in a deep stack."""
    measured = [(row, row.results[0]["gradients"]) for row in rows if row.results and row.results[0]["gradients"]]
    if len(measured) < 2:
        return []
    sections = []
    for stack in sorted(measured[0][1]["untrained"], reverse=True):  # the encoder first
        trained, deep, lines = [], [], []
        for color, (row, states) in enumerate(measured):
            label = row_label(sweep, row)
            for shift, (state, shown) in enumerate((("untrained", "start"), ("trained", "end"))):
                trained.append(Series(f"{label}, {shown}", _by_layer(states[state][stack]), color + shift * COLORS))
            deep.append(Series(label, _by_layer(states["deep"][stack]), color))
            for state, shown in (("untrained", "start"), ("trained", "end"), ("deep", f"{DEEP_LAYERS} layers")):
                first, last = states[state][stack][0], states[state][stack][-1]
                lines.append((f"{label}, {shown}", number(first), number(last), number(first / (last or math.inf))))
        charts = [
            line_chart(f"Gradient norms of the {stack}: {what}", "layer", "gradient norm", series, log_y=True)
            for what, series in (("start and end of training", trained), (f"{DEEP_LAYERS} untrained layers", deep))
        ]
        note = (
            "The norm of the gradient of the loss with respect to the parameters of each layer, without dropout, on "
            f"one batch, first seed: at the start (solid) and the end of training (dashed); below, in an untrained "
            f"model that differs in its {DEEP_LAYERS} layers per stack only. Norms of 0 are missing in the charts."
        )
        header = ("model", "first layer", "last layer", "first / last")
        table = Table(f"Gradient norms of the {stack}", header, tuple(lines))
        sections.append(Section(f"Gradient norms by depth: {stack}", (note,), chart="".join(charts), table=table))
    return sections


def _by_layer(norms: Sequence[float]) -> tuple[tuple[float, float], ...]:
    return tuple((float(layer), norm) for layer, norm in enumerate(norms, start=1))


def lengths(rows: Sequence[Row]) -> Section:
    """Group L: loss and BLEU on sentences as short as in training, and on longer ones."""
    tested = [row for row in rows if row.results and row.results[0]["lengths"]]
    if not tested:
        return Section("")
    bars, lines = [], []
    score = "bleu" if "bleu" in next(iter(tested[0].results[0]["lengths"].values())) else "bits_per_byte"
    for row in tested:
        name, cells = row.name.removeprefix("short-"), []
        for color, part in enumerate(("short", "long")):
            found = [result["lengths"][part] for result in row.results if part in result["lengths"]]
            if found:
                loss = Sample(tuple(one["nll"] for one in found))
                bars.append((f"{name}: {part}", loss.mean, loss.std or 0.0, color))
            cells += [_shown([one["nll"] for one in found], 3), _shown([one[score] for one in found], 2)]
        extra, ppl = row.sample("long"), row.sample("ppl")
        verdict = "; ".join(map(str, findings_of(row, rows))) or "–"
        shown = ("–" if extra is None else extra.shown(3), "–" if ppl is None else ppl.shown(2))
        lines.append((name, *cells, *shown, verdict))
    parts = tested[0].results[0]["lengths"]
    label = MEASURES[score].name
    parts_header = ("loss, short", f"{label}, short", "loss, long", f"{label}, long")
    header = ("positions", *parts_header, "extra loss", "PPL", "verdict")
    note = (
        f"{_how_long(parts)} Losses are nats per token; the extra loss is that on long ones minus that on short ones, "
        "and PPL is on the whole validation set."
    )
    chart = bar_chart("Loss on short and on long sequences", "nats per token, lower is better", bars)
    table = Table("Trained on short sequences, tested on longer ones", header, tuple(lines))
    return Section("Positions: trained on short sequences, tested on longer ones", (note,), chart=chart, table=table)


def _how_long(parts: dict[str, dict[str, float]]) -> str:
    if "context" in parts["short"]:
        return (
            f"All models were trained in contexts of {parts['short']['context']:,} tokens and tested in contexts of "
            f"that length and of {parts['long']['context']:,}, on the same text."
        )
    sizes = " and ".join(f"{part['pairs']:,} {name}" for name, part in parts.items())
    return (
        "All models were trained on pairs of at most the median length, and tested on others as short and up to twice "
        f"as long: {sizes} pairs. Their tokenizer was trained on the short pairs, so these losses compare with each "
        "other only."
    )


def over_fitting(sweep: Sweep, rows: Sequence[Row]) -> Section:
    """The loss on training and on validation data by dropout."""
    chosen = [
        (_dropout(sweep, row), row)
        for row in rows
        if row.name == BASE or (row.plan.variation is not None and row.plan.variation.family == "dropout")
    ]
    known = sorted(((p, row) for p, row in chosen if row.sample("gap") is not None), key=lambda each: each[0])
    if len(known) < 2:
        return Section("")
    points: dict[str, list[tuple[float, float]]] = {"training": [], "validation": []}
    lines = []
    for p, row in known:
        losses = [[result[key] for result in row.results] for key in ("train_nll", "valid_nll")]
        for name, values in zip(points, losses, strict=True):
            points[name].append((p, fmean(values)))
        gap = row.sample("gap")
        shown = "–" if gap is None else gap.shown(3)
        lines.append((f"P_drop = {p:g}{' (base)' if row.name == BASE else ''}", *(_shown(x, 3) for x in losses), shown))
    series = [Series(name, tuple(values), color) for color, (name, values) in enumerate(points.items())]
    chart = line_chart("Loss at the end by dropout", "P_drop", "nats per token", series)
    note = (
        "The loss at the end of training, without dropout and label smoothing, on the validation set and on as much "
        "of the training data. The gap between them is what the model knows of its training data only."
    )
    header = ("dropout", "training loss", "validation loss", "gap")
    return Section("Dropout and over-fitting", (note,), chart=chart, table=Table("Over-fitting", header, tuple(lines)))


def _dropout(sweep: Sweep, row: Row) -> float:
    """The largest dropout probability of a row's model."""
    settings = Settings(sweep.recipe.resolved())
    changed = {} if row.plan.change is None else row.plan.change.overrides
    return float(max(changed.get(key, own) for key, own in dropout_keys(settings).items()))


def _shown(values: Sequence[float], decimals: int) -> str:
    return Sample(tuple(values)).shown(decimals) if values else "–"
