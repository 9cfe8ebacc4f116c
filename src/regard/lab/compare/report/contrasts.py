"""What one idea buys: two rungs that differ mainly in it, side by side in score, on less data and in cost.

A ladder names such pairs in `contrasts`. The two have the same data, budget, loop and search. Differences that the
seeds do not establish are in parentheses.
"""

from collections.abc import Callable, Sequence
from typing import Any

from regard.lab.charts import number
from regard.lab.compare.ladder import ContrastConfig, Ladder
from regard.lab.compare.report.analysis import Metric, Pair, Summary, find_pair, gain, recall_rate, with_spread
from regard.lab.compare.speed import Speeds
from regard.lab.report import Section, Table

Column = tuple[str, Callable[[ContrastConfig], str]]


def contrast_section(ladder: Ladder, summaries: Sequence[Summary], metric: Metric, speeds: Speeds) -> Section:
    """A table with a row for each pair; columns that no pair has a number for are left out."""
    sizes = sorted({one.size for one in summaries}, reverse=True)
    shown = [each for each in ladder.contrasts if sizes and find_pair(each, summaries, sizes[0]) is not None]
    if not shown:
        return Section("")
    columns = _columns(summaries, metric, speeds, sizes)
    cells = [[cell(contrast) for _, cell in columns] for contrast in shown]
    kept = [place for place in range(len(columns)) if any(row[place] != "–" for row in cells)]
    rows = tuple((each.idea, *(row[place] for place in kept)) for each, row in zip(shown, cells, strict=True))
    note = (
        "Pairs of models that differ mainly in one idea: without it → with it. Differences that the seeds do not "
        "establish are in parentheses; one seed establishes nothing. Costs are those of the second model divided by "
        "those of the first."
    )
    header = ("idea", *(columns[place][0] for place in kept))
    return Section("What each idea buys", (note,), table=Table("Pairs of models that differ in one idea", header, rows))


def _columns(summaries: Sequence[Summary], metric: Metric, speeds: Speeds, sizes: Sequence[float]) -> list[Column]:
    def of(show: Callable[[Pair], str], size: float = sizes[0]) -> Callable[[ContrastConfig], str]:
        def cell(contrast: ContrastConfig) -> str:
            pair = find_pair(contrast, summaries, size)
            return "–" if pair is None else show(pair)

        return cell

    def change(pair: Pair) -> str:
        return f"{with_spread(pair[0])} → {with_spread(pair[1])}: {gain(*pair, metric)}"

    def recall(pair: Pair) -> str:
        farthest = max((row["distance"] for row in pair[0].results[0].get("recall") or ()), default=0)
        rates = [recall_rate(one, farthest) for one in pair]
        return "–" if None in rates else f"{rates[0]:.0%} → {rates[1]:.0%}"

    def speed(key: str) -> Callable[[Pair], str]:
        return lambda pair: _ratio(*(speeds.get(one.rung.name, {}).get(key) for one in pair))

    return [
        (metric.name, of(change)),
        *((f"with {size:.0%} of the data", of(change, size)) for size in sizes[1:]),
        ("longest sentences", of(lambda pair: _longest(pair, metric))),
        ("farthest planted word", of(recall)),
        ("parameters", of(lambda pair: _ratio(*(one.mean("parameters") for one in pair)))),
        ("training FLOPs", of(lambda pair: _ratio(*(one.mean("flops") for one in pair)))),
        ("training tokens/s", of(speed("tokens_per_second"))),
        ("ms per decoded token", of(speed("ms_per_decoded_token"))),
    ]


def _longest(pair: Pair, metric: Metric) -> str:
    """The scores of the longest sentences that both have a score for."""
    scores = [_by_length(one, metric) for one in pair]
    common = sorted(scores[0].keys() & scores[1].keys())
    if len(common) < 2:
        return "–"
    low, high = common[-1]
    name = f"{low}+" if high == float("inf") else f"{low}–{high:.0f}"
    return f"{scores[0][low, high]:.1f} → {scores[1][low, high]:.1f} ({name} words)"


def _by_length(one: Summary, metric: Metric) -> dict[tuple[int, float], float]:
    found: dict[tuple[int, float], list[float]] = {}
    for result in one.results:
        for row in result.get("by_length") or ():
            if row[metric.key] is not None:
                found.setdefault((row["from"], row["to"] or float("inf")), []).append(row[metric.key])
    return {bucket: sum(values) / len(values) for bucket, values in found.items()}


def _ratio(before: Any, after: Any) -> str:
    return "–" if not before or not after else f"× {number(after / before)}"
