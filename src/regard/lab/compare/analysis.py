"""What the results of a comparison say: means over seeds, the ranking, and a short reading of the numbers.

The reading is made of sentences that the numbers support, and nothing else. A difference counts as one only if it is
larger than twice its standard error over the seeds; with one seed there is no such thing, and the reading says so.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

from regard.lab.charts import number
from regard.lab.compare.ladder import Ladder, RungConfig

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Metric:
    """The score that rungs are ranked by."""

    key: str
    name: str
    higher_is_better: bool
    curve: str
    """The key of the same or a related metric on the validation set."""
    curve_name: str
    second: tuple[str, str]
    """The key and the name of a second score to show."""

    def best(self, values: Sequence[float]) -> float:
        return max(values) if self.higher_is_better else min(values)


METRICS = (
    Metric("bleu", "BLEU", True, "bleu", "validation BLEU", ("chrf", "chrF")),
    Metric(
        "bits_per_byte", "bits per byte", False, "nll", "validation loss (nats per token)", ("perplexity", "perplexity")
    ),
    Metric("f1", "F1", True, "f1", "validation F1", ("exact", "exact match")),
    Metric("accuracy", "accuracy", True, "nll", "validation loss", ("loss", "loss")),
)


@dataclass(frozen=True)
class Summary:
    """A rung on one size of the data, over its seeds."""

    rung: RungConfig
    number: int
    """Its place in the ladder, from 0."""
    size: float
    results: tuple[Result, ...]
    """The finished runs."""
    score: float
    spread: float
    """The standard deviation over the seeds; 0 for a single one."""
    second: float | None

    @property
    def error(self) -> float:
        """The standard error of the mean score."""
        return self.spread / math.sqrt(len(self.results))

    def mean(self, *path: str) -> float | None:
        """The mean of a measurement over the seeds."""
        values = [_at(result, path) for result in self.results]
        known = [float(value) for value in values if isinstance(value, int | float)]
        return fmean(known) if known else None


def choose_metric(results: Sequence[Result], test: str) -> Metric:
    """The metric of the task."""
    for result in results:
        scores = (result.get("scores") or {}).get(test, {})
        for metric in METRICS:
            if metric.key in scores:
                return metric
    return METRICS[0]


def summarize(ladder: Ladder, results: Sequence[Result], metric: Metric) -> list[Summary]:
    """Every rung with at least one finished run, by size (largest first), in the order of the ladder."""
    summaries = []
    for size in sorted({result["size"] for result in results}, reverse=True):
        for place, rung in enumerate(ladder.rungs):
            done = tuple(
                result
                for result in results
                if result["rung"] == rung.name
                and result["size"] == size
                and result["status"] == "finished"
                and _score(result, ladder.test, metric.key) is not None
            )
            if done:
                scores = [_score(result, ladder.test, metric.key) or 0.0 for result in done]
                second = [_score(result, ladder.test, metric.second[0]) for result in done]
                known = [value for value in second if value is not None]
                spread = stdev(scores) if len(scores) > 1 else 0.0
                summaries.append(
                    Summary(rung, place, size, done, fmean(scores), spread, fmean(known) if known else None)
                )
    return summaries


def reading(ladder: Ladder, results: Sequence[Result], summaries: Sequence[Summary], metric: Metric) -> list[str]:
    """The short, honest reading of the numbers."""
    full = [one for one in summaries if one.size == max(ladder.sizes)]
    if not full:
        return ["No run has finished, so there is nothing to compare.", *failures(results)]
    ranked = sorted(full, key=lambda one: one.score, reverse=metric.higher_is_better)
    lines = [_ranking(ranked, metric), *_contradictions(ranked, metric), *_steps(full, metric)]
    lines += _against_published(full, metric)
    lines += _data_effect(ladder, summaries, metric)
    lines += _cost(ranked, metric)
    lines += _forgetting(full)
    return [*lines, *failures(results)]


def failures(results: Sequence[Result]) -> list[str]:
    """One sentence for each run that did not finish."""
    return [
        f"{result['label']} (data {result['size']:.0%}, seed {result['seed']}) did not finish: "
        f"{str(result.get('problem', 'unknown')).rstrip('.')}."
        for result in results
        if result["status"] != "finished"
    ]


def recall_rate(summary: Summary, distance: int) -> float | None:
    """The fraction of planted words that were recalled at a distance, over the seeds."""
    rows = [
        row
        for result in summary.results
        for row in result.get("recall") or ()
        if row["distance"] == distance and row["recalled"] is not None and row["total"]
    ]
    return sum(row["recalled"] for row in rows) / sum(row["total"] for row in rows) if rows else None


def _ranking(ranked: Sequence[Summary], metric: Metric) -> str:
    shown = [f"{one.rung.label} {with_spread(one)}" for one in ranked]
    single = all(len(one.results) == 1 for one in ranked)
    note = " There is one seed, so nothing is known about the spread: small differences mean nothing." if single else ""
    return f"By {metric.name} on the test set, best first: {'; '.join(shown)}.{note}"


def _contradictions(ranked: Sequence[Summary], metric: Metric) -> list[str]:
    """Where a later rung did worse than the best earlier one, by more than chance."""
    lines, by_place = [], sorted(ranked, key=lambda one: one.number)
    for index, one in enumerate(by_place[1:], start=1):
        earlier = by_place[:index]
        best = metric.best([each.score for each in earlier])
        other = next(each for each in earlier if each.score == best)
        gap = (best - one.score) if metric.higher_is_better else (one.score - best)
        if gap > 0:
            sure = "" if _differ(one, other) else ", a difference that these seeds do not establish"
            lines.append(
                f"Against the expected order, {one.rung.label} did worse than {other.rung.label} "
                f"by {number(round(gap, 3))} {metric.name}{sure}."
            )
    if not lines and len(by_place) > 1:
        lines.append("The order is the expected one: every rung did at least as well as all rungs before it.")
    return lines


def _steps(full: Sequence[Summary], metric: Metric) -> list[str]:
    """The largest gain from one rung to the next."""
    by_place = sorted(full, key=lambda one: one.number)
    gains = []
    for one, after in pairwise(by_place):
        gain = after.score - one.score if metric.higher_is_better else one.score - after.score
        gains.append((gain, one, after))
    if not gains:
        return []
    gain, one, after = max(gains, key=lambda each: each[0])
    if gain <= 0:
        return []
    return [
        f"The largest single step is from {one.rung.label} to {after.rung.label}: "
        f"{number(round(gain, 3))} {metric.name}."
    ]


def _against_published(full: Sequence[Summary], metric: Metric) -> list[str]:
    lines = []
    for one in full:
        same = [each for each in one.rung.published if each.metric.lower() == metric.name.lower() and not each.test]
        if not same:
            continue
        best = metric.best([each.score for each in same])
        short = best - one.score if metric.higher_is_better else one.score - best
        verdict = "falls short of" if short > 0 else "reaches"
        lines.append(
            f"{one.rung.label} {verdict} what is published for its kind: {with_spread(one)} here, {number(best)} there."
        )
    return lines


def _data_effect(ladder: Ladder, summaries: Sequence[Summary], metric: Metric) -> list[str]:
    """Which rung loses most when there is less data."""
    low, high = min(ladder.sizes), max(ladder.sizes)
    if low == high:
        return []
    losses = []
    for place in {one.number for one in summaries}:
        sizes = {one.size: one for one in summaries if one.number == place}
        if low in sizes and high in sizes:
            loss = sizes[high].score - sizes[low].score
            losses.append((loss if metric.higher_is_better else -loss, sizes[low].rung.label))
    if len(losses) < 2:
        return []
    losses.sort()
    least, most = losses[0], losses[-1]
    return [
        f"With {low:.0%} of the data, {most[1]} loses most ({number(round(most[0], 3))} {metric.name}) and {least[1]} "
        f"least ({number(round(least[0], 3))})."
    ]


def _cost(ranked: Sequence[Summary], metric: Metric) -> list[str]:
    """The cheapest rung that is as good as the best, within the spread."""
    best = ranked[0]
    costs = [(one.mean("flops"), one) for one in ranked]
    known = [(cost, one) for cost, one in costs if cost]
    if len(known) < 2 or best.mean("flops") is None:
        return []
    cost, cheapest = min(known, key=lambda each: each[0])
    if cheapest is best:
        return [f"{best.rung.label} is the best and needs the fewest training FLOPs ({number(cost)})."]
    ratio = (best.mean("flops") or cost) / cost
    return [
        f"{best.rung.label} needs {number(round(ratio, 2))} times the training FLOPs of {cheapest.rung.label}, the "
        f"cheapest rung, which reaches {number(round(cheapest.score, 3))} {metric.name}."
    ]


def _forgetting(full: Sequence[Summary]) -> list[str]:
    """Recall at the nearest and the farthest distance."""
    lines = []
    for one in full:
        distances = sorted({row["distance"] for result in one.results for row in result.get("recall") or ()})
        rates = [(distance, recall_rate(one, distance)) for distance in distances]
        known = [(distance, rate) for distance, rate in rates if rate is not None]
        if len(known) > 1:
            (near, first), (far, last) = known[0], known[-1]
            lines.append(f"{one.rung.label} {first:.0%} at {near} and {last:.0%} at {far}")
    return [f"Recall of a planted word by its distance: {'; '.join(lines)}."] if lines else []


def _differ(one: Summary, other: Summary) -> bool:
    """Whether two means are further apart than twice the standard error of their difference."""
    if len(one.results) < 2 or len(other.results) < 2:
        return False
    return abs(one.score - other.score) > 2 * math.hypot(one.error, other.error)


def with_spread(one: Summary) -> str:
    shown = f"{one.score:.2f}" if one.score >= 10 else f"{one.score:.3f}"
    if len(one.results) == 1:
        return shown
    return f"{shown} ± {one.spread:.2f}" if one.score >= 10 else f"{shown} ± {one.spread:.3f}"


def _score(result: Result, test: str, key: str) -> float | None:
    value = ((result.get("scores") or {}).get(test) or {}).get(key)
    return float(value) if isinstance(value, int | float) else None


def _at(result: Any, path: Sequence[str]) -> Any:
    for part in path:
        result = result.get(part) if isinstance(result, Mapping) else None
    return result
