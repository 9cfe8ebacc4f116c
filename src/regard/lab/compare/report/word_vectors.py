"""The section of a report about word vectors: the same models with random and with pre-trained embeddings."""

from collections.abc import Sequence

from regard.lab.charts import number
from regard.lab.compare.ladder import Ladder, RungConfig
from regard.lab.compare.plan import size_name
from regard.lab.compare.report.analysis import Metric, Summary, with_spread
from regard.lab.report import Section, Table
from regard.lab.samples import differ


def word_vectors_section(ladder: Ladder, summaries: Sequence[Summary], metric: Metric) -> Section:
    """A table of the pairs of rungs that differ in nothing but word vectors; an empty section if there are none."""
    rows = []
    for rung in ladder.rungs:
        random = _with_random_embeddings(ladder, rung)
        for size in sorted({one.size for one in summaries}, reverse=True):
            pair = [_of(summaries, each, size) for each in (random, rung)]
            if pair[0] is not None and pair[1] is not None:
                rows.append(_row(pair[0], pair[1], size))
    if not rows:
        return Section("")
    header = ("model", "data", f"{metric.name}, random", f"{metric.name}, word vectors", "difference")
    note = (
        "The token embeddings of the same model start at random, or from word vectors. A difference that these seeds "
        "do not establish is in parentheses."
    )
    table = Table(f"{metric.name} with random and with pre-trained word vectors", header, tuple(rows))
    return Section("Random against pre-trained word vectors", (note,), table=table)


def _with_random_embeddings(ladder: Ladder, rung: RungConfig) -> RungConfig | None:
    """The rung that is the same but for its word vectors."""
    if rung.word_vectors is None:
        return None
    same = (each for each in ladder.rungs if (each.recipe, each.overrides) == (rung.recipe, rung.overrides))
    return next((each for each in same if each.word_vectors is None), None)


def _of(summaries: Sequence[Summary], rung: RungConfig | None, size: float) -> Summary | None:
    names = (one for one in summaries if rung is not None and one.rung.name == rung.name and one.size == size)
    return next(names, None)


def _row(random: Summary, vectors: Summary, size: float) -> tuple[str, ...]:
    gain = f"{vectors.score - random.score:+.2f}"
    data = size_name(size) if size == 1 else f"{number(size * 100)}%"
    shown = gain if differ(vectors.scores, random.scores) else f"({gain})"
    return random.rung.label, data, with_spread(random), with_spread(vectors), shown
