"""What a sweep says: numbers over the seeds, and whether each claim's direction holds.

A difference counts if Student's t-test over the seeds finds it at the 5% level. With one seed nothing is known about
the spread, so only a difference of twice a margin counts, such as 2% of perplexity or 1 BLEU, and the report says so.
"No difference" holds if it is within the margin, and fails if it is beyond and counts.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from regard.lab.ablate.plan import Planned, Sweep
from regard.lab.ablate.settings import Direction
from regard.lab.ablate.variations import BASE
from regard.lab.samples import Sample, differ

Result = Mapping[str, Any]

_MAX_NLL = 99.0
"""The exponential of a larger loss is shown as that of this one."""


@dataclass(frozen=True)
class Measure:
    """A number of a run."""

    name: str
    unit: str
    decimals: int
    of: Callable[[Result], float | None]
    margin: Callable[[float], float]
    """The difference from a value of the base that hardly matters."""


@dataclass(frozen=True)
class Row:
    """A variation, or the base, with what its runs gave."""

    plan: Planned
    results: tuple[Result, ...]
    failures: tuple[tuple[int, str], ...]
    """The seeds of runs that failed, and why."""

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def setting(self) -> str:
        return "" if self.plan.change is None else self.plan.change.setting

    def sample(self, measure: str) -> Sample | None:
        """A measure over the seeds; None if no run has it."""
        values = [MEASURES[measure].of(result) for result in self.results]
        known = tuple(value for value in values if value is not None)
        return Sample(known) if known else None


class Verdict(StrEnum):
    """What the numbers say about the direction that a claim expects."""

    holds = "holds"
    fails = "does not hold"
    unknown = "could not be told"


@dataclass(frozen=True)
class Finding:
    """The verdict on a variation by one measure."""

    row: Row
    measure: str
    direction: Direction
    verdict: Verdict
    here: Sample
    base: Sample
    against: str

    def __str__(self) -> str:
        """As in "PPL: holds (+0.35)"."""
        return f"{MEASURES[self.measure].name}: {self.verdict} ({self.difference})"

    @property
    def difference(self) -> str:
        """The difference from the base, with its sign."""
        shown = f"{self.here.mean - self.base.mean:+,.{MEASURES[self.measure].decimals}f}"
        return shown.replace("-", "\N{MINUS SIGN}")


def _ppl(result: Result) -> float | None:
    return None if result["valid_nll"] is None else math.exp(min(result["valid_nll"], _MAX_NLL))


def _score(metric: str) -> Callable[[Result], float | None]:
    """A score on the first test set."""

    def read(result: Result) -> float | None:
        scores: Mapping[str, Any] = next(iter(result["scores"].values()), {})
        return None if scores.get(metric) is None else float(scores[metric])

    return read


def _gap(result: Result) -> float | None:
    return None if result["valid_nll"] is None else float(result["valid_nll"] - result["train_nll"])


def _extra_loss(result: Result) -> float | None:
    lengths = result["lengths"] or {}
    return float(lengths["long"]["nll"] - lengths["short"]["nll"]) if {"short", "long"} <= set(lengths) else None


MEASURES = {
    "ppl": Measure("PPL", "per token", 2, _ppl, lambda base: 0.01 * base),
    "bleu": Measure("BLEU", "", 2, _score("bleu"), lambda base: 0.5),
    "bits_per_byte": Measure("bits per byte", "", 3, _score("bits_per_byte"), lambda base: 0.01 * base),
    "gap": Measure("gap", "nats per token", 3, _gap, lambda base: 0.01),
    "long": Measure("extra loss on long sentences", "nats per token", 3, _extra_loss, lambda base: 0.01),
    "steps": Measure("steps", "steps", 0, lambda result: result.get("steps_to_loss"), lambda base: 0.05 * base),
}
"""By name. gap: validation loss minus training loss. long: the loss on long sentences minus that on short ones. steps:
until the run has reached a given validation loss."""


def read_rows(sweep: Sweep) -> list[Row]:
    """The base and all variations that apply, with what their runs gave; their steps to a loss included."""
    rows = []
    for plan in sweep.planned:
        results, failures = list[dict[str, Any]](), list[tuple[int, str]]()
        for seed in range(1, sweep.seeds + 1):
            path, failure = sweep.measured(plan.name, seed), sweep.failure(plan.name, seed)
            if path.is_file():
                results.append(json.loads(path.read_text(encoding="utf-8")))
            elif failure is not None:
                failures.append((seed, failure))
        rows.append(Row(plan, tuple(results), tuple(failures)))
    target = target_loss(rows)
    return rows if target is None else [_with_steps(row, target) for row in rows]


def _with_steps(row: Row, target: float) -> Row:
    results = ({**result, "steps_to_loss": steps_to_loss(result["curve"], target)} for result in row.results)
    return replace(row, results=tuple(results))


def target_loss(rows: Sequence[Row]) -> float | None:
    """The validation loss that all runs with either norm position have reached; None if there is nothing to compare."""
    compared = [row for row in rows if row.results and _has_norm(row)]
    if len(compared) < 2:
        return None
    lowest = [min(point["nll"] for point in result["curve"]) for row in compared for result in row.results]
    return float(max(lowest))


def compared_norms(rows: Sequence[Row]) -> list[Row]:
    """The base and the variation with the other norm position, if both have runs."""
    return [row for row in rows if row.results and _has_norm(row)] if target_loss(rows) is not None else []


def _has_norm(row: Row) -> bool:
    family = row.name if row.plan.variation is None else row.plan.variation.family
    return family in (BASE, "norm") and all(result["curve"] for result in row.results)


def steps_to_loss(curve: Sequence[Mapping[str, float]], target: float) -> float | None:
    """The first step at which the validation loss is at most the target, by interpolation between validations."""
    before: Mapping[str, float] | None = None
    for point in curve:
        if point["nll"] <= target:
            if before is None or before["nll"] == point["nll"]:
                return float(point["step"])
            passed = (before["nll"] - target) / (before["nll"] - point["nll"])
            return float(before["step"] + passed * (point["step"] - before["step"]))
        before = point
    return None


def judge(direction: Direction, here: Sample, base: Sample, margin: float) -> Verdict:
    """Whether a number goes where the claim expects, compared with the base."""
    difference = here.mean - base.mean
    changed = differ(here, base)
    if changed is None:
        changed = abs(difference) > 2 * margin
    if direction == "same" and abs(difference) <= margin:
        return Verdict.holds
    if not changed:
        return Verdict.unknown
    if direction == "same":
        return Verdict.fails
    return Verdict.holds if (difference > 0) == (direction == "higher") else Verdict.fails


def findings_of(row: Row, rows: Sequence[Row]) -> list[Finding]:
    """The verdicts on a variation, by each measure that its claim speaks of and that both runs have."""
    variation, change = row.plan.variation, row.plan.change
    if variation is None or change is None:
        return []
    other = next((each for each in rows if each.name == variation.against), None)
    found = []
    for measure, direction in (variation.expects | dict(change.expects)).items():
        here, base = row.sample(measure), None if other is None else other.sample(measure)
        if here is not None and base is not None:
            verdict = judge(direction, here, base, MEASURES[measure].margin(base.mean))
            found.append(Finding(row, measure, direction, verdict, here, base, variation.against))
    return found
