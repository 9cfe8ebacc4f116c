"""What the results of a comparison say: means over seeds, the ranking, and a short reading of the numbers.

The reading is made of sentences that the numbers support, and nothing else. A difference counts as established only if
a t-test over the seeds finds it; with one seed nothing can be established, and the reading says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from regard.lab.charts import number
from regard.lab.compare.ladder import ContrastConfig, Ladder, RungConfig
from regard.lab.samples import Sample, differ

Result = Mapping[str, Any]
_LEAST_NATS = 0.05
"""What a language model saves by having read a sequence before, if it remembers it at all."""


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
    scores: Sample
    """By which the rung is ranked."""
    second: float | None

    @property
    def score(self) -> float:
        return self.scores.mean

    @property
    def spread(self) -> float:
        """The standard deviation over the seeds; 0 for a single one."""
        return self.scores.std or 0.0

    def mean(self, *path: str) -> float | None:
        """The mean of a measurement over the seeds."""
        values = [_at(result, path) for result in self.results]
        known = [float(value) for value in values if isinstance(value, int | float)]
        return fmean(known) if known else None


Pair = tuple[Summary, Summary]
"""A rung without an idea, and one with it."""


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
                scores = Sample(tuple(_score(result, ladder.test, metric.key) or 0.0 for result in done))
                second = [_score(result, ladder.test, metric.second[0]) for result in done]
                known = [value for value in second if value is not None]
                summaries.append(Summary(rung, place, size, done, scores, fmean(known) if known else None))
    return summaries


def reading(ladder: Ladder, results: Sequence[Result], summaries: Sequence[Summary], metric: Metric) -> list[str]:
    """The short, honest reading of the numbers."""
    full = [one for one in summaries if one.size == max(ladder.sizes)]
    if not full:
        return ["No run has finished, so there is nothing to compare.", *failures(results)]
    ranked = sorted(full, key=lambda one: one.score, reverse=metric.higher_is_better)
    lines = [_ranking(ranked, metric), *_ideas(ladder, full, metric)]
    lines += [*_contradictions(ranked, metric), *_steps(full, metric)]
    lines += _against_published(full, metric)
    lines += _data_effect(ladder, summaries, metric)
    lines += _cost(ranked)
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


def nats_saved(summary: Summary, distance: int) -> float | None:
    """How much less a repeated random token surprised a language model at a distance, over the seeds."""
    rows = [row for result in summary.results for row in result.get("recall") or () if row["distance"] == distance]
    known = [row["nats_saved"] for row in rows if row.get("nats_saved") is not None]
    return fmean(known) if known else None


def _ranking(ranked: Sequence[Summary], metric: Metric) -> str:
    shown = [f"{one.rung.label} {with_spread(one)}" for one in ranked]
    single = all(len(one.results) == 1 for one in ranked)
    note = " There is one seed, so nothing is known about the spread: small differences mean nothing." if single else ""
    return f"By {metric.name} on the test set, best first: {'; '.join(shown)}.{note}"


def find_pair(contrast: ContrastConfig, summaries: Sequence[Summary], size: float) -> Pair | None:
    """The rungs without and with an idea on this size of the data, if both have finished."""
    found = {one.rung.name: one for one in summaries if one.size == size}
    if contrast.without not in found or contrast.having not in found:
        return None
    return found[contrast.without], found[contrast.having]


def gain(without: Summary, having: Summary, metric: Metric) -> str:
    """The difference of two scores, in parentheses if the seeds do not establish it."""
    shown = f"{having.score - without.score:+.{2 if metric.higher_is_better else 3}f}"
    return shown if differ(without.scores, having.scores) else f"({shown})"


def _ideas(ladder: Ladder, full: Sequence[Summary], metric: Metric) -> list[str]:
    """What the ideas that the ladder singles out are worth."""
    pairs = [(each.idea, find_pair(each, full, max(ladder.sizes))) for each in ladder.contrasts]
    gains = [f"{idea} {gain(*pair, metric)}" for idea, pair in pairs if pair is not None]
    if not gains:
        return []
    note = " (differences in parentheses are not established by these seeds)" if "(" in "".join(gains) else ""
    return [f"What each idea changes, in {metric.name}{note}: {'; '.join(gains)}."]


def _contradictions(ranked: Sequence[Summary], metric: Metric) -> list[str]:
    """Where a later rung did worse than the best earlier one: by more than chance, and by less."""
    established, others = list[str](), list[str]()
    by_place = sorted(ranked, key=lambda one: one.number)
    for index, one in enumerate(by_place[1:], start=1):
        earlier = by_place[:index]
        best = metric.best([each.score for each in earlier])
        other = next(each for each in earlier if each.score == best)
        gap = (best - one.score) if metric.higher_is_better else (one.score - best)
        if gap > 0:
            shown = f"{_named(one)} than {_named(other)} by {gap:.{2 if metric.higher_is_better else 3}f}"
            (established if differ(one.scores, other.scores) else others).append(shown)
    if not established and not others and len(by_place) > 1:
        return ["The order is the expected one: every rung did at least as well as all rungs before it."]
    lines = []
    if established:
        lines.append(f"Against the expected order, in {metric.name}, these did worse: {'; '.join(established)}.")
    if others:
        lines.append(
            f"Against the expected order, but by differences that these seeds do not establish: {'; '.join(others)}."
        )
    return lines


def _steps(full: Sequence[Summary], metric: Metric) -> list[str]:
    """The largest gain from one rung to the next."""
    by_place = sorted(full, key=lambda one: one.number)
    steps = []
    for one, after in pairwise(by_place):
        step = after.score - one.score if metric.higher_is_better else one.score - after.score
        steps.append((step, one, after))
    if not steps:
        return []
    step, one, after = max(steps, key=lambda each: each[0])
    if step <= 0:
        return []
    return [
        f"The largest single step is from {_named(one)} to {_named(after)}: {number(round(step, 3))} {metric.name}."
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
    losses = []
    for place in sorted({one.number for one in summaries}):
        sizes = {one.size: one for one in summaries if one.number == place}
        if low < high and low in sizes and high in sizes:
            before, after = sizes[high].score, sizes[low].score
            losses.append((before - after if metric.higher_is_better else after - before, sizes[high], after))
    if len(losses) < 2:
        return []
    budget, less = ladder.budget, ladder.budget.value_of_parts
    with_less = (
        "" if less is None else f" and a budget of {number(less)} {budget.kind} instead of {number(budget.value)}"
    )
    most, least = max(losses, key=lambda each: each[0]), min(losses, key=lambda each: each[0])
    shown = [
        f"{_named(one)} ({_score_text(one.score)} becomes {_score_text(after)})" for _, one, after in (most, least)
    ]
    return [f"With {low:.0%} of the data{with_less}, {shown[0]} suffers most and {shown[1]} least."]


def _cost(ranked: Sequence[Summary]) -> list[str]:
    """The rungs that do better than all that cost less to train. A model that is counted has no training FLOPs."""
    costs = sorted(
        ((one.mean("flops") or 0.0, place, one) for place, one in enumerate(ranked)), key=lambda each: each[:2]
    )
    if len(costs) < 2 or not costs[-1][0]:
        return []
    efficient = [costs[0]]
    for one in costs[1:]:
        if one[1] < efficient[-1][1]:
            efficient.append(one)
    shown = [f"{_named(one)} ({number(cost) if cost else 'counted, not trained'})" for cost, _, one in efficient]
    if len(efficient) == 1:
        return [f"{shown[0]} is the best and needs the fewest training FLOPs."]
    return [
        f"By training FLOPs, these are worth their cost, because everything cheaper does worse: {', '.join(shown)}."
    ]


def _forgetting(full: Sequence[Summary]) -> list[str]:
    """Which rung remembers best and worst, at the nearest and at the farthest distance."""
    saved = any(nats_saved(one, distance) is not None for one in full for distance in _distances(full))
    measure = nats_saved if saved else recall_rate
    lines = []
    for distance in dict.fromkeys((*_distances(full)[:1], *_distances(full)[-1:])):
        rates = [(rate, _named(one)) for one in full if (rate := measure(one, distance)) is not None]
        if len(rates) < 2:
            continue
        best, worst = (choose(rates, key=lambda each: each[0]) for choose in (max, min))
        shown = [
            f"{label} ({rate:.2f} nats a token)" if saved else f"{label} ({rate:.0%})" for rate, label in (best, worst)
        ]
        far = f"{distance} {'token' if saved else 'word'}{'' if distance == 1 else 's'}"
        if saved and best[0] < _LEAST_NATS:
            most = f"{best[0]:.2f} nats a token"
            lines.append(f"After {far} of other text, no model remembers a random sequence: it saves at most {most}.")
        elif saved:
            lines.append(
                f"After {far} of other text, having read a random sequence before helps {shown[0]} most and {shown[1]} "
                "least."
            )
        elif best[0] == worst[0]:
            lines.append(
                f"A planted word with {far} after it is translated equally often by all models ({best[0]:.0%})."
            )
        else:
            lines.append(
                f"A planted word with {far} after it is translated most often by {shown[0]}, least often by {shown[1]}."
            )
    return lines


def _distances(full: Sequence[Summary]) -> list[int]:
    return sorted({row["distance"] for one in full for result in one.results for row in result.get("recall") or ()})


def _named(one: Summary) -> str:
    """A label inside a sentence: in quotation marks if it has punctuation, which would read as the sentence's."""
    return f"“{one.rung.label}”" if set(",:;") & set(one.rung.label) else one.rung.label


def with_spread(one: Summary) -> str:
    shown = _score_text(one.score)
    if len(one.results) == 1:
        return shown
    return f"{shown} ± {one.spread:.2f}" if one.score >= 10 else f"{shown} ± {one.spread:.3f}"


def _score_text(score: float) -> str:
    return f"{score:.2f}" if score >= 10 else f"{score:.3f}"


def _score(result: Result, test: str, key: str) -> float | None:
    value = ((result.get("scores") or {}).get(test) or {}).get(key)
    return float(value) if isinstance(value, int | float) else None


def _at(result: Any, path: Sequence[str]) -> Any:
    for part in path:
        result = result.get(part) if isinstance(result, Mapping) else None
    return result
