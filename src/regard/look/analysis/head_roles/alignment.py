"""Word alignment by cross-attention: the alignment error rate of each head's links.

A head links a target word to the source word that it attends to most; to none, if a token outside of words (⟨eos⟩) gets
more. A row of cross-attention reads one token and writes the next, so there are two ways to say which word it belongs
to. Heads usually align what is about to be written.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from torch import Tensor

from regard.look.analysis.head_roles.counts import OFFSETS, Baseline, Score, describe_offset, is_clear_error
from regard.look.analysis.head_roles.recording import LayerAttention, RecordedExample
from regard.look.analysis.head_roles.word_alignment import Aligner, Alignment, Link, alignment_error_rate
from regard.look.analysis.head_roles.words import Word, merge_words, words_of

Side = Literal["written", "read"]
SIDES: tuple[Side, ...] = get_args(Side)
"""The word that a row belongs to: the one that it writes, or the one that it reads."""


class LinkCounts:
    """Links that were found, and how many of them the reference has."""

    def __init__(self) -> None:
        self.sure = self.possible = self.found = self.reference = 0.0

    def add(self, links: Iterable[Link], alignment: Alignment, weight: float = 1.0) -> None:
        """Count the links of a sentence, each with this weight."""
        links = set(links)
        self.sure += weight * len(links & alignment.sure)
        self.possible += weight * len(links & alignment.possible)
        self.found += weight * len(links)
        self.reference += len(alignment.sure)

    @property
    def error_rate(self) -> float:
        return alignment_error_rate(self.sure, self.possible, self.found, self.reference)


class AlignmentCounts:
    """The alignments of all heads over a dev set, and those of strategies that need no learning."""

    def __init__(self, aligner: Aligner) -> None:
        self.aligner = aligner
        self.words = 0
        """Target words so far."""
        self._heads: dict[tuple[Side, int, int], LinkCounts] = {}
        self._strategies: dict[str, LinkCounts] = {}

    def add(self, example: RecordedExample) -> None:
        """Count an example."""
        source, target = words_of(example.source), words_of(example.target)
        if not source or not target:
            return
        alignment = self.aligner.align([word.text for word in source], [word.text for word in target])
        self.words += len(target)
        for name, (links, weight) in _strategies(len(source), len(target)).items():
            self._strategies.setdefault(name, LinkCounts()).add(links, alignment, weight)
        for (attention_type, number), layer in example.layers.items():
            if attention_type == "cross":
                for side in SIDES:
                    for head, links in enumerate(head_links(layer, source, target, side)):
                        self._heads.setdefault((side, number, head), LinkCounts()).add(links, alignment)

    def score(self, side: Side, layer: int, head: int) -> Score:
        """The alignment error rate. Of its two sides, a head gets a tag for the better one only."""
        errors = {each: self._heads[each, layer, head].error_rate for each in SIDES}
        strategy = min(self._strategies, key=lambda name: self._strategies[name].error_rate)
        baseline = Baseline(self._strategies[strategy].error_rate, strategy)
        is_better = side == min(SIDES, key=lambda each: errors[each])
        tag = is_better and is_clear_error(errors[side], baseline.value, self.words)
        return Score(errors[side], None, baseline, tag)


def head_links(layer: LayerAttention, source: Sequence[Word], target: Sequence[Word], side: Side) -> list[list[Link]]:
    """The links of each head in a layer: of a target word to the source word with the largest weight."""
    shift = 1 if side == "written" else 0
    rows = [[position - shift for position in word.positions if position >= shift] for word in target]
    indices = [index for index, row in enumerate(rows) if row]
    if not indices:
        return [[] for _ in layer.weights]
    merged, outside = merge_words(
        layer.weights, [rows[index] for index in indices], [word.positions for word in source]
    )
    best = merged.max(dim=-1)
    linked: Tensor = best.values >= outside
    return [
        [(int(best.indices[head, row]), index) for row, index in enumerate(indices) if linked[head, row]]
        for head in range(len(merged))
    ]


def _strategies(source: int, target: int) -> dict[str, tuple[list[Link], float]]:
    """The links of strategies that need no learning, and the weight of each link."""
    rows = range(target)
    links = {
        "uniform attention": ([(i, j) for j in rows for i in range(source)], 1 / source),
        "always the diagonal": ([(min(int((j + 0.5) * source / target), source - 1), j) for j in rows], 1.0),
        "always the word at the same position": ([(j, j) for j in rows if j < source], 1.0),
    }
    for offset in OFFSETS:
        inside = [(j + offset, j) for j in rows if 0 <= j + offset < source]
        links[describe_offset(offset, "word")] = (inside, 1.0)
    return links
