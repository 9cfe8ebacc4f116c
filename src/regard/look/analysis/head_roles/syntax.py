"""Syntax: whether the heads of an encoder attend from each word to its syntactic governor.

Measured for all relations together and for the frequent ones, like Voita et al. 2019 (§5.2): the share of words that
attend more to their governor than to anything else. A baseline is the word at the distance at which the governor of
this relation is most often, since a head that looks there has learned no syntax.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.look.analysis.head_roles.counts import MIN_COUNT, OFFSETS, Score, best_share, is_clear_share
from regard.look.analysis.head_roles.recording import LayerAttention, RecordedExample
from regard.look.analysis.head_roles.treebank import GovernedSentence, spaced_text
from regard.look.analysis.head_roles.words import merge_words
from regard.look.models.traced_model import Example, TracedModel

ALL = "governor"
"""The measure of all relations together."""
MAX_RELATIONS = 12
"""Relations that are measured on their own: the most frequent ones."""


class SyntaxCounts:
    """The words of a treebank that attend most to their governors, by relation, layer and head."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int], _RelationCounts] = {}

    def add(self, example: RecordedExample, sentence: GovernedSentence, positions: Sequence[Sequence[int]]) -> None:
        """Count a sentence.  positions: those of each word's tokens"""
        counted = [index for index, relation in enumerate(sentence.relations) if relation]
        if not counted:
            return
        governors = torch.tensor([sentence.governors[index] for index in counted])
        for (attention_type, number), layer in example.layers.items():
            if attention_type == "encoder":
                hits, chances = _hits(layer, positions, counted, governors)
                for relation in (ALL, *sorted({sentence.relations[index] for index in counted})):
                    of_relation = [
                        row for row, index in enumerate(counted) if relation in (ALL, sentence.relations[index])
                    ]
                    counts = self._counts.setdefault((relation, number), _RelationCounts(len(layer.weights)))
                    words = torch.tensor(counted)[of_relation]
                    counts.add(hits[:, of_relation], chances[of_relation], words, governors[of_relation])

    def relations(self) -> dict[str, int]:
        """The relations with enough words to be measured, and their numbers of words: all, then the most frequent."""
        counts = {relation: each.count for (relation, layer), each in self._counts.items() if layer == 0}
        frequent = sorted(counts, key=lambda relation: (relation != ALL, -counts[relation], relation))
        return {
            relation: counts[relation] for relation in frequent[: 1 + MAX_RELATIONS] if counts[relation] >= MIN_COUNT
        }

    def score(self, relation: str, layer: int, head: int) -> Score:
        """The share of words whose largest weight in this head is on their governor."""
        return self._counts[relation, layer].score(head)


class _RelationCounts:
    """The words of one relation in one layer."""

    def __init__(self, heads: int) -> None:
        self.count, self.uniform = 0, 0.0
        self.hits = torch.zeros(heads, dtype=torch.float64)
        self.at_offsets = torch.zeros(len(OFFSETS), dtype=torch.float64)

    def add(self, hits: Tensor, chances: Tensor, words: Tensor, governors: Tensor) -> None:
        """hits: # (heads, words); chances, words, governors: # (words,)"""
        self.count += len(words)
        self.hits += hits.sum(dim=-1, dtype=torch.float64)
        self.uniform += float(chances.sum())
        distances = governors - words
        self.at_offsets += torch.tensor([int((distances == offset).sum()) for offset in OFFSETS])

    def score(self, head: int) -> Score:
        value = float(self.hits[head]) / self.count
        baseline = best_share(self.uniform, self.at_offsets, self.count, "word")
        return Score(value, None, baseline, is_clear_share(value, baseline.value, self.count))


def syntax_example(traced_model: TracedModel, sentence: GovernedSentence) -> tuple[Example, list[list[int]]] | None:
    """A sentence as the encoder's input, and the positions of each word's tokens; None if it cannot be read."""
    text, spans = spaced_text(sentence, tokenized=traced_model.reads_words)
    found = traced_model.text_example(text)
    if found is None:
        return None
    positions: list[list[int]] = [[] for _ in spans]
    for position, span in enumerate(found.spans):
        if span is not None and span[0] < span[1]:
            last = span[1] - 1  # a token may begin with the space before its word
            for word in (index for index, (first, end) in enumerate(spans) if first <= last < end):
                positions[word].append(position)
    return (found.example, positions) if all(positions) else None


def _hits(
    layer: LayerAttention, positions: Sequence[Sequence[int]], counted: Sequence[int], governors: Tensor
) -> tuple[Tensor, Tensor]:
    """Whether each word attends most to its governor, and how probable that is under uniform attention.

    Gives (heads, words) and (words,).
    """
    merged, outside = merge_words(layer.weights, [positions[index] for index in counted], positions)
    best = merged.max(dim=-1)
    hits = (best.indices == governors) & (best.values >= outside)
    keys = torch.stack([layer.key_counts[list(positions[index])].double().mean() for index in counted])
    sizes = torch.tensor([len(positions[governor]) for governor in governors.tolist()])
    return hits, sizes / keys
