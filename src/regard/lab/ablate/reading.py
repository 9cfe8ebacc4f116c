"""The short, honest reading of a sweep: sentences that the numbers support, and nothing else."""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

from regard.lab.ablate.analysis import (
    MEASURES,
    Finding,
    Row,
    Verdict,
    compared_norms,
    findings_of,
    target_loss,
)
from regard.lab.ablate.measure import DEEP_LAYERS
from regard.lab.ablate.plan import Sweep
from regard.lab.ablate.variations import BASE
from regard.lab.charts import number


def reading(sweep: Sweep, rows: Sequence[Row]) -> list[str]:
    """What holds, what does not, what could not be told, and what the special measurements say."""
    findings = [finding for row in rows for finding in findings_of(row, rows)]
    lines = [_summary(sweep, rows)]
    if findings:
        lines.append(_rule(findings))
    lines += _by_verdict(findings)
    lines += _steps(sweep, rows)
    lines += _gradients(rows)
    lines += _lengths(rows)
    return lines + _over_fitting(rows)


def row_label(sweep: Sweep, row: Row) -> str:
    """The name of a row in charts about the norm and residual connections."""
    if row.name != BASE:
        return row.setting
    stacks = sweep.recipe.resolved()["model"]
    return f"{stacks['decoder']['norm_position']}-norm (base)"


def _summary(sweep: Sweep, rows: Sequence[Row]) -> str:
    finished, total = sum(len(row.results) for row in rows), len(rows) * sweep.seeds
    base = rows[0]
    scores = []
    for name in ("ppl", "bleu", "bits_per_byte"):
        measure, sample = MEASURES[name], base.sample(name)
        if sample is not None:
            scores.append(f"{measure.name} {sample.shown(measure.decimals)}")
    failed = sum(len(row.failures) for row in rows)
    parts = [f"{finished} of {total} runs are done"]
    if failed:
        parts.append(f"{failed} failed")
    first = f"The base has {', '.join(scores)}" if scores else "The base has no result, so nothing is compared with it"
    return f"{first}; {', '.join(parts)}."


def _rule(findings: Iterable[Finding]) -> str:
    if any(finding.here.std is None or finding.base.std is None for finding in findings):
        return (
            "There is one seed, so nothing is known about the spread. Only differences of more than 2% of perplexity, "
            "1 BLEU, 10% of steps or 0.02 nats per token count, and half as much is no difference. With several seeds "
            "(--seeds 3) Student's t-test decides."
        )
    return (
        "A difference counts if Student's t-test over the seeds finds it at the 5% level; one of less than 1% of "
        "perplexity, 0.5 BLEU, 5% of steps or 0.01 nats per token is none. Of twenty changes without an effect, one is "
        "expected to show one."
    )


def _by_verdict(findings: Sequence[Finding]) -> list[str]:
    lines = []
    titles = {
        Verdict.holds: "Directions that hold",
        Verdict.fails: "Directions that do not hold here",
        Verdict.unknown: "Too close to tell",
    }
    for verdict, title in titles.items():
        chosen = [finding for finding in findings if finding.verdict is verdict]
        shown = []
        for _, group in groupby(chosen, key=lambda finding: finding.row.name):
            same = list(group)
            numbers = ", ".join(_difference(finding) for finding in same)
            setting = "" if verdict is Verdict.unknown else f" ({same[0].row.setting})"
            shown.append(f"{same[0].row.name}{setting}: {numbers}")
        if shown:
            lines.append(f"{title}: {'; '.join(shown)}.")
    return lines


def _difference(finding: Finding) -> str:
    other = "" if finding.against == BASE else f" against {finding.against}"
    if finding.verdict is Verdict.unknown:
        return MEASURES[finding.measure].name
    shown = f"{MEASURES[finding.measure].name} {finding.difference}{other}"
    if finding.verdict is Verdict.holds:
        return shown
    return f"{shown} (expected: {'no difference' if finding.direction == 'same' else finding.direction})"


def _steps(sweep: Sweep, rows: Sequence[Row]) -> list[str]:
    compared, target = compared_norms(rows), target_loss(rows)
    shown = []
    for row in compared:
        sample = row.sample("steps")
        if sample is not None:
            shown.append(f"{row_label(sweep, row)} {sample.shown(0)}")
    return [f"Steps to a validation loss of {target:.3f}: {', '.join(shown)}."] if len(shown) > 1 else []


def _gradients(rows: Sequence[Row]) -> list[str]:
    measured = [
        (row, row.results[0]["gradients"]["deep"]) for row in rows if row.results and row.results[0]["gradients"]
    ]
    if len(measured) < 2:
        return []
    stacks = []
    for stack in sorted(measured[0][1], reverse=True):  # the encoder first
        ratios = [
            f"{row.setting} {number(norms[stack][0] / (norms[stack][-1] or math.inf))}" for row, norms in measured
        ]
        stacks.append(f"{stack}: {', '.join(ratios)}")
    return [
        f"Gradient of the first layer relative to the last, in untrained stacks of {DEEP_LAYERS} layers, first seed: "
        f"{'; '.join(stacks)}."
    ]


def _lengths(rows: Sequence[Row]) -> list[str]:
    found = [(row, row.sample("long")) for row in rows]
    known = sorted(((sample.mean, row.name, sample) for row, sample in found if sample is not None), key=lambda x: x[0])
    if not known:
        return []
    shown = ", ".join(f"{name.removeprefix('short-')} {sample.shown(3)}" for _, name, sample in known)
    return [
        "Trained on short sequences, how much higher the loss is on those up to twice as long, in nats per token: "
        f"{shown}."
    ]


def _over_fitting(rows: Sequence[Row]) -> list[str]:
    if not any(row.plan.variation is not None and row.plan.variation.family == "dropout" for row in rows):
        return []
    shown = []
    for row in rows:
        sample = row.sample("gap")
        if sample is not None and (row.name == BASE or (row.plan.variation and row.plan.variation.family == "dropout")):
            shown.append(f"{row.name if row.name == BASE else row.setting} {sample.shown(3)}")
    if len(shown) < 2:
        return []
    return [f"Over-fitting, the validation loss minus the training loss at the end: {', '.join(shown)}."]
